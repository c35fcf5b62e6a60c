//! Which policy decides what passes between pods and peers, for whole ranges of ports instead of
//! one flow: for [`impact`](crate::impact), which compares two plans.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::FirewallPlan;
use super::evaluation::{ClassPacket, ClassVerdict, Evaluation};
use super::identity::{IdentityId, IdentityKey};
use super::permission::ClassKey;
use super::tier::MatchedRule;
use super::tier_decider::TierDecider;
use denizen_model::{Action, PolicyName, PortMatch, Ports, Protocol, TierPort, TierPorts};

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

impl Decider {
    /// Who decides about a packet between pods of this class and an identity.
    pub(crate) fn of(
        plan: &FirewallPlan,
        class: &ClassKey,
        peer: Option<IdentityId>,
        protocol: Option<Protocol>,
        port: Option<NonZeroU16>,
    ) -> Self {
        let nobody = IdentityKey::default();
        let key = peer.and_then(|id| plan.identities.key(id)).unwrap_or(&nobody);
        let is_to_itself = false;
        let packet = ClassPacket { plan, class, peer: key, protocol, port, is_to_itself };
        let Evaluation { matched, verdict } = packet.evaluate();
        match verdict {
            ClassVerdict::Open => Self::Nobody,
            ClassVerdict::Refused => Self::Isolated(class.policies.as_slice().into()),
            ClassVerdict::Permitted(rule) => Self::Rule(rule.policy.clone(), rule.index),
            ClassVerdict::Accepted => Self::last(&matched, Action::Accept),
            ClassVerdict::Denied => Self::last(&matched, Action::Deny),
        }
    }

    /// The last matched rule with this action. Rules that may have passed the packet on are among
    /// the matched ones too.
    fn last(matched: &[MatchedRule<'_>], action: Action) -> Self {
        let last = matched.iter().rev().find(|matched| matched.rule.action == action);
        last.map_or(Self::Nobody, |last| Self::Tier(TierDecider::of(last.policy, last.rule)))
    }
}

/// The ports at which rules of this class begin, and the ports after those at which they end: one
/// rule decides about all ports between two of these.
pub(crate) fn port_edges(
    plan: &FirewallPlan,
    class: &ClassKey,
    peer: Option<IdentityId>,
) -> BTreeSet<u16> {
    let mut edges = BTreeSet::new();
    let mut add = |first: NonZeroU16, last: NonZeroU16| {
        edges.insert(first.get());
        edges.extend(last.get().checked_add(1));
    };
    for (_, rule) in class.rules(&plan.rules) {
        let Ports::These(ports) = &rule.ports else { continue };
        for port in ports {
            if let PortMatch::Range(first, last) = &port.port {
                add(*first, *last);
            }
        }
    }
    if let Some(book) = class.rulebook(&plan.rules) {
        for (_, rule) in book.admin.iter().chain(&book.baseline) {
            let TierPorts::These(ports) = &rule.ports else { continue };
            for port in ports {
                if let TierPort::Range(_, first, last) = port {
                    add(*first, *last);
                }
            }
        }
    }
    let key = peer.and_then(|id| plan.identities.key(id));
    let named = class.ports.iter().chain(key.iter().flat_map(|key| &key.ports));
    named.for_each(|named| add(named.port, named.port));
    edges
}
