//! Renders the firewall's plan as elements of the tables of IP packets. Pure.

use std::collections::HashSet;
use std::net::IpAddr;

use super::attached::Attached;
use super::number::{ITSELF, NOBODY, Numbers};
use super::port_range::{PortPart, parts};
use super::schema::FirewallSet;
use super::tunnel::{self, TunnelKey};
use denizen_model::{Family, LocalPod, family_of};
use denizen_nft::{Data, Element, Key, Value};
use denizen_plan::{
    AddressRange, Direction, FirewallPlan, Isolation, PermittedPorts, PodRules, PortKey, Tiered,
};

pub(super) fn member(set: FirewallSet, key: Key) -> Element {
    Element { set: set.id(), key, value: Value::Member, comment: None }
}

/// The elements that say how a pod's address is judged. Its permissions, and its peers under
/// ClusterNetworkPolicies, may be thousands: those that `others` has as well are left out.
pub fn of_pod_rules(
    address: IpAddr,
    pod_rules: &PodRules,
    others: Option<&PodRules>,
    numbers: &Numbers,
) -> Vec<Element> {
    let key = Key::EMPTY.address(address);
    if Direction::BOTH
        .iter()
        .all(|direction| pod_rules.of(*direction).isolation == Isolation::Pending)
    {
        return vec![member(FirewallSet::Pending, key)];
    }
    let mut elements = Vec::new();
    for direction in Direction::BOTH {
        let rules = pod_rules.of(direction);
        match rules.isolation {
            Isolation::Open => continue,
            // A direction that is still pending has no permissions.
            Isolation::Pending | Isolation::Isolated => {
                elements.push(member(FirewallSet::Isolated(direction), key));
            }
        }
        let others = others.map(|others| others.of(direction));
        let held = others.filter(|others| others.isolation == rules.isolation);
        // Both are sorted.
        let mut held = held.map_or(&[][..], |others| &others.permissions).iter().peekable();
        let mut with_ranges = None;
        for permission in rules.permissions.iter() {
            while held.next_if(|held| *held < permission).is_some() {}
            let is_held = held.next_if_eq(&permission).is_some();
            let peer = permission.peer.map_or(0, |id| numbers.number(id));
            let is_range =
                matches!(permission.ports, PortKey::Range(_, first, last) if first < last);
            // The permissions of one peer follow each other. The element is added even if `others`
            // has this range: another range of the peer may differ.
            if is_range && with_ranges.replace(peer) != Some(peer) {
                let key = key.number(peer);
                elements.push(member(FirewallSet::WithPortRanges(direction), key));
            }
            if !is_held {
                of_ports(key, direction, peer, permission.ports, &mut elements);
            }
        }
        let others = others.and_then(|others| others.tiered.as_ref());
        let tiered = rules.tiered.iter();
        elements.extend(
            tiered.flat_map(|tiered| of_peers(address, direction, tiered, others, numbers)),
        );
    }
    if pod_rules.is_restricted() {
        elements.push(member(FirewallSet::Itself, key.address(address)));
    }
    if pod_rules.is_tiered() {
        elements.push(member(FirewallSet::Tiered, key));
    }
    elements
}

/// What passes between a pod that ClusterNetworkPolicies select and its peers: only the peers for
/// which `others` differ.
fn of_peers<'a>(
    pod: IpAddr,
    direction: Direction,
    tiered: &'a Tiered,
    others: Option<&'a Tiered>,
    numbers: &'a Numbers,
) -> impl Iterator<Item = Element> + 'a {
    let peer = |id: Option<_>| id.map_or(NOBODY, |id| numbers.number(id));
    let by_peer = tiered.by_peer.beyond(others.map(|others| &others.by_peer));
    let by_peer = by_peer.map(move |(id, permitted)| (peer(*id), permitted));
    let by_peer = by_peer.chain([(ITSELF, &tiered.itself)]);
    // Nothing passes between the pod and a peer without an element.
    let by_peer = by_peer.filter(|(_, permitted)| !permitted.is_none());
    by_peer.map(move |(peer, permitted)| Element {
        set: FirewallSet::PortsByPeer(direction).id(),
        key: Key::EMPTY.address(pod).number(peer),
        value: Value::Data(Data::EMPTY.number(numbers.permitted(permitted))),
        comment: None,
    })
}

/// The port sets of all pods of an IP version.
pub fn permitted_sets_of(plan: &FirewallPlan, version: Option<Family>) -> HashSet<&PermittedPorts> {
    let is_of_version = |address| version.is_none_or(|version| family_of(address) == version);
    let pods = plan.pods().filter(|(address, _)| is_of_version(*address));
    let pod_rules =
        pods.flat_map(|(_, pod_rules)| Direction::BOTH.map(|direction| pod_rules.of(direction)));
    // Pods of one class share one `by_peer`, which is read once.
    let (mut seen, mut all) = (HashSet::new(), HashSet::new());
    for tiered in pod_rules.filter_map(|rules| rules.tiered.as_ref()) {
        all.insert(&tiered.itself);
        if seen.insert(tiered.by_peer.address()) {
            all.extend(tiered.by_peer.permitted_sets());
        }
    }
    all
}

/// The elements that say what each port set permits. The port sets that permit everything and
/// nothing need none.
pub fn of_permitted_sets(plan: &FirewallPlan, version: Family, numbers: &Numbers) -> Vec<Element> {
    let permitted_sets = permitted_sets_of(plan, Some(version)).into_iter();
    let mut elements = Vec::new();
    for permitted in permitted_sets.filter(|permitted| !permitted.is_all() && !permitted.is_none())
    {
        let id = numbers.permitted(permitted);
        elements.extend(permitted.spans().flat_map(|(protocol, (first, last))| {
            let key = move |port| Key::EMPTY.byte(protocol.number()).port(port).number(id);
            parts(first, last).into_iter().map(move |part| match part {
                PortPart::Port(port) => member(FirewallSet::PermittedPorts, key(port)),
                PortPart::Prefix(prefix) => member(FirewallSet::PermittedPortRanges, key(prefix)),
            })
        }));
        if permitted.passes_others() {
            elements.push(member(FirewallSet::PermittedOthers, Key::EMPTY.number(id)));
        }
    }
    elements
}

/// Adds the elements of one permission.
fn of_ports(
    pod: Key,
    direction: Direction,
    peer: u32,
    ports: PortKey,
    elements: &mut Vec<Element>,
) {
    match ports {
        PortKey::All => elements.push(member(FirewallSet::All(direction), pod.number(peer))),
        PortKey::Protocol(protocol) => {
            let key = pod.byte(protocol.number()).number(peer);
            elements.push(member(FirewallSet::Protocols(direction), key));
        }
        PortKey::Range(protocol, first, last) => {
            let key = |port| pod.byte(protocol.number()).port(port).number(peer);
            let parts = parts(first.get(), last.get()).into_iter().map(|part| match part {
                PortPart::Port(port) => member(FirewallSet::Ports(direction), key(port)),
                PortPart::Prefix(prefix) => member(FirewallSet::PortRanges(direction), key(prefix)),
            });
            elements.extend(parts);
        }
    }
}

/// The element with the number of an address' identity.
pub fn of_identity(address: IpAddr, number: u32) -> Element {
    let value = Value::Data(Data::EMPTY.number(number));
    let key = Key::EMPTY.address(address);
    Element { set: FirewallSet::Identities.id(), key, value, comment: None }
}

/// The element with the number of a range's identity.
pub fn of_block(range: AddressRange, number: u32) -> Element {
    let value = Value::Data(Data::EMPTY.number(number));
    let key = Key::EMPTY.address(range.first).up_to_address(range.last);
    Element { set: FirewallSet::Blocks.id(), key, value, comment: None }
}

/// The elements of a routed pod: its interface and its addresses.
pub fn of_pod(plan: &FirewallPlan, pod: &LocalPod, version: Family) -> Vec<Element> {
    if pod.shares_interface() {
        return Vec::new();
    }
    let interface = Key::EMPTY.interface(&pod.interface);
    let mut elements = vec![member(FirewallSet::PodInterfaces, interface)];
    let ips = plan.addresses_of(pod).into_iter().filter(|ip| family_of(*ip) == version);
    elements.extend(ips.map(|ip| member(FirewallSet::PodAddresses, interface.address(ip))));
    if plan.is_confined(pod) {
        elements.push(member(FirewallSet::RestrictedInterfaces, interface));
    }
    let mut judged = pod.ips.iter().filter_map(|ip| plan.pod_rules(*ip));
    if judged.any(|pod_rules| pod_rules.ingress.isolation != Isolation::Open) {
        elements.push(member(FirewallSet::IsolatedInterfaces, interface));
    }
    elements
}

/// The elements of nodes and tunnels.
pub fn of_surroundings(plan: &FirewallPlan, version: Family) -> Vec<Element> {
    let ends = plan.tunnel_ends().into_iter().filter(|ip| family_of(*ip) == version);
    let ends = ends.map(|ip| member(FirewallSet::Nodes, Key::EMPTY.address(ip)));
    let tunnels = plan.links().tunnels.iter().map(|tunnel| match tunnel::key(*tunnel) {
        TunnelKey::Port(key) => member(FirewallSet::TunnelPorts, key),
        TunnelKey::Protocol(key) => member(FirewallSet::TunnelProtocols, key),
    });
    ends.chain(tunnels).collect()
}

/// The element of an address that a pod or a node has.
pub fn of_taken(address: IpAddr) -> Element {
    member(FirewallSet::Taken, Key::EMPTY.address(address))
}

/// All desired elements. Those that may be many (taken addresses, identities, blocks, permissions)
/// are made one by one.
pub fn all<'a>(
    plan: &'a FirewallPlan,
    pods: &[LocalPod],
    version: Family,
    numbers: &'a Numbers,
) -> Box<dyn Iterator<Item = Element> + 'a> {
    if !plan.is_enforced() {
        return Box::new(std::iter::empty());
    }
    let is_ours = move |address: IpAddr| family_of(address) == version;
    let mut few: Vec<_> = pods.iter().flat_map(|pod| of_pod(plan, pod, version)).collect();
    few.extend(of_surroundings(plan, version));
    few.extend(of_permitted_sets(plan, version, numbers));
    let taken = Attached::of(pods).routed.then(|| plan.taken()).into_iter().flatten();
    let taken = taken.filter(move |ip| is_ours(*ip)).map(of_taken);
    let identities = plan.identities().filter(move |(address, _)| is_ours(*address));
    let identities = identities.map(|(address, id)| of_identity(address, numbers.number(id)));
    let blocks = plan.blocks().filter(move |(range, _)| is_ours(range.first));
    let blocks = blocks.map(|(range, id)| of_block(range, numbers.number(id)));
    let pod_rules = plan.pods().filter(move |(address, _)| is_ours(*address));
    let pod_rules =
        pod_rules.flat_map(|(address, pod_rules)| of_pod_rules(address, pod_rules, None, numbers));
    Box::new(sorted(few).into_iter().chain(taken).chain(identities).chain(blocks).chain(pod_rules))
}

/// Sorted, without duplicates: two records may have one interface, and several bridges one Ethernet
/// address.
pub(super) fn sorted(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_unstable_by_key(|element| (element.set, element.key));
    elements.dedup_by_key(|element| (element.set, element.key));
    elements
}
