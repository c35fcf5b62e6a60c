//! ClusterNetworkPolicies: evaluates them by tiers, priorities and the order of rules.
//!
//! For each class of pods and each identity, the ports that pass are computed: each rule decides
//! about the ports that no earlier rule has decided. The kernel gets only the ports that pass, and
//! knows no tiers.

use std::num::NonZeroU16;
use std::sync::Arc;

use super::direction::Direction;
use super::identity::{IdentityKey, OwnerKnowledge};
use super::peer::{PeerId, PeerScope, PeerTable};
use super::permitted_ports::{PermittedPorts, PortSet};
use super::tier_decider::TierDecider;
use super::tiered_policy::{TieredPolicy, TieredRule, names};
use denizen_model::{
    Action, ClusterNetworkPolicy, Labels, LocalPod, ModelChange, NamedPort, Protocol, Tier,
    TierPort, TierPorts,
};

/// The policies that select a pod and have rules for a direction, in order. If only the pod's
/// namespace is known (`pod` is `None`), the list is empty, and the flag says whether any may
/// select it.
pub(super) fn selecting(
    tiers: &[&ClusterNetworkPolicy],
    of_namespace: &Labels,
    pod: Option<&Labels>,
    direction: Direction,
) -> (Vec<Arc<str>>, bool) {
    let has_rules = |policy: &&&ClusterNetworkPolicy| match direction {
        Direction::Ingress => !policy.ingress.is_empty(),
        Direction::Egress => !policy.egress.is_empty(),
    };
    let in_namespace =
        tiers.iter().filter(has_rules).filter(|policy| policy.namespaces.selects(of_namespace));
    match pod {
        // Even a policy that selects every pod cannot be applied: the pod's named ports are unknown
        // too.
        None => (Vec::new(), in_namespace.count() > 0),
        Some(labels) => {
            let all = in_namespace.filter(|policy| policy.pods.selects(labels));
            (all.map(|policy| policy.name.clone()).collect(), false)
        }
    }
}

/// Whether a rule for a direction names ports.
pub(super) fn names_ports(policy: &ClusterNetworkPolicy, direction: Direction) -> bool {
    let rules = match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    };
    rules.iter().any(|rule| names(&rule.ports).next().is_some())
}

/// All ClusterNetworkPolicies, in order.
pub(super) struct AllTiers<'a> {
    pub all: Vec<&'a ClusterNetworkPolicy>,
}

impl AllTiers<'_> {
    /// Whether a change may affect which policies select a pod: labels of namespaces count too.
    pub fn are_changed(&self, pod: &LocalPod, change: &ModelChange) -> bool {
        let namespace = pod.pod.as_ref().map(|name| &name.namespace);
        !change.cluster_network_policies.is_empty()
            || !self.all.is_empty()
                && namespace.is_some_and(|name| change.namespaces.contains(name))
    }
}

/// Whether a rule matches a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerMatch {
    Yes,
    No,
    /// Not known: the rule selects by labels, and the pod's labels are not known yet.
    Maybe,
}

/// Evaluates the rules of tiers for the pods of one class.
pub(super) struct TierEvaluator<'a> {
    pub direction: Direction,
    /// The selected pods' own named ports, for ingress rules.
    pub ports: &'a [NamedPort],
    pub table: &'a PeerTable,
}

/// The ports of a rule: those that are certain, and those that may be meant.
struct RulePorts {
    certain: PortSet,
    possible: PortSet,
}

impl TierEvaluator<'_> {
    fn matches(&self, rule: &TieredRule, key: &IdentityKey) -> PeerMatch {
        let Some(peers) = &rule.peers else { return PeerMatch::Yes };
        if key.is_any_of(peers) {
            return PeerMatch::Yes;
        }
        let by_labels = |peer: &PeerId| {
            matches!(
                self.table.scope(*peer),
                Some(PeerScope::PodsInNamespace { .. } | PeerScope::PodsBySelectors { .. })
            )
        };
        match key.knowledge == OwnerKnowledge::Unknown && peers.iter().any(by_labels) {
            true => PeerMatch::Maybe,
            false => PeerMatch::No,
        }
    }

    fn ports(&self, rule: &TieredRule, key: &IdentityKey) -> RulePorts {
        let TierPorts::These(ports) = &rule.ports else {
            return RulePorts { certain: PortSet::all(), possible: PortSet::default() };
        };
        let (mut certain, mut possible) = (PortSet::default(), PortSet::default());
        for port in ports {
            match port {
                TierPort::Range(protocol, first, last) => certain.add(*protocol, *first, *last),
                TierPort::Named(name) => {
                    let known = match self.direction {
                        Direction::Ingress => self.ports,
                        Direction::Egress => &key.ports,
                    };
                    for port in known.iter().filter(|port| port.name == *name) {
                        certain.add(port.protocol, port.port, port.port);
                    }
                    if self.direction == Direction::Egress
                        && key.knowledge == OwnerKnowledge::Unknown
                    {
                        possible = PortSet::every_port();
                    }
                }
            }
        }
        possible = possible.without(&certain);
        RulePorts { certain, possible }
    }

    /// What passes these rules, evaluated in order. `next` decides what they pass on or do not
    /// match.
    pub fn passing<'r>(
        &self,
        rules: impl Iterator<Item = &'r TieredRule>,
        key: &IdentityKey,
        next: impl FnOnce() -> PortSet,
    ) -> PortSet {
        let mut undecided = PortSet::all();
        let (mut accepted, mut passed) = (PortSet::default(), PortSet::default());
        // What would be denied, or passed on, if the peer had the labels that a rule selects by.
        let (mut perhaps_denied, mut perhaps_passed) = (PortSet::default(), PortSet::default());
        for rule in rules {
            if undecided.is_empty() {
                break;
            }
            let matches = self.matches(rule, key);
            if matches == PeerMatch::No {
                continue;
            }
            let RulePorts { certain, possible } = self.ports(rule, key);
            let (taken, perhaps) = match matches {
                PeerMatch::Yes => (undecided.common(&certain), undecided.common(&possible)),
                PeerMatch::Maybe | PeerMatch::No => {
                    (PortSet::default(), undecided.common(&certain.union(&possible)))
                }
            };
            undecided = undecided.without(&taken);
            match rule.action {
                Action::Accept => accepted = accepted.union(&taken),
                Action::Deny => perhaps_denied = perhaps_denied.union(&perhaps),
                Action::Pass => {
                    passed = passed.union(&taken);
                    perhaps_passed = perhaps_passed.union(&perhaps);
                }
            }
        }
        let on = undecided.union(&passed);
        let is_needed = !on.is_empty() || !perhaps_passed.is_empty();
        let by_next = if is_needed { next() } else { PortSet::default() };
        let passes = accepted.union(&on.common(&by_next)).without(&perhaps_denied);
        passes.without(&perhaps_passed.without(&by_next))
    }
}

/// The rules of both tiers for one class.
pub(super) struct Rulebook<'a> {
    pub admin: Vec<(&'a TieredPolicy, &'a TieredRule)>,
    pub baseline: Vec<(&'a TieredPolicy, &'a TieredRule)>,
}

impl<'a> Rulebook<'a> {
    /// The rules of these policies, which are in order.
    pub fn new(policies: impl Iterator<Item = &'a TieredPolicy>, direction: Direction) -> Self {
        let mut all = Self { admin: Vec::new(), baseline: Vec::new() };
        for policy in policies {
            let rules = policy.rules(direction).iter().map(|rule| (policy, rule));
            match policy.source.tier {
                Tier::Admin => all.admin.extend(rules),
                Tier::Baseline => all.baseline.extend(rules),
            }
        }
        all
    }

    /// What passes between the class and a peer. `by_network_policies`: what NetworkPolicies
    /// permit, if one isolates the class.
    pub fn permitted(
        &self,
        evaluator: &TierEvaluator<'_>,
        key: &IdentityKey,
        by_network_policies: Option<impl FnOnce() -> PortSet>,
    ) -> PermittedPorts {
        let admin = self.admin.iter().map(|(_, rule)| *rule);
        PermittedPorts::new(evaluator.passing(admin, key, || match by_network_policies {
            Some(permitted) => permitted(),
            None => {
                let baseline = self.baseline.iter().map(|(_, rule)| *rule);
                evaluator.passing(baseline, key, PortSet::all)
            }
        }))
    }
}

/// A matched rule of a tier, described for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierStep {
    pub rule: TierDecider,
    /// The peer that covers the other side; `None` if the rule is for everybody.
    pub peer: Option<String>,
    /// The ports that the rule is for; `None` if for all.
    pub ports: Option<String>,
    /// Whether the match is only possible: labels or named ports of the pod at the other end are
    /// not known yet.
    pub is_possible: bool,
}

/// A rule that matches a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchedRule<'a> {
    pub policy: &'a TieredPolicy,
    pub rule: &'a TieredRule,
    /// See [`TierStep::is_possible`].
    pub is_possible: bool,
}

/// What the rules of a tier say of one packet.
#[derive(Debug, Default)]
pub(super) struct TierEvaluation<'a> {
    /// The rules that match, up to the one that decides.
    pub matched: Vec<MatchedRule<'a>>,
    /// Whether a rule that certainly or possibly matches denies it.
    pub is_denied: bool,
    /// Whether it is accepted.
    pub is_accepted: bool,
    /// Whether it may be passed on: then what is evaluated next must permit it, too.
    pub may_pass: bool,
}

/// What rules see of a packet besides its peer. `port`: of the destination, or 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketPort {
    pub protocol: Option<Protocol>,
    pub port: u16,
}

impl TierEvaluator<'_> {
    /// Evaluates the rules of one tier for one packet.
    pub fn evaluate<'r>(
        &self,
        rules: &[(&'r TieredPolicy, &'r TieredRule)],
        key: &IdentityKey,
        packet: PacketPort,
    ) -> TierEvaluation<'r> {
        let mut evaluation = TierEvaluation::default();
        for (policy, rule) in rules {
            let matches = self.matches(rule, key);
            let RulePorts { certain, possible } = self.ports(rule, key);
            let is_certain = certain.contains(packet.protocol, packet.port);
            let is_meant = is_certain || possible.contains(packet.protocol, packet.port);
            if matches == PeerMatch::No || !is_meant {
                continue;
            }
            let is_possible = matches == PeerMatch::Maybe || !is_certain;
            if is_possible && rule.action == Action::Accept {
                continue;
            }
            evaluation.matched.push(MatchedRule { policy, rule, is_possible });
            match rule.action {
                Action::Accept => evaluation.is_accepted = true,
                Action::Deny => evaluation.is_denied = true,
                Action::Pass => evaluation.may_pass = true,
            }
            if !is_possible || evaluation.is_denied {
                break;
            }
        }
        evaluation
    }

    /// Describes, for a person, a rule that matches a packet from or to this peer.
    pub fn step(
        &self,
        matched: MatchedRule<'_>,
        key: &IdentityKey,
        peer: std::net::IpAddr,
        packet: PacketPort,
    ) -> TierStep {
        let MatchedRule { policy, rule, is_possible } = matched;
        let peers = rule.peers.iter().flatten();
        let mut covering = peers.filter(|peer| is_possible || key.is_any_of(&[**peer]));
        let covering = covering.find_map(|peer| self.table.scope(*peer));
        let port = match &rule.ports {
            TierPorts::All => None,
            TierPorts::These(ports) => ports.iter().find(|port| match port {
                TierPort::Range(protocol, first, last) => {
                    let number = NonZeroU16::new(packet.port);
                    Some(*protocol) == packet.protocol
                        && number.is_some_and(|port| (*first..=*last).contains(&port))
                }
                TierPort::Named(_) => false,
            }),
        };
        let named =
            || names(&rule.ports).next().map(|name| TierPort::Named(name.clone()).to_string());
        TierStep {
            rule: TierDecider::of(policy, rule),
            peer: covering.map(|scope| scope.covering(peer).to_string()),
            ports: port.map(ToString::to_string).or_else(named),
            is_possible,
        }
    }
}
