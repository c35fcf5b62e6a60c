//! What the ports of pods get: from other ports of the bridge, and from the node itself.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::set::BridgeSet;
use super::{
    ARP, FILTER_PRIORITY, IPV4, IPV6, LISTENER_QUERY, LISTENER_REPORT, NEIGHBOUR_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION, TAGS, back, goto,
    is_frame, jump,
};
use crate::firewall::drop_reason::DropReason;
use crate::firewall::rule::{base, chain, dropped, rule, to, types};
use crate::firewall::tunnel;
use denizen_model::Family;
use denizen_nft::{Chain, Field, Hook, Key, Rule, Statement, Verdict};
use denizen_plan::Direction;

/// Longer messages of ARP and of neighbour discovery carry something else (RFC 826 and RFC 4861
/// need 28 and 72 bytes).
const SHORT: u32 = 128;

/// The chains, each before those that refer to it.
pub(super) fn chains() -> [Chain; 6] {
    [announcements(), from_node(), receiver(), neighbours(), forward(), output()]
}

/// Matches messages as short as those of ARP and neighbour discovery.
fn is_short() -> Statement {
    Statement::Bits { field: Field::Length, mask: !(SHORT - 1), equal: true, value: 0 }
}

/// Matches longer messages.
fn is_long() -> Statement {
    Statement::Bits { field: Field::Length, mask: !(SHORT - 1), equal: false, value: 0 }
}

/// Drops without counting: every host solicits routers and joins groups all the time.
fn not_for_pods(matches: Vec<Statement>) -> Rule {
    let why = "for routers and listeners, and no pod is one for another";
    rule(why, matches.into_iter().chain([to(Verdict::Drop)]))
}

fn forward() -> Chain {
    let no_frame = |ether_type| Statement::NotEquals(Field::FrameType, Key::EMPTY.port(ether_type));
    let to_port = |set: BridgeSet| set.has_of(&[Field::OutputInterface]);
    let judged = "IP rules judge it at the node's interface";
    let mut rules = vec![
        rule(judged, [to_port(BridgeSet::NodeVeths), back()]),
        rule("goes to an isolated pod", [BridgeSet::IngressIsolated.has(), jump("receiver")]),
        rule(judged, [BridgeSet::NodeVeths.has(), back()]),
        rule(
            "a restricted pod sends to another pod",
            [BridgeSet::Restricted.has(), to_port(BridgeSet::Ports), jump("neighbours")],
        ),
        dropped(
            DropReason::Frame,
            [vec![to_port(BridgeSet::Restricted)], [IPV4, IPV6, ARP].map(no_frame).into()].concat(),
        ),
    ];
    let why = DropReason::Refused(Direction::Ingress);
    for field in [Field::InputInterface, Field::OutputInterface] {
        rules.extend(Family::BOTH.map(|version| {
            dropped(why, vec![BridgeSet::CutOff.has_of(&[field]), Statement::carries(version)])
        }));
    }
    let why = "what one port of a bridge sends to another";
    base("forward", Hook::Forward, FILTER_PRIORITY, why, rules)
}

fn output() -> Chain {
    let isolated = [BridgeSet::IngressIsolated.has(), goto("from-node")];
    let rules = vec![rule("goes to an isolated pod", isolated)];
    let why = "what the node sends or routes to a bridge's ports";
    base("output", Hook::Output, FILTER_PRIORITY, why, rules)
}

/// Returns for packets to an address of the pod behind the port.
fn for_pod(version: Family) -> Rule {
    let (ether_type, set) = match version {
        Family::V4 => (IPV4, BridgeSet::Addresses4),
        Family::V6 => (IPV6, BridgeSet::Addresses6),
    };
    let has = set.has_of(&[Field::OutputInterface, Field::Destination(version)]);
    rule("for an address of the pod: IP rules judge it", [is_frame(ether_type), has, back()])
}

/// Returns for broadcasts, and for packets to groups within these prefixes.
fn for_groups(why: &'static str, v4: (Ipv4Addr, u8), v6: (Ipv6Addr, u8)) -> [Rule; 3] {
    let of = |version| Field::Destination(version);
    let everybody = Key::EMPTY.address(Ipv4Addr::BROADCAST.into());
    [
        (IPV4, Statement::Within(of(Family::V4), v4.0.into(), v4.1)),
        (IPV4, Statement::Equals(of(Family::V4), everybody)),
        (IPV6, Statement::Within(of(Family::V6), v6.0.into(), v6.1)),
    ]
    .map(|(ether_type, is_for)| rule(why, [is_frame(ether_type), is_for, back()]))
}

/// What the node routes to an isolated pod must be for one of the pod's addresses. Where it is for
/// another address, a pod has answered for that address: with an Ethernet address that the bridge
/// floods, or in IPv6 with the isolated pod's. The node's own messages pass: it routes neither
/// other EtherTypes, nor what is for everybody on a link, nor anything with hop limit 255.
fn from_node() -> Chain {
    let link4 = (Ipv4Addr::new(224, 0, 0, 0), 24);
    let link6 = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0), 16);
    let own = Statement::Equals(Field::HopLimit, Key::EMPTY.byte(255));
    let discovery = types(Field::Icmpv6Type, ROUTER_SOLICITATION, REDIRECT);
    let mut rules: Vec<Rule> = Family::BOTH.map(for_pod).into();
    rules.extend(for_groups("for a whole link: the node routes no such packet", link4, link6));
    let why = "the node's own neighbour discovery";
    rules.push(rule(why, [is_frame(IPV6), discovery, own, back()]));
    let why = DropReason::Refused(Direction::Ingress);
    let other = [IPV4, IPV6].into_iter().chain(TAGS);
    rules.extend(other.map(|ether_type| dropped(why, vec![is_frame(ether_type)])));
    let why = "what the node may send to an isolated pod on a bridge";
    chain("from-node".into(), why, rules)
}

/// What reaches an isolated pod on a bridge must be for one of its addresses, whatever the frame's
/// header says, so that IP rules judge it. The only exceptions are queries about its addresses, and
/// routers' announcements.
fn receiver() -> Chain {
    let is_unjudged = |(first, last)| {
        let matches = [is_frame(IPV6), types(Field::Icmpv6Type, first, last)];
        rule("IP rules do not judge it", matches.into_iter().chain([goto("announcements")]))
    };
    let node = "the node sends or routes it, from behind a port";
    let mut rules =
        vec![for_pod(Family::V4), rule(node, [BridgeSet::NodeVeths.has(), goto("from-node")])];
    rules.extend([(LISTENER_QUERY, REDIRECT), (LISTENER_REPORT, LISTENER_REPORT)].map(is_unjudged));
    rules.extend([
        for_pod(Family::V6),
        rule("finds the Ethernet address of the pod", [is_frame(ARP), is_short(), back()]),
        dropped(DropReason::Refused(Direction::Ingress), Vec::new()),
    ]);
    chain("receiver".into(), "what may reach an isolated pod on a bridge", rules)
}

/// The permitted messages of discovery: neighbours' queries for addresses, and routers'
/// announcements and queries.
fn announcements() -> Chain {
    let is = |first, last| vec![is_frame(IPV6), types(Field::Icmpv6Type, first, last)];
    let mut asks = is(NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT);
    asks.extend([is_short(), back()]);
    let routers = "announcements and questions of routers";
    let queries = is(LISTENER_QUERY, LISTENER_QUERY);
    let rules = vec![
        rule("finds the Ethernet address of the pod", asks),
        not_for_pods(vec![BridgeSet::Ports.has()]),
        rule(routers, [queries, vec![tunnel::is_multicast(Family::V6), back()]].concat()),
        rule(routers, [is(ROUTER_ADVERTISEMENT, REDIRECT), vec![back()]].concat()),
        dropped(DropReason::Refused(Direction::Ingress), Vec::new()),
    ];
    chain("announcements".into(), "which discovery may reach an isolated pod on a bridge", rules)
}

/// What a restricted pod sends to another pod's port. Neighbour discovery and ARP are not judged by
/// policies. So they may carry nothing else, and messages for routers do not reach pods.
///
/// IP rules judge the address that a packet is for, whoever gets it. So a packet of a pod that is
/// isolated for egress must be for an address of the pod that gets it: under any other one, that
/// pod would be reached wherever a policy permits the other address.
fn neighbours() -> Chain {
    let why = DropReason::Refused(Direction::Egress);
    let icmpv6 = |first, last| vec![is_frame(IPV6), types(Field::Icmpv6Type, first, last)];
    let neighbour = || icmpv6(NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT);
    let long = |matches: Vec<Statement>| dropped(why, [matches, vec![is_long()]].concat());
    let finds = |matches: Vec<Statement>| {
        rule("finds an Ethernet address", matches.into_iter().chain([back()]))
    };
    let mut rules = vec![
        for_pod(Family::V4),
        not_for_pods(icmpv6(LISTENER_QUERY, ROUTER_SOLICITATION)),
        not_for_pods(icmpv6(LISTENER_REPORT, LISTENER_REPORT)),
        long(neighbour()),
        finds(neighbour()),
        for_pod(Family::V6),
        long(vec![is_frame(ARP)]),
        finds(vec![is_frame(ARP)]),
    ];
    let groups4 = (Ipv4Addr::new(224, 0, 0, 0), 4);
    let groups6 = (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
    let group = "a policy permits a group by its address, whoever is in it";
    rules.extend(for_groups(group, groups4, groups6));
    rules.push(dropped(why, vec![BridgeSet::EgressIsolated.has()]));
    chain("neighbours".into(), "what a restricted pod may send to other pods on the bridge", rules)
}
