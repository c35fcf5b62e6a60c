//! The table of bridges: what IP rules cannot see of pods that share a bridge.
//!
//! A frame between two ports of a bridge reaches IP rules only through bridge netfilter, and IP
//! rules see the bridge, not the port. So the rules here check what a pod's recorded port may send:
//! untagged IPv4, IPv6 and ARP, with the Ethernet and IP addresses of the pod. If no policy
//! restricts the pod, they drop only frames that impersonate another pod, a node or a router, and
//! tagged frames, which no rule can look into.
//!
//! A frame to an isolated pod must be for one of the pod's addresses, so that IP rules judge it.
//! The same holds for what the node routes to the pod. Only the messages by which neighbours and
//! routers are found pass unjudged. If a policy isolates the sender for egress, a frame to any
//! other pod must be for one of that pod's addresses. Where frames do not pass bridge netfilter,
//! restricted pods are cut off from their neighbours.

mod delivery;
mod set;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use self::set::BridgeSet;
use super::TABLE;
use super::attached::Attached;
use super::drop_reason::DropReason;
use super::element::sorted;
use super::program::discovery_from_link;
use super::rule::{base, chain, dropped, is_unspecified, rule, to, types};
use super::tunnel;
use denizen_model::{Family, LocalPod};
use denizen_nft::{
    Chain, Element, Field, Hook, Key, Rule, Schema, Statement, TableFamily, Value, Verdict,
};
use denizen_plan::{Direction, FirewallPlan, Isolation, KnownPods};

/// Before bridge netfilter (`NF_BR_PRI_BRNF`, 0) calls the IP hooks.
const SOURCE_PRIORITY: i32 = -300;
/// `filter` of a bridge.
const FILTER_PRIORITY: i32 = -200;

/// ETH_P_8021Q and ETH_P_8021AD.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// ETH_P_IP, ETH_P_IPV6 and ETH_P_ARP.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

/// IPPROTO_ICMPV6.
const ICMPV6: u8 = 58;

// Types of ICMPv6 messages (RFC 2710, RFC 4861, RFC 3810).
const LISTENER_QUERY: u8 = 130;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const LISTENER_REPORT: u8 = 143;

pub fn schema() -> Schema {
    Schema {
        family: TableFamily::Bridge,
        name: TABLE,
        comment: "Denizen: NetworkPolicies for this node's pods on bridges",
        sets: set::all().map(BridgeSet::declared).collect(),
    }
}

/// All chains, each before those that refer to it.
pub fn all(pods: KnownPods) -> Vec<Chain> {
    vec![
        tunnels(pods),
        macs(),
        advertised(),
        discovery(),
        ipv4(),
        ipv6(),
        arp_address(),
        arp(),
        frames(),
        sources(),
        prerouting(),
    ]
    .into_iter()
    .chain(delivery::chains())
    .collect()
}

fn jump(chain: &str) -> Statement {
    to(Verdict::Jump(chain.into()))
}

fn goto(chain: &str) -> Statement {
    to(Verdict::Goto(chain.into()))
}

fn back() -> Statement {
    to(Verdict::Return)
}

/// Matches the type in the frame's own header: the tag's type, if the frame is tagged.
fn is_frame(ether_type: u16) -> Statement {
    Statement::Equals(Field::FrameType, Key::EMPTY.port(ether_type))
}

fn spoofed(matches: Vec<Statement>) -> Rule {
    dropped(DropReason::Spoofed, matches)
}

fn prerouting() -> Chain {
    let rules = vec![rule("comes from a pod's port", [BridgeSet::Ports.has(), jump("sources")])];
    let why = "what arrives from pods' ports, before IP rules see it";
    base("prerouting", Hook::Prerouting, SOURCE_PRIORITY, why, rules)
}

/// The rules that ordinary packets match come first.
fn sources() -> Chain {
    let own = "the Ethernet and the IP address of the pod";
    let other = "another source, or another Ethernet address";
    let icmpv6 = types(Field::Protocol, ICMPV6, ICMPV6);
    let mut rules: Vec<Rule> =
        tunnel::jumps(BridgeSet::TunnelPorts.has(), BridgeSet::TunnelProtocols.has()).into();
    rules.extend([
        rule(own, [is_frame(IPV4), BridgeSet::Macs.has(), BridgeSet::Addresses4.has(), back()]),
        rule("what ICMPv6 announces", [is_frame(IPV6), icmpv6, jump("advertised")]),
        rule(own, [is_frame(IPV6), BridgeSet::Macs.has(), BridgeSet::Addresses6.has(), back()]),
        rule(other, [is_frame(IPV4), goto("ipv4")]),
        rule(other, [is_frame(IPV6), goto("ipv6")]),
        rule("whose addresses it says it has", [is_frame(ARP), goto("arp-ether")]),
        rule("tagged, or neither IPv4, IPv6 nor ARP", [goto("frames")]),
    ]);
    chain("sources".into(), "what a pod's port may send", rules)
}

/// A packet encapsulated for a tunnel of the node would come out with any inner source, and be
/// judged by that.
fn tunnels(pods: KnownPods) -> Chain {
    let why = "what pods send to where nodes take packets out of packets";
    if pods == KnownPods::Some {
        return chain("tunnels".into(), why, vec![tunnel::to_anybody()]);
    }
    let mut rules = vec![
        dropped(DropReason::Tunnel, vec![BridgeSet::Nodes4.has()]),
        dropped(DropReason::Tunnel, vec![BridgeSet::Nodes6.has()]),
    ];
    rules.extend(
        Family::BOTH
            .into_iter()
            .flat_map(|version| tunnel::to_special(version, &[Statement::carries(version)])),
    );
    chain("tunnels".into(), why, rules)
}

fn macs() -> Chain {
    let rules = vec![
        rule("the pod's own", [BridgeSet::Macs.has(), back()]),
        spoofed(vec![BridgeSet::Restricted.has()]),
        spoofed(vec![BridgeSet::TakenMacs.has()]),
    ];
    chain("macs".into(), "a pod has its own Ethernet address, or at least nobody else's", rules)
}

/// Pods are no routers. A neighbour advertisement says who has an address, and so does a
/// solicitation from the unspecified address (duplicate address detection).
fn advertised() -> Chain {
    let is = |kind| vec![Statement::carries(Family::V6), types(Field::Icmpv6Type, kind, kind)];
    let with = |matches: &[Statement], more: Vec<Statement>| [matches, &more].concat();
    let mut rules =
        [ROUTER_ADVERTISEMENT, REDIRECT].map(|kind| dropped(DropReason::Router, is(kind))).to_vec();
    let claim = with(&is(NEIGHBOUR_SOLICITATION), vec![is_unspecified()]);
    for matches in [is(NEIGHBOUR_ADVERTISEMENT), claim] {
        rules.extend([
            rule("an address of the pod", with(&matches, vec![BridgeSet::Targets.has(), back()])),
            spoofed(with(&matches, vec![BridgeSet::Restricted.has()])),
            spoofed(with(&matches, vec![BridgeSet::TakenTargets.has()])),
        ]);
    }
    let why = "a pod announces its own addresses, or at least nobody else's, and no routes";
    chain("advertised".into(), why, rules)
}

fn discovery() -> Chain {
    let mut rules = carrying_ipv6(discovery_from_link());
    rules.push(spoofed(Vec::new()));
    let why = "what a restricted pod may send without one of its addresses";
    chain("discovery".into(), why, rules)
}

fn ipv4() -> Chain {
    let rules = vec![
        rule("whose Ethernet address", [jump("macs")]),
        rule("an address of the pod", [BridgeSet::Addresses4.has(), back()]),
        spoofed(vec![BridgeSet::Restricted.has()]),
        spoofed(vec![BridgeSet::Taken4.has()]),
    ];
    chain("ipv4".into(), "a pod has its own addresses, or at least nobody else's", rules)
}

fn ipv6() -> Chain {
    let rules = vec![
        rule("whose Ethernet address", [jump("macs")]),
        rule("an address of the pod", [BridgeSet::Addresses6.has(), back()]),
        spoofed(vec![BridgeSet::Taken6.has()]),
        rule("a policy restricts the pod", [BridgeSet::Restricted.has(), goto("discovery")]),
    ];
    chain("ipv6".into(), "a pod has its own addresses, or at least nobody else's", rules)
}

fn arp() -> Chain {
    let own = BridgeSet::Macs.has_of(&[Field::InputInterface, Field::ArpSenderEther]);
    let rules = vec![
        rule("whose Ethernet address", [jump("macs")]),
        rule("says the Ethernet address of the pod", [own, goto("arp-address")]),
        spoofed(vec![BridgeSet::Restricted.has()]),
        spoofed(vec![BridgeSet::TakenMacs.has_of(&[Field::ArpSenderEther])]),
        rule("says another Ethernet address, which is nobody's", [goto("arp-address")]),
    ];
    chain("arp-ether".into(), "which Ethernet address an ARP message says its sender has", rules)
}

/// Before a pod uses a new address, it asks who has that address, with an unspecified sender
/// address (RFC 5227).
fn arp_address() -> Chain {
    let own = BridgeSet::Addresses4.has_of(&[Field::InputInterface, Field::ArpSender]);
    let none = Key::EMPTY.address(Ipv4Addr::UNSPECIFIED.into());
    let rules = vec![
        rule("says that it has an address of the pod", [own, back()]),
        rule(
            "asks who has an address, before it takes it",
            [Statement::Equals(Field::ArpSender, none), back()],
        ),
        spoofed(vec![BridgeSet::Restricted.has()]),
        spoofed(vec![BridgeSet::Taken4.has_of(&[Field::ArpSender])]),
    ];
    chain("arp-address".into(), "which IPv4 address an ARP message says its sender has", rules)
}

/// No rule can look behind a tag, and the receiver may remove it.
fn frames() -> Chain {
    let mut rules = vec![dropped(DropReason::Frame, vec![BridgeSet::Restricted.has()])];
    rules.extend(TAGS.map(|tag| dropped(DropReason::Frame, vec![is_frame(tag)])));
    rules.push(rule("whose Ethernet address", [goto("macs")]));
    let why = "what no rule can look into: nothing from a restricted pod, and no tags";
    chain("frames".into(), why, rules)
}

/// Puts a test for IPv6 before each rule's own tests, which need it.
fn carrying_ipv6(rules: Vec<Rule>) -> Vec<Rule> {
    let carries = |rule: Rule| {
        let statements = [vec![Statement::carries(Family::V6)], rule.statements].concat();
        Rule { statements, ..rule }
    };
    rules.into_iter().map(carries).collect()
}

fn member(set: BridgeSet, key: Key) -> Element {
    Element { set: set.id(), key, value: Value::Member, comment: None }
}

/// All desired elements. Those of taken addresses, which may be many, are made one by one.
/// `unfiltered_bridges`: bridges whose frames IP rules do not see.
pub fn elements<'a>(
    plan: &'a FirewallPlan,
    pods: &[LocalPod],
    unfiltered_bridges: &BTreeSet<Arc<str>>,
) -> Box<dyn Iterator<Item = Element> + 'a> {
    if !plan.is_enforced() {
        return Box::new(std::iter::empty());
    }
    let of_pods = pods.iter().flat_map(|pod| of_pod(plan, pod, unfiltered_bridges));
    let few = of_pods.chain(of_surroundings(plan)).collect();
    let taken = Attached::of(pods).bridged.then(|| plan.taken()).into_iter().flatten();
    Box::new(sorted(few).into_iter().chain(taken.flat_map(of_taken)))
}

/// The elements of a recorded pod, if it is on a bridge.
pub(super) fn of_pod(
    plan: &FirewallPlan,
    pod: &LocalPod,
    unfiltered_bridges: &BTreeSet<Arc<str>>,
) -> Vec<Element> {
    let Some(port) = pod.bridge_port() else { return Vec::new() };
    let key = Key::EMPTY.interface(port);
    let mut all = vec![member(BridgeSet::Ports, key)];
    if let Some(mac) = pod.mac {
        all.push(member(BridgeSet::Macs, key.ether(mac.0)));
        all.push(member(BridgeSet::TakenMacs, Key::EMPTY.ether(mac.0)));
    }
    for ip in plan.addresses_of(pod) {
        match ip {
            IpAddr::V4(_) => all.push(member(BridgeSet::Addresses4, key.address(ip))),
            IpAddr::V6(_) => {
                let sets = [BridgeSet::Addresses6, BridgeSet::Targets];
                all.extend(sets.map(|set| member(set, key.address(ip))));
            }
        }
    }
    let isolated = [
        (Direction::Ingress, BridgeSet::IngressIsolated),
        (Direction::Egress, BridgeSet::EgressIsolated),
    ];
    for (direction, set) in isolated {
        let mut judged = pod.ips.iter().filter_map(|ip| plan.pod_rules(*ip));
        if judged.any(|pod_rules| pod_rules.of(direction).isolation != Isolation::Open) {
            all.push(member(set, key));
        }
    }
    if plan.is_confined(pod) {
        all.push(member(BridgeSet::Restricted, key));
    }
    if plan.is_restricted(pod) {
        // IP rules see no frames in VLANs either.
        if pod.is_in_vlan() || unfiltered_bridges.contains(&pod.interface) {
            all.push(member(BridgeSet::CutOff, key));
        }
    }
    all
}

/// The elements of nodes, bridges and tunnels.
pub(super) fn of_surroundings(plan: &FirewallPlan) -> Vec<Element> {
    let links = plan.links();
    let bridges =
        links.bridges.iter().map(|mac| member(BridgeSet::TakenMacs, Key::EMPTY.ether(mac.0)));
    let veth = |name: &Arc<str>| member(BridgeSet::NodeVeths, Key::EMPTY.interface(name));
    let veths = links.veths.iter().map(veth);
    let nodes = plan.tunnel_ends().into_iter().map(|ip| match ip {
        IpAddr::V4(_) => member(BridgeSet::Nodes4, Key::EMPTY.address(ip)),
        IpAddr::V6(_) => member(BridgeSet::Nodes6, Key::EMPTY.address(ip)),
    });
    let tunnels = links.tunnels.iter().map(|tunnel| match tunnel::key(*tunnel) {
        tunnel::TunnelKey::Port(key) => member(BridgeSet::TunnelPorts, key),
        tunnel::TunnelKey::Protocol(key) => member(BridgeSet::TunnelProtocols, key),
    });
    bridges.chain(veths).chain(nodes).chain(tunnels).collect()
}

/// The elements of an address that a pod or a node has.
pub(super) fn of_taken(address: IpAddr) -> Vec<Element> {
    let key = Key::EMPTY.address(address);
    match address {
        IpAddr::V4(_) => vec![member(BridgeSet::Taken4, key)],
        IpAddr::V6(_) => vec![member(BridgeSet::Taken6, key), member(BridgeSet::TakenTargets, key)],
    }
}
