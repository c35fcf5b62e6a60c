//! What passes between pods and peers, and who decides it, without any flow: for
//! [`impact`](crate::impact), which compares two plans.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::function::PortSet;
use super::identity::{IdentityId, IdentityKey};
use super::judge::{Judge, Judged, Judgement};
use super::permission::ClassKey;
use super::rules::Direction;
use super::tier::MatchedRule;
use super::{AddressRange, FirewallPlan};
use denizen_model::{Action, PolicyName, PortMatch, Ports, Protocol, Tier, TierPort, TierPorts};
use denizen_state::AttachmentId;

/// Who decides about a packet in one direction of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Decider {
    /// No policy restricts the pod.
    Nobody,
    /// A rule of a NetworkPolicy permits it: its index in the policy's list.
    Rule(PolicyName, usize),
    /// These NetworkPolicies isolate the pod, and no rule permits it.
    Isolated(Arc<[PolicyName]>),
    /// A rule of a ClusterNetworkPolicy accepts or denies it.
    Tier(TierDecider),
}

/// A rule of a ClusterNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierDecider {
    pub tier: Tier,
    pub priority: u16,
    pub policy: Arc<str>,
    /// Its place in the policy's list.
    pub rule: usize,
    /// Empty if it has none.
    pub name: Arc<str>,
    pub action: Action,
}

impl FirewallPlan {
    /// The class of a recorded pod; `None` if it is open.
    pub(crate) fn class(&self, pod: &AttachmentId, direction: Direction) -> Option<&ClassKey> {
        let subject = self.subjects.get(pod)?;
        let decision = match direction {
            Direction::Ingress => &subject.ingress,
            Direction::Egress => &subject.egress,
        };
        decision.class.as_ref()
    }

    /// What passes between pods of this class and an identity, as the kernel is told.
    pub(crate) fn passing(&self, class: &ClassKey, peer: Option<IdentityId>) -> PortSet {
        self.classes.passing(class, peer)
    }

    /// Who decides about a packet between pods of this class and an identity.
    pub(crate) fn decider(
        &self,
        class: &ClassKey,
        peer: Option<IdentityId>,
        protocol: Option<Protocol>,
        port: Option<NonZeroU16>,
    ) -> Decider {
        let nobody = IdentityKey::default();
        let key = peer.and_then(|id| self.identities.key(id)).unwrap_or(&nobody);
        let is_to_itself = false;
        let judge = Judge { plan: self, class, peer: key, protocol, port, is_to_itself };
        let Judged { matched, judgement } = judge.judged();
        match judgement {
            Judgement::Open => Decider::Nobody,
            Judgement::Refused => Decider::Isolated(class.policies.as_slice().into()),
            Judgement::Permitted(rule) => Decider::Rule(rule.policy.clone(), rule.index),
            Judgement::Accepted => Decider::last(&matched, Action::Accept),
            Judgement::Denied => Decider::last(&matched, Action::Deny),
        }
    }

    /// The ports at which rules of this class begin, and those behind which they end: between two
    /// of them, one rule decides about all.
    pub(crate) fn edges(&self, class: &ClassKey, peer: Option<IdentityId>) -> BTreeSet<u16> {
        let mut edges = BTreeSet::new();
        let mut add = |first: NonZeroU16, last: NonZeroU16| {
            edges.insert(first.get());
            edges.extend(last.get().checked_add(1));
        };
        for (_, rule) in class.rules(&self.rules) {
            let Ports::These(ports) = &rule.ports else { continue };
            for port in ports {
                if let PortMatch::Range(first, last) = &port.port {
                    add(*first, *last);
                }
            }
        }
        if let Some(book) = class.rulebook(&self.rules) {
            for (_, rule) in book.admin.iter().chain(&book.baseline) {
                let TierPorts::These(ports) = &rule.ports else { continue };
                for port in ports {
                    if let TierPort::Range(_, first, last) = port {
                        add(*first, *last);
                    }
                }
            }
        }
        let key = peer.and_then(|id| self.identities.key(id));
        let named = class.ports.iter().chain(key.iter().flat_map(|key| &key.ports));
        named.for_each(|named| add(named.port, named.port));
        edges
    }

    /// The ranges that policies, or nodes' ranges of pods, tell from others.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = AddressRange> {
        self.pieces.values().map(|piece| piece.range)
    }

    /// The addresses of nodes.
    pub(crate) fn node_addresses(&self) -> impl Iterator<Item = std::net::IpAddr> {
        self.nodes.iter().copied()
    }
}

impl Decider {
    /// The last rule that does this. Behind one that accepts there may be others, which might have
    /// passed the packet on.
    fn last(matched: &[MatchedRule<'_>], action: Action) -> Self {
        let last = matched.iter().rev().find(|matched| matched.rule.action == action);
        last.map_or(Self::Nobody, |MatchedRule { policy, rule, .. }| {
            Self::Tier(TierDecider {
                tier: policy.source.tier,
                priority: policy.source.priority,
                policy: policy.source.name.clone(),
                rule: rule.index,
                name: rule.name.clone(),
                action: rule.action,
            })
        })
    }
}
