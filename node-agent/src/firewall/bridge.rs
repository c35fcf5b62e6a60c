//! The table of bridges: what IP rules cannot see of pods that share a bridge.
//!
//! A frame between two ports of a bridge meets IP rules only where bridge netfilter hands it to
//! them, and those see the bridge, not the port. So sources are checked here, port by port, and so
//! is what a port says in ARP that it has;
//! multicast and broadcast to isolated pods, which have no pod's address as their destination, end
//! here; and where bridge netfilter cannot be had, restricted pods are cut off from their
//! neighbours.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::TABLE;
use super::program::{DropReason, base, dropped, link_local, neighbour_discovery};
use crate::model::LocalPod;
use crate::plan::{Direction, FirewallPlan, Isolation};
use denizen_nft::{
    Chain, DataType, Element, Family, Field, Hook, IpVersion, Key, Rule, Schema, Set, SetId,
    Statement, Value, Verdict,
};

/// Before bridge netfilter (`NF_BR_PRI_BRNF`, 0) calls the IP hooks.
const SOURCE_PRIORITY: i32 = -300;
/// `filter` of a bridge.
const FILTER_PRIORITY: i32 = -200;

/// A set of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetName {
    /// The ports of recorded pods.
    Ports,
    /// The IPv4 addresses that may come in through each of them.
    Addresses4,
    /// The same for IPv6.
    Addresses6,
    /// Ports of pods that a policy isolates for ingress.
    IngressIsolated,
    /// Ports of restricted pods on bridges without bridge netfilter.
    CutOff,
}

impl SetName {
    const ALL: [Self; 5] =
        [Self::Ports, Self::Addresses4, Self::Addresses6, Self::IngressIsolated, Self::CutOff];

    fn id(self) -> SetId {
        SetId(self as u8)
    }

    fn declared(self) -> Set {
        let source = Field::Source;
        let (name, comment, key) = match self {
            Self::Ports => ("pod-ports", "ports of local pods", vec![Field::InputInterface]),
            Self::Addresses4 => (
                "pod-addresses",
                "the IPv4 addresses that may come in through each of them",
                vec![Field::InputInterface, source(IpVersion::V4)],
            ),
            Self::Addresses6 => (
                "pod-addresses6",
                "the IPv6 addresses that may come in through each of them",
                vec![Field::InputInterface, source(IpVersion::V6)],
            ),
            Self::IngressIsolated => (
                "ingress-isolated",
                "ports of local pods that a policy isolates for ingress",
                vec![Field::OutputInterface],
            ),
            Self::CutOff => (
                "cut-off",
                "ports of restricted pods on bridges whose frames IP rules do not see",
                vec![Field::InputInterface],
            ),
        };
        let data = DataType::None;
        Set { id: self.id(), name, comment, key, is_ranged: false, data, room: None }
    }
}

/// The table.
pub fn schema() -> Schema {
    Schema {
        family: Family::Bridge,
        name: TABLE,
        comment: "Denizen: NetworkPolicies for this node's pods on bridges",
        sets: SetName::ALL.map(SetName::declared).into(),
    }
}

/// Its chains. None while no policy exists.
pub fn chains(plan: &FirewallPlan) -> Vec<Chain> {
    if plan.is_enforced() { all() } else { Vec::new() }
}

/// All chains.
pub fn all() -> Vec<Chain> {
    vec![sources(), dispatch(), neighbours()]
}

fn rule(why: &'static str, statements: impl IntoIterator<Item = Statement>) -> Rule {
    Rule { statements: statements.into_iter().collect(), why }
}

fn to(verdict: Verdict) -> Statement {
    Statement::Verdict(verdict)
}

fn is_in(set: SetName) -> Statement {
    Statement::In(set.declared().lookup())
}

const SOURCES: &str = "sources";

fn dispatch() -> Chain {
    let jump = to(Verdict::Jump(SOURCES.into()));
    let rules = vec![rule("comes from a pod's port", [is_in(SetName::Ports), jump])];
    let why = "what arrives from pods' ports, before IP rules see it";
    base("prerouting", Hook::Prerouting, SOURCE_PRIORITY, why, rules)
}

fn sources() -> Chain {
    let known = |set| rule("an address of the pod", [is_in(set), to(Verdict::Return)]);
    let mut rules = vec![known(SetName::Addresses4), known(SetName::Addresses6)];
    rules.extend(carrying_ipv6(link_local()));
    rules.extend(arp());
    let asked = [
        Statement::carries(IpVersion::V4),
        Statement::carries(IpVersion::V6),
        Statement::carries_arp(),
    ];
    rules.extend(asked.map(|asked| dropped(DropReason::Spoofed, vec![asked])));
    let why = "a pod's port sends with the pod's own addresses alone";
    Chain { name: SOURCES.into(), base: None, why, rules }
}

/// A pod says of its own addresses that it has them. Before it takes one it asks who has it, with
/// no address of its own (RFC 5227).
fn arp() -> [Rule; 2] {
    let known = SetName::Addresses4.declared();
    let known = known.lookup_of(vec![Field::InputInterface, Field::ArpSender]);
    let none = Key::EMPTY.address(Ipv4Addr::UNSPECIFIED.into());
    [
        rule(
            "says in ARP that it has an address of the pod",
            [Statement::In(known), to(Verdict::Return)],
        ),
        rule(
            "asks in ARP who has an address, before it takes it",
            [Statement::Equals(Field::ArpSender, none), to(Verdict::Return)],
        ),
    ]
}

/// What these rules ask can only be asked of IPv6.
fn carrying_ipv6<const N: usize>(rules: [Rule; N]) -> [Rule; N] {
    rules.map(|rule| {
        let carries = Statement::carries(IpVersion::V6);
        Rule { statements: [vec![carries], rule.statements].concat(), ..rule }
    })
}

fn neighbours() -> Chain {
    let mut rules: Vec<Rule> = carrying_ipv6(neighbour_discovery()).into();
    // A frame for another port's station is neither: its type is "other".
    let kind = |kind| Key::EMPTY.byte(kind);
    let not_unicast =
        || Statement::Between(Field::PacketType, kind(Field::BROADCAST), kind(Field::MULTICAST));
    let versions = [IpVersion::V4, IpVersion::V6];
    let why = DropReason::Refused(Direction::Ingress);
    rules.extend(versions.map(|version| {
        let isolated = is_in(SetName::IngressIsolated);
        dropped(why, vec![isolated, not_unicast(), Statement::carries(version)])
    }));
    for field in [Field::InputInterface, Field::OutputInterface] {
        let cut_off = || Statement::In(SetName::CutOff.declared().lookup_of(vec![field]));
        rules.extend(
            versions.map(|version| dropped(why, vec![cut_off(), Statement::carries(version)])),
        );
    }
    let why = "what one port of a bridge sends to another";
    base("forward", Hook::Forward, FILTER_PRIORITY, why, rules)
}

/// Every element that should be there. `without_netfilter`: bridges whose frames IP rules do not
/// see.
pub fn elements(
    plan: &FirewallPlan,
    pods: &[LocalPod],
    without_netfilter: &BTreeSet<Arc<str>>,
) -> Vec<Element> {
    if !plan.is_enforced() {
        return Vec::new();
    }
    let sides = |ip: &IpAddr| plan.sides(*ip);
    let member =
        |set: SetName, key| Element { set: set.id(), key, value: Value::Member, comment: None };
    let mut all = Vec::new();
    for (pod, port) in pods.iter().filter_map(|pod| Some((pod, pod.port.as_ref()?))) {
        let key = Key::EMPTY.interface(port);
        all.push(member(SetName::Ports, key));
        all.extend(pod.ips.iter().map(|ip| match ip {
            IpAddr::V4(_) => member(SetName::Addresses4, key.address(*ip)),
            IpAddr::V6(_) => member(SetName::Addresses6, key.address(*ip)),
        }));
        let mut judged = pod.ips.iter().filter_map(sides);
        if judged.clone().any(|it| it.ingress.isolation != Isolation::Open) {
            all.push(member(SetName::IngressIsolated, key));
        }
        if judged.any(|it| it.is_restricted()) && without_netfilter.contains(&pod.interface) {
            all.push(member(SetName::CutOff, key));
        }
    }
    all.sort_unstable_by_key(|element| (element.set, element.key));
    all.dedup_by_key(|element| (element.set, element.key));
    all
}
