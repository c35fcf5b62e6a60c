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
    AddressRange, Direction, FirewallPlan, Function, Isolation, PortKey, Sides, Tiered,
};

pub(super) fn member(set: FirewallSet, key: Key) -> Element {
    Element { set: set.id(), key, value: Value::Member, comment: None }
}

/// The elements that say how a pod's address is judged. Of the many cells of
/// ClusterNetworkPolicies, only those that `others` do not have.
pub fn of_sides(
    address: IpAddr,
    sides: &Sides,
    others: Option<&Sides>,
    numbers: &Numbers,
) -> Vec<Element> {
    let key = Key::EMPTY.address(address);
    if Direction::BOTH.iter().all(|side| sides.of(*side).isolation == Isolation::Pending) {
        return vec![member(FirewallSet::Pending, key)];
    }
    let mut elements = Vec::new();
    for direction in Direction::BOTH {
        let side = sides.of(direction);
        match side.isolation {
            Isolation::Open => continue,
            // Without any permission.
            Isolation::Pending | Isolation::Isolated => {
                elements.push(member(FirewallSet::Isolated(direction), key));
            }
        }
        let mut with_ranges = None;
        for permission in side.permissions.iter() {
            let peer = permission.peer.map_or(0, |id| numbers.number(id));
            let is_range =
                matches!(permission.ports, PortKey::Range(_, first, last) if first < last);
            // Those of one peer follow each other.
            if is_range && with_ranges.replace(peer) != Some(peer) {
                let key = key.number(peer);
                elements.push(member(FirewallSet::WithPortRanges(direction), key));
            }
            of_ports(key, direction, peer, permission.ports, &mut elements);
        }
        let others = others.and_then(|others| others.of(direction).tiered.as_ref());
        let tiered = side.tiered.iter();
        elements.extend(
            tiered.flat_map(|tiered| of_cells(address, direction, tiered, others, numbers)),
        );
    }
    if sides.is_restricted() {
        elements.push(member(FirewallSet::Itself, key.address(address)));
    }
    if sides.is_tiered() {
        elements.push(member(FirewallSet::Tiered, key));
    }
    elements
}

/// The cells of a pod that ClusterNetworkPolicies select, one for each peer; only those in which
/// `others` differ.
fn of_cells<'a>(
    pod: IpAddr,
    direction: Direction,
    tiered: &'a Tiered,
    others: Option<&'a Tiered>,
    numbers: &'a Numbers,
) -> impl Iterator<Item = Element> + 'a {
    let peer = |id: Option<_>| id.map_or(NOBODY, |id| numbers.number(id));
    let cells = tiered.cells.beyond(others.map(|others| &others.cells));
    let cells = cells.map(move |(id, function)| (peer(*id), function));
    let cells = cells.chain([(ITSELF, &tiered.itself)]);
    // A missing cell means: nothing passes.
    let cells = cells.filter(|(_, function)| !function.is_none());
    cells.map(move |(peer, function)| Element {
        set: FirewallSet::Cells(direction).id(),
        key: Key::EMPTY.address(pod).number(peer),
        value: Value::Data(Data::EMPTY.number(numbers.function(function))),
        comment: None,
    })
}

/// The functions of all pods of an IP version.
pub fn functions_of(plan: &FirewallPlan, version: Option<Family>) -> HashSet<&Function> {
    let is_of_version = |address| version.is_none_or(|version| family_of(address) == version);
    let pods = plan.pods().filter(|(address, _)| is_of_version(*address));
    let sides = pods.flat_map(|(_, sides)| Direction::BOTH.map(|direction| sides.of(direction)));
    // Pods of one class share their cells.
    let (mut seen, mut all) = (HashSet::new(), HashSet::new());
    for tiered in sides.filter_map(|side| side.tiered.as_ref()) {
        all.insert(&tiered.itself);
        if seen.insert(tiered.cells.address()) {
            all.extend(tiered.cells.functions());
        }
    }
    all
}

/// The elements that say what each function permits. The functions that permit everything and
/// nothing need none.
pub fn of_functions(plan: &FirewallPlan, version: Family, numbers: &Numbers) -> Vec<Element> {
    let functions = functions_of(plan, Some(version)).into_iter();
    let mut elements = Vec::new();
    for function in functions.filter(|function| !function.is_all() && !function.is_none()) {
        let id = numbers.function(function);
        elements.extend(function.spans().flat_map(|(protocol, (first, last))| {
            let key = move |port| Key::EMPTY.byte(protocol.number()).port(port).number(id);
            parts(first, last).into_iter().map(move |part| match part {
                PortPart::Port(port) => member(FirewallSet::FunctionPorts, key(port)),
                PortPart::Prefix(prefix) => member(FirewallSet::FunctionPortRanges, key(prefix)),
            })
        }));
        if function.passes_others() {
            elements.push(member(FirewallSet::FunctionOthers, Key::EMPTY.number(id)));
        }
    }
    elements
}

/// Adds what a pod may do with a peer.
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
    let mut judged = pod.ips.iter().filter_map(|ip| plan.sides(*ip));
    if judged.any(|sides| sides.ingress.isolation != Isolation::Open) {
        elements.push(member(FirewallSet::IsolatedInterfaces, interface));
    }
    elements
}

/// The elements of nodes and tunnels.
pub fn of_surroundings(plan: &FirewallPlan, version: Family) -> Vec<Element> {
    let ends = plan.tunnel_ends().filter(|ip| family_of(*ip) == version);
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

/// All desired elements.
pub fn all(
    plan: &FirewallPlan,
    pods: &[LocalPod],
    version: Family,
    numbers: &Numbers,
) -> Vec<Element> {
    if !plan.is_enforced() {
        return Vec::new();
    }
    let is_ours = |address: IpAddr| family_of(address) == version;
    let mut elements: Vec<_> = pods.iter().flat_map(|pod| of_pod(plan, pod, version)).collect();
    elements.extend(of_surroundings(plan, version));
    if Attached::of(pods).routed {
        elements.extend(plan.taken().into_iter().filter(|ip| is_ours(*ip)).map(of_taken));
    }
    let identities = plan.identities().filter(|(address, _)| is_ours(*address));
    elements.extend(identities.map(|(address, id)| of_identity(address, numbers.number(id))));
    let blocks = plan.blocks().filter(|(range, _)| is_ours(range.first));
    elements.extend(blocks.map(|(range, id)| of_block(range, numbers.number(id))));
    elements.extend(of_functions(plan, version, numbers));
    for (address, sides) in plan.pods().filter(|(address, _)| is_ours(*address)) {
        elements.extend(of_sides(address, sides, None, numbers));
    }
    elements.sort_unstable_by_key(|element| (element.set, element.key));
    elements.dedup_by_key(|element| (element.set, element.key));
    elements
}
