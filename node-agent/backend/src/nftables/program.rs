//! The constant chains, and the chains of a size class.
//!
//! Services and endpoints are data in maps. A service's element in [`ServiceSet::Services`] names
//! one chain, and that one lookup decides everything about it at once (where to, masqueraded or
//! not), so a packet that races with a commit sees the state before it or after it, never a
//! mixture.

use super::affinity;
use super::draw::cascade;
use super::local::{FORWARD_PRIORITY, bridge_chains, clear_port_bit, local_pod_matches};
use super::name::{ChainName, Class, Group, ServiceSet, ServiceTable};
use super::rule::{
    SetStatements, back, base, chain, clear_scratch, comes_in_by, dropped, goes_to,
    goes_to_this_node, goto, is_first_packet, is_later_packet, is_marked, is_over, is_scratched,
    is_translated, is_unanswered, jump, mark, mark_connection, prioritize, refused, rule, unmark,
};
use super::source_range;
use super::table_config::TableConfig;
use crate::loopback::loopback;
use crate::why::Why;
use denizen_model::{Family, Protocol};
use denizen_nft::{BaseChain, Chain, ChainKind, Hook, Reject, Rule, Statement};
use denizen_plan::{MarkBit, NodeSide};
use ipnetwork::IpNetwork;

/// Before kube-proxy's `dstnat` (-100), so that denizen decides while another's rules are still
/// there.
const DESTINATION_PRIORITY: i32 = -110;
/// `raw`: before connection tracking, which gives answers to loopback connections their loopback
/// destination back. Those answers must pass.
const RAW_PRIORITY: i32 = -300;
/// `srcnat`.
const SOURCE_PRIORITY: i32 = 100;
/// `filter`: before IPVS (`NF_IP_PRI_NAT_SRC - 1`, 99).
const INPUT: BaseChain = BaseChain { kind: ChainKind::Filter, hook: Hook::Input, priority: 0 };

/// The constant chains, each before those that refer to it.
pub fn chains(table_family: ServiceTable, config: &TableConfig) -> Vec<Chain> {
    let sets = SetStatements(table_family);
    match table_family {
        ServiceTable::Ip(Family::V4) => {
            ip_chains(sets, Family::V4, config).into_iter().chain([martians()]).collect()
        }
        // IPv6 has no `route_localnet`.
        ServiceTable::Ip(Family::V6) => ip_chains(sets, Family::V6, config),
        ServiceTable::Bridge => bridge_chains(sets, config),
        ServiceTable::Arp => vec![arp_input(sets)],
    }
}

fn ip_chains(sets: SetStatements, family: Family, config: &TableConfig) -> Vec<Chain> {
    let note = |set| rule(Why::NoteFlow, [sets.note(set)]);
    let refused = [note(ServiceSet::RefusedNoEndpoints)].into_iter().chain(refuse(
        &[],
        Why::RefuseTcp,
        Why::Refuse,
    ));
    let kept_away =
        [note(ServiceSet::DroppedNoLocalEndpoints), rule(Why::NoLocalEndpoint, dropped())];
    let node_ports = rule(Why::FindNodePort, [sets.go_where(ServiceSet::NodePorts)]);
    let jumped_to = [
        chain(ChainName::NoEndpoints, Why::Refuse, refused.collect()),
        chain(ChainName::NoLocalEndpoints, Why::NoLocalEndpoint, kept_away.into()),
        chain(ChainName::MarkUnlessLocal, Why::AskWhoSends, mark_unless_local(sets, config)),
        chain(ChainName::NodePorts, Why::FindNodePort, vec![node_ports]),
        chain(ChainName::SourceRanges, Why::Restricted, source_ranges(sets, family)),
        chain(ChainName::UnusedPort, Why::UnusedPort, unused_port(sets)),
        chain(ChainName::Services, Why::Dispatch, dispatch(sets)),
        chain(
            ChainName::LocalPolicy,
            Why::StayOnNode,
            local_policy(sets, config, ServiceSet::LocalServices, back()),
        ),
        chain(ChainName::NodePortPolicy, Why::StayOnNode, node_port_policy(sets, config)),
    ];
    jumped_to
        .into_iter()
        .chain(base_chains(sets, family, config))
        .chain(egress(sets, config).into_iter().flatten())
        .chain(unallocated(config).into_iter().flatten())
        .chain(clear_port_bit(config))
        .chain(config.by_ipvs.then(|| untranslated(sets)))
        .collect()
}

/// Where packets enter. A service's own address is never looked up among the node ports, whichever
/// policy the service with that node port has.
fn base_chains(sets: SetStatements, family: Family, config: &TableConfig) -> [Chain; 3] {
    let masquerade = config.node_side.masquerade_bit;
    // Only packets that are not a service's come this far, so that only these cost a look-up of
    // the route.
    let at_node = |to| {
        let is_served = match config.node_ports_everywhere {
            true => goes_to_this_node(),
            false => sets.is_in(ServiceSet::NodePortAddresses),
        };
        rule(Why::OwnAddress, [is_served, goto(to)])
    };
    let restricted = restricted(sets);
    let services = rule(Why::Dispatch, [jump(ChainName::Services)]);
    let has_loopback = !config.node_ports_everywhere || config.node_ports_on_loopback;
    let unserved = [goes_to(loopback(family)), back()];
    let unserved = (!has_loopback).then(|| rule(Why::LoopbackUnserved, unserved));
    let mut arriving = vec![
        restricted.clone(),
        rule(Why::AskLocalPolicy, [jump(ChainName::LocalPolicy)]),
        services.clone(),
    ];
    arriving.extend(unserved.clone());
    arriving.push(at_node(ChainName::NodePortPolicy));
    // Connections that IPVS translates do not match `is_translated`. So with IPVS the set alone
    // decides, at the cost of a lookup: only translation leads a packet from a pod to itself
    // through this node.
    let translated = (!config.by_ipvs).then(is_translated);
    let hairpin = [sets.is_in(ServiceSet::Hairpin), Statement::Masquerade];
    let leaving = vec![
        rule(Why::GiveBackPriority, [is_scratched(), clear_scratch()]),
        rule(Why::MarkedAbove, [is_marked(masquerade), unmark(masquerade), Statement::Masquerade]),
        rule(Why::Hairpin, translated.into_iter().chain(hairpin)),
    ];
    let nat = |hook, priority| BaseChain { kind: ChainKind::Nat, hook, priority };
    let before = |hook| nat(hook, DESTINATION_PRIORITY);
    let mut sending = vec![restricted, services];
    sending.extend(unserved);
    sending.push(at_node(ChainName::NodePorts));
    [
        base(ChainName::Prerouting, before(Hook::Prerouting), Why::Arriving, arriving),
        base(ChainName::Output, before(Hook::Output), Why::Sending, sending),
        base(
            ChainName::Postrouting,
            nat(Hook::Postrouting, SOURCE_PRIORITY),
            Why::Leaving,
            leaving,
        ),
    ]
}

/// `route_localnet` lets a neighbour's packets to 127.0.0.1 in (CVE-2020-8558). The rule is always
/// there, because anybody may set `route_localnet` at any time, for all interfaces or for one. The
/// address comes first: it is the cheapest test that other packets fail.
fn martians() -> Chain {
    let addressed = goes_to(loopback(Family::V4));
    let rules = vec![
        rule(Why::Martian, [addressed.clone(), comes_in_by("lo"), back()]),
        rule(Why::Martian, [addressed].into_iter().chain(dropped())),
    ];
    let base_chain =
        BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: RAW_PRIORITY };
    base(ChainName::Martians, base_chain, Why::Martian, rules)
}

/// Refuses later packets of connections to a cluster IP that nothing has translated. They are
/// recognised by their answers, which come from the cluster IP itself. A connection that IPVS
/// translates, after these rules, is answered from its endpoint from the first packet on.
fn untranslated(sets: SetStatements) -> Chain {
    let stale = [
        sets.is_in(ServiceSet::ClusterIps),
        is_later_packet(),
        sets.is_answered_from(ServiceSet::ClusterIps),
    ];
    let rules = refuse(&stale, Why::Untranslated, Why::Untranslated).into();
    base(ChainName::Input, INPUT, Why::Untranslated, rules)
}

/// Replaces the choice of a service after a change from the backend ipvs, whose connections go on:
/// new connections to its cluster IPs are refused, or dropped if `must_wait`, so that the client
/// tries again.
pub fn only_old_connections(sets: SetStatements, must_wait: bool) -> Chain {
    let why = Why::OnlyOldConnections;
    let is_to = sets.is_in(ServiceSet::ClusterIps);
    // The node's own packets come in again through `lo`. Connection tracking knows them by then, so
    // `is_first_packet` does not match.
    let new = [vec![is_first_packet()], vec![comes_in_by("lo"), is_unanswered()]];
    let rules = new.into_iter().flat_map(|new| {
        let matches = [vec![is_to.clone()], new].concat();
        match must_wait {
            true => vec![rule(why, matches.into_iter().chain(dropped()))],
            false => refuse(&matches, why, why).into(),
        }
    });
    base(ChainName::Input, INPUT, why, rules.collect())
}

/// The kernel answers ARP for every address with a local route, on every link. It does not answer
/// neighbour discovery: that wants the address on the link's own device.
fn arp_input(sets: SetStatements) -> Chain {
    let matches = [sets.is_in(ServiceSet::VirtualIps)];
    let rules = vec![rule(Why::NoNeighbour, matches.into_iter().chain(dropped()))];
    let base_chain = BaseChain { kind: ChainKind::Filter, hook: Hook::ArpInput, priority: 0 };
    base(ChainName::Input, base_chain, Why::NoNeighbour, rules)
}

/// Egress masquerade. It is in the forward hook, the last one where the input interface is known,
/// and where the destination is already a service's endpoint: the ranges apply to the endpoint.
fn egress(sets: SetStatements, config: &TableConfig) -> Option<[Chain; 2]> {
    let kept = config.egress.as_ref()?.iter();
    let kept = kept.map(|range| rule(Why::StaysInside, [goes_to(*range), back()]));
    let mark = mark(config.node_side.masquerade_bit);
    let rules = kept.chain([rule(Why::GoesOut, [mark])]).collect();
    let pods = local_pod_matches(sets, config).into_iter().map(|is_local| {
        let matches = [is_first_packet()].into_iter().chain(is_local);
        rule(Why::PodsAlone, matches.chain([jump(ChainName::Egress)]))
    });
    let base_chain =
        BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: FORWARD_PRIORITY };
    Some([
        chain(ChainName::Egress, Why::GoesOut, rules),
        base(ChainName::Forward, base_chain, Why::PodsAlone, pods.collect()),
    ])
}

/// The chains of a class: those that balance, then those that mark for masquerade and go to them.
/// Policy Local from outside needs only the first.
pub fn class_chains(table_family: ServiceTable, class: Class, node_side: &NodeSide) -> Vec<Chain> {
    let sets = SetStatements(table_family);
    let mut balancing = match class.affinity {
        None => balance(sets, class),
        Some(_) => affinity::balance(sets, class),
    };
    if node_side.open_forward {
        let admit = rule(Why::Admitted, [mark_connection(MarkBit::ADMITTED)]);
        balancing.rules.insert(0, admit);
    }
    if node_side.count_connections {
        // In a rule of its own: when the set is full, the kernel goes on with the next rule.
        balancing.rules.insert(0, rule(Why::CountConnection, [sets.count_connection()]));
    }
    let memory = class.affinity.map(|seconds| affinity::memory(sets, class, seconds));
    let mut chains: Vec<Chain> = memory.into_iter().flatten().chain([balancing]).collect();
    match class.group {
        Group::Service | Group::NodePort => chains.extend(entries(class, node_side.masquerade_bit)),
        Group::LocalService | Group::LocalNodePort => {}
    }
    chains
}

/// The chain that balances a class.
fn balance(sets: SetStatements, class: Class) -> Chain {
    let choose = |slots| [sets.translate(class.group.endpoints(), slots)];
    let mut rules = cascade(class, Why::Choose, choose);
    rules.push(rule(Why::LookupRaced, dropped()));
    chain(ChainName::Balance(class), Why::Choose, rules)
}

/// The chains that mark for masquerade and then balance a class.
fn entries(class: Class, masquerade: MarkBit) -> [Chain; 2] {
    let go = rule(Why::Choose, [goto(ChainName::Balance(class))]);
    let unless_local = rule(Why::AskWhoSends, [jump(ChainName::MarkUnlessLocal)]);
    let always = rule(Why::AnyNode, [mark(masquerade)]);
    [
        chain(ChainName::Cluster(class), Why::AskWhoSends, vec![unless_local, go.clone()]),
        chain(ChainName::External(class), Why::AnyNode, vec![always, go]),
    ]
}

/// `loadBalancerSourceRanges`, checked before anything else, as in kube-proxy's nftables mode.
fn restricted(sets: SetStatements) -> Rule {
    let restricted = sets.is_in(ServiceSet::RestrictedFrontends);
    rule(Why::Restricted, [restricted, jump(ChainName::SourceRanges)])
}

/// One length of the ranges' prefixes after another. The packet's priority says which.
fn source_ranges(sets: SetStatements, family: Family) -> Vec<Rule> {
    let mut rules: Vec<Rule> = source_range::lengths(family)
        .map(|length| {
            let found = [sets.has_prefix(ServiceSet::AllowedSources, length), clear_scratch()];
            let matches = prioritize(length.into()).into_iter().chain(found);
            rule(Why::MayEnter, matches.chain([back()]))
        })
        .collect();
    rules.extend([
        rule(Why::NoteFlow, [sets.note(ServiceSet::DroppedSourceRanges)]),
        rule(Why::MayNotEnter, dropped()),
    ]);
    rules
}

fn refuse(matches: &[Statement], tcp: Why, others: Why) -> [Rule; 2] {
    let matches = || matches.iter().cloned();
    let is_tcp = is_over(Protocol::Tcp);
    [
        rule(tcp, matches().chain([is_tcp]).chain(refused(Reject::TcpReset))),
        rule(others, matches().chain(refused(Reject::PortUnreachable))),
    ]
}

/// Refuses packets to an unused port of a cluster IP, in rules of their own, so that counters and
/// traces have this reason.
fn unused_port(sets: SetStatements) -> Vec<Rule> {
    let again = rule(Why::FindServiceAgain, [sets.go_where(ServiceSet::Services)]);
    let refuse = refuse(&[], Why::UnusedPort, Why::UnusedPort);
    [again].into_iter().chain(refuse).collect()
}

fn dispatch(sets: SetStatements) -> Vec<Rule> {
    let unused = [sets.is_in(ServiceSet::ClusterIps), goto(ChainName::UnusedPort)];
    vec![
        rule(Why::FindService, [sets.go_where(ServiceSet::Services)]),
        rule(Why::UnusedPort, unused),
    ]
}

/// Drops what is still addressed to a service range after every proxy's translation: another proxy
/// may serve some Services (`service.kubernetes.io/service-proxy-name`). As in kube-proxy's
/// nftables mode. A packet that is dropped here leaves no conntrack entry, so the next one is
/// looked up anew.
fn unallocated(config: &TableConfig) -> Option<[Chain; 3]> {
    let drop =
        |range: &IpNetwork| rule(Why::Unallocated, [goes_to(*range)].into_iter().chain(dropped()));
    let drops: Vec<Rule> = config.service_ranges.iter().map(drop).collect();
    let behind_nat = |name, hook| {
        let rule = rule(Why::StillUntranslated, [is_unanswered(), jump(ChainName::Unallocated)]);
        base(
            name,
            BaseChain { kind: ChainKind::Filter, hook, priority: 0 },
            Why::StillUntranslated,
            vec![rule],
        )
    };
    (!drops.is_empty()).then(|| {
        [
            chain(ChainName::Unallocated, Why::Unallocated, drops),
            behind_nat(ChainName::UnallocatedForward, Hook::Forward),
            behind_nat(ChainName::UnallocatedOutput, Hook::Output),
        ]
    })
}

fn mark_unless_local(sets: SetStatements, config: &TableConfig) -> Vec<Rule> {
    let mark = mark(config.node_side.masquerade_bit);
    let pods = of_pods(sets, config, Why::LocalPod, back());
    pods.chain([rule(Why::ComesFromElsewhere, [mark])]).collect()
}

/// What pods send goes on as `inside` says.
fn local_policy(
    sets: SetStatements,
    config: &TableConfig,
    keys: ServiceSet,
    inside: Statement,
) -> Vec<Rule> {
    let pods = of_pods(sets, config, Why::PodsAreInside, inside);
    pods.chain([rule(Why::StayOnNode, [sets.go_where(keys)])]).collect()
}

fn node_port_policy(sets: SetStatements, config: &TableConfig) -> Vec<Rule> {
    let to_all = goto(ChainName::NodePorts);
    let mut rules = local_policy(sets, config, ServiceSet::LocalNodePorts, to_all.clone());
    rules.push(rule(Why::FindNodePort, [to_all]));
    rules
}

/// Does this with what local pods send.
fn of_pods(
    sets: SetStatements,
    config: &TableConfig,
    why: Why,
    then: Statement,
) -> impl Iterator<Item = Rule> {
    let tests = local_pod_matches(sets, config).into_iter();
    tests.map(move |is_local| rule(why, is_local.into_iter().chain([then.clone()])))
}
