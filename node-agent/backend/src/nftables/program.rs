//! The constant chains, and the chains of a size class.
//!
//! Services and endpoints are data in maps. A service's element in [`SetName::Services`] names one
//! chain, and that one lookup decides everything about it at once (where to, masqueraded or not),
//! so a packet that races with a commit sees the state before it or after it, never a mixture.

use std::net::Ipv4Addr;

use super::affinity;
use super::draw::cascade;
use super::local::{FORWARD_PRIORITY, bridge_chains, clear_port_bit, local};
use super::name::{ChainName, Class, Group, ServiceTable, SetName};
use super::rule::{Action, Chain, Match, Rule, base, chain};
use super::table_config::TableConfig;
use crate::why::Why;
use denizen_model::Family;
use denizen_nft::{BaseChain, Hook, Kind};
use denizen_plan::{MarkBit, NodeSide};
use ipnetwork::{IpNetwork, Ipv4Network};

/// Before kube-proxy's `dstnat` (-100), so that denizen decides while another's rules are still
/// there.
const DESTINATION_PRIORITY: i32 = -110;
/// `raw`: before connection tracking, which would give answers back the loopback address they are
/// meant for.
const RAW_PRIORITY: i32 = -300;
/// `srcnat`.
const SOURCE_PRIORITY: i32 = 100;
/// `filter`: before IPVS (`NF_IP_PRI_NAT_SRC - 1`, 99).
const INPUT: BaseChain = BaseChain { kind: Kind::Filter, hook: Hook::Input, priority: 0 };

/// The constant chains, each before those that refer to it.
pub fn chains(table_family: ServiceTable, config: &TableConfig) -> Vec<Chain> {
    match table_family {
        ServiceTable::Ip(Family::V4) => ip_chains(config).into_iter().chain([martians()]).collect(),
        // IPv6 has no `route_localnet`.
        ServiceTable::Ip(Family::V6) => ip_chains(config),
        ServiceTable::Bridge => bridge_chains(config),
        ServiceTable::Arp => vec![arp_input()],
    }
}

fn ip_chains(config: &TableConfig) -> Vec<Chain> {
    let drop = Rule::new(Why::NoLocalEndpoint, [], [Action::Count, Action::Drop]);
    let node_ports = Rule::new(Why::FindNodePort, [], [Action::Lookup(SetName::NodePorts)]);
    let jumped_to = [
        chain(ChainName::NoEndpoints, Why::Refuse, refuse(Why::RefuseTcp, Why::Refuse).into()),
        chain(ChainName::NoLocalEndpoints, Why::NoLocalEndpoint, vec![drop]),
        chain(ChainName::MarkUnlessLocal, Why::AskWhoSends, mark_unless_local(config)),
        chain(ChainName::NodePorts, Why::FindNodePort, vec![node_ports]),
        chain(ChainName::SourceRanges, Why::Restricted, source_ranges()),
        chain(ChainName::UnusedPort, Why::UnusedPort, unused_port()),
        chain(ChainName::Services, Why::Dispatch, dispatch()),
        chain(
            ChainName::LocalPolicy,
            Why::StayOnNode,
            local_policy(config, SetName::LocalServices),
        ),
        chain(
            ChainName::NodePortPolicy,
            Why::StayOnNode,
            local_policy(config, SetName::LocalNodePorts),
        ),
    ];
    jumped_to
        .into_iter()
        .chain(base_chains(config))
        .chain(egress(config).into_iter().flatten())
        .chain(unallocated(config).into_iter().flatten())
        .chain(clear_port_bit(config))
        .chain(config.by_ipvs.then(untranslated))
        .collect()
}

/// Where packets enter. A service's own address is never looked up among the node ports, whichever
/// policy the service with that node port has.
fn base_chains(config: &TableConfig) -> [Chain; 3] {
    let masquerade = config.node_side.masquerade_bit;
    let jump = |why, to| Rule::new(why, [], [Action::Jump(to)]);
    let at_node = |why, action| Rule::new(why, [Match::In(SetName::NodePortAddresses)], [action]);
    let services = jump(Why::Dispatch, ChainName::Services);
    let node_ports = at_node(Why::OwnAddress, Action::Goto(ChainName::NodePorts));
    let arriving = vec![
        restricted(),
        jump(Why::AskLocalPolicy, ChainName::LocalPolicy),
        services.clone(),
        at_node(Why::AskLocalPolicy, Action::Jump(ChainName::NodePortPolicy)),
        node_ports.clone(),
    ];
    // What IPVS translates does not count as translated. Only translation leads a packet from a pod
    // to itself through this node, so the set alone tells, at the cost of a lookup.
    let translated = (!config.by_ipvs).then_some(Match::Translated);
    let hairpin = translated.into_iter().chain([Match::In(SetName::Hairpin)]);
    let leaving = vec![
        Rule::new(Why::GiveBackPriority, [Match::Scratched], [Action::ClearScratch]),
        Rule::new(
            Why::MarkedAbove,
            [Match::Marked(masquerade)],
            [Action::Unmark(masquerade), Action::Masquerade],
        ),
        Rule::new(Why::Hairpin, hairpin, [Action::Masquerade]),
    ];
    let nat = |hook, priority| BaseChain { kind: Kind::Nat, hook, priority };
    let before = |hook| nat(hook, DESTINATION_PRIORITY);
    let sending = vec![restricted(), services, node_ports];
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
/// there, because anybody may set it at any time, for all interfaces or for one. The address comes
/// first: it is the cheapest test that other packets fail.
fn martians() -> Chain {
    let loopback = Ipv4Network::new_checked(Ipv4Addr::new(127, 0, 0, 0), 8).expect("8 bits of 32");
    let addressed = Match::Destination(loopback.into());
    let own = Match::InputInterface("lo".into());
    let rules = vec![
        Rule::new(Why::Martian, [addressed.clone(), own], [Action::Return]),
        Rule::new(Why::Martian, [addressed], [Action::Count, Action::Drop]),
    ];
    let base_chain =
        BaseChain { kind: Kind::Filter, hook: Hook::Prerouting, priority: RAW_PRIORITY };
    base(ChainName::Martians, base_chain, Why::Martian, rules)
}

/// What arrives at a cluster IP is IPVS's: it alone translates after the rules. Its connections are
/// answered from their endpoint from the first packet on.
fn untranslated() -> Chain {
    let [tcp, others] = refuse(Why::Untranslated, Why::Untranslated);
    let stale = [
        Match::In(SetName::ClusterIps),
        Match::LaterPacket,
        Match::AnsweredFrom(SetName::ClusterIps),
    ];
    let among_stale =
        |rule: Rule| Rule::new(rule.why, stale.iter().cloned().chain(rule.matches), rule.actions);
    let rules = [tcp, others].map(among_stale).into();
    base(ChainName::Input, INPUT, Why::Untranslated, rules)
}

/// What takes the place of the choice of a service while connections of the backend ipvs go on
/// after it: what is new to its cluster IPs is refused, or, if it `must_wait`, is to come again.
pub fn only_old_connections(must_wait: bool) -> Chain {
    let why = Why::OnlyOldConnections;
    let answers = match must_wait {
        true => vec![Rule::new(why, [], [Action::Count, Action::Drop])],
        false => refuse(why, why).into(),
    };
    // Connection tracking knows what the node itself sends before it comes in again.
    let own = [Match::InputInterface("lo".into()), Match::Unanswered];
    let new = [&[Match::FirstPacket][..], &own].into_iter();
    let rules = new.flat_map(|new| {
        answers.iter().map(move |Rule { matches, actions, .. }| {
            let new = [Match::In(SetName::ClusterIps)].into_iter().chain(new.iter().cloned());
            Rule::new(why, new.chain(matches.iter().cloned()), actions.iter().copied())
        })
    });
    base(ChainName::Input, INPUT, why, rules.collect())
}

/// The kernel answers ARP for every address with a local route, on every link. It does not answer
/// neighbour discovery: that wants the address on the link's own device.
fn arp_input() -> Chain {
    let drop = [Action::Count, Action::Drop];
    let rules = vec![Rule::new(Why::NoNeighbour, [Match::In(SetName::VirtualIps)], drop)];
    let base_chain = BaseChain { kind: Kind::Filter, hook: Hook::ArpInput, priority: 0 };
    base(ChainName::Input, base_chain, Why::NoNeighbour, rules)
}

/// Egress masquerade. It is in the forward hook, the last one where the input interface is known,
/// and where the destination is already a service's endpoint: the ranges apply to the endpoint.
fn egress(config: &TableConfig) -> Option<[Chain; 2]> {
    let kept =
        config.egress.as_ref()?.iter().map(|range| {
            Rule::new(Why::StaysInside, [Match::Destination(*range)], [Action::Return])
        });
    let mark = Action::Mark(config.node_side.masquerade_bit);
    let rules = kept.chain([Rule::new(Why::GoesOut, [], [mark])]).collect();
    let pods = local(config).into_iter().map(|is| {
        let matches = [Match::FirstPacket].into_iter().chain(is);
        Rule::new(Why::PodsAlone, matches, [Action::Jump(ChainName::Egress)])
    });
    let base_chain =
        BaseChain { kind: Kind::Filter, hook: Hook::Forward, priority: FORWARD_PRIORITY };
    Some([
        chain(ChainName::Egress, Why::GoesOut, rules),
        base(ChainName::Forward, base_chain, Why::PodsAlone, pods.collect()),
    ])
}

/// The chains of a class: those that balance, then those that mark for masquerade and go to them.
/// Policy Local from outside needs only the first.
pub fn class_chains(class: Class, node_side: &NodeSide) -> Vec<Chain> {
    let mut balancing = match class.affinity {
        None => balance(class),
        Some(_) => affinity::balance(class),
    };
    if node_side.open_forward {
        let admit = Rule::new(Why::Admitted, [], [Action::Admit(MarkBit::ADMITTED)]);
        balancing.rules.insert(0, admit);
    }
    let memory = class.affinity.map(|seconds| affinity::memory(class, seconds));
    let mut chains: Vec<Chain> = memory.into_iter().flatten().chain([balancing]).collect();
    match class.group {
        Group::Service | Group::NodePort => chains.extend(entries(class, node_side.masquerade_bit)),
        Group::LocalService | Group::LocalNodePort => {}
    }
    chains
}

/// The chain that balances a class.
fn balance(class: Class) -> Chain {
    let translate = |slots| Action::Translate { endpoints: class.group.endpoints(), slots };
    let choose = |slots| [translate(slots)];
    let mut rules = cascade(class, Why::Choose, choose);
    rules.push(Rule::new(Why::NeverUndone, [], [Action::Count, Action::Drop]));
    chain(ChainName::Balance(class), Why::Choose, rules)
}

/// The chains that mark for masquerade and then balance a class.
fn entries(class: Class, masquerade: MarkBit) -> [Chain; 2] {
    let go = Rule::new(Why::Choose, [], [Action::Goto(ChainName::Balance(class))]);
    let unless_local = Rule::new(Why::AskWhoSends, [], [Action::Jump(ChainName::MarkUnlessLocal)]);
    let always = Rule::new(Why::AnyNode, [], [Action::Mark(masquerade)]);
    [
        chain(ChainName::Cluster(class), Why::AskWhoSends, vec![unless_local, go.clone()]),
        chain(ChainName::External(class), Why::AnyNode, vec![always, go]),
    ]
}

/// Before anything else, as in kube-proxy's nftables mode.
fn restricted() -> Rule {
    let restricted = Match::In(SetName::RestrictedFrontends);
    Rule::new(Why::Restricted, [restricted], [Action::Jump(ChainName::SourceRanges)])
}

fn source_ranges() -> Vec<Rule> {
    vec![
        Rule::new(Why::MayEnter, [Match::In(SetName::AllowedSources)], [Action::Return]),
        Rule::new(Why::MayNotEnter, [], [Action::Count, Action::Drop]),
    ]
}

fn refuse(tcp: Why, others: Why) -> [Rule; 2] {
    let is_tcp = Match::Protocol(denizen_model::Protocol::Tcp);
    [
        Rule::new(tcp, [is_tcp], [Action::Count, Action::Reset]),
        Rule::new(others, [], [Action::Count, Action::Unreachable]),
    ]
}

/// The same, so that what is counted and shown has this reason.
fn unused_port() -> Vec<Rule> {
    let again = Rule::new(Why::FindServiceAgain, [], [Action::Lookup(SetName::Services)]);
    let refuse = refuse(Why::UnusedPort, Why::UnusedPort);
    [again].into_iter().chain(refuse).collect()
}

fn dispatch() -> Vec<Rule> {
    let unused = Action::Goto(ChainName::UnusedPort);
    vec![
        Rule::new(Why::FindService, [], [Action::Lookup(SetName::Services)]),
        Rule::new(Why::UnusedPort, [Match::In(SetName::ClusterIps)], [unused]),
    ]
}

/// Drops what is still addressed to a service range behind everybody's translation: another proxy
/// may serve some Services (`service.kubernetes.io/service-proxy-name`). As in kube-proxy's
/// nftables mode. A packet that is dropped here leaves no conntrack entry, so the next one is
/// looked up anew.
fn unallocated(config: &TableConfig) -> Option<[Chain; 3]> {
    let drop = |range: &IpNetwork| {
        Rule::new(Why::Unallocated, [Match::Destination(*range)], [Action::Count, Action::Drop])
    };
    let drops: Vec<Rule> = config.service_ranges.iter().map(drop).collect();
    let behind_nat = |name, hook| {
        let jump = [Action::Jump(ChainName::Unallocated)];
        let rule = Rule::new(Why::Untaken, [Match::Unanswered], jump);
        base(name, BaseChain { kind: Kind::Filter, hook, priority: 0 }, Why::Untaken, vec![rule])
    };
    (!drops.is_empty()).then(|| {
        [
            chain(ChainName::Unallocated, Why::Unallocated, drops),
            behind_nat(ChainName::UnallocatedForward, Hook::Forward),
            behind_nat(ChainName::UnallocatedOutput, Hook::Output),
        ]
    })
}

fn mark_unless_local(config: &TableConfig) -> Vec<Rule> {
    let mark = Action::Mark(config.node_side.masquerade_bit);
    let returns =
        local(config).into_iter().map(|is| Rule::new(Why::LocalPod, is, [Action::Return]));
    returns.chain([Rule::new(Why::ComesFromElsewhere, [], [mark])]).collect()
}

fn local_policy(config: &TableConfig, keys: SetName) -> Vec<Rule> {
    let returns =
        local(config).into_iter().map(|is| Rule::new(Why::PodsAreInside, is, [Action::Return]));
    returns.chain([Rule::new(Why::StayOnNode, [], [Action::Lookup(keys)])]).collect()
}
