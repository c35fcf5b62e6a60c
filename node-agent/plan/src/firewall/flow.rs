//! How policies decide about one connection, and why: for `explain`, and for connections that are
//! established when a policy changes.

use std::net::IpAddr;
use std::num::NonZeroU16;

use super::direction::Direction;
use super::direction_rules::{DirectionDecision, DirectionRules, Isolation};
use super::evaluation::{ClassPacket, ClassVerdict, Evaluation};
use super::tier::TierStep;
use super::{FirewallPlan, ToNode};
use denizen_model::{PolicyName, Protocol};

/// A connection, by its first packet as policies see it: after DNAT, and before SNAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyFlow {
    /// The client.
    pub source: IpAddr,
    /// The endpoint.
    pub destination: IpAddr,
    /// `None` for a protocol that policies cannot name, such as ICMP.
    pub protocol: Option<Protocol>,
    /// The endpoint's port; `None` if there is none, or if it is 0.
    pub port: Option<NonZeroU16>,
}

/// How the policies of one direction decide about a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStep {
    /// The direction, seen from the pod whose policies count.
    pub direction: Direction,
    /// The pod's name, or its address if the runtime passed no name.
    pub pod: String,
    pub policies: Vec<PolicyName>,
    /// The rules of ClusterNetworkPolicies that match, up to the one that decides.
    pub tiers: Vec<TierStep>,
    pub result: PolicyResult,
}

/// The verdict of one pod's policies in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyResult {
    /// No policy isolates the pod, and no ClusterNetworkPolicy denies it.
    Open,
    /// The last rule of [`PolicyStep::tiers`] accepts it.
    Accepted,
    /// The last rule of [`PolicyStep::tiers`] denies it.
    Denied,
    /// A rule permits it.
    Permitted {
        /// The policy that has the rule.
        policy: PolicyName,
        /// The rule's index in the policy's list.
        rule: usize,
        /// The peer that covers the other side; `None` if the rule is for everybody.
        peer: Option<String>,
        /// The ports that the rule is for; `None` if for all.
        ports: Option<String>,
    },
    /// No rule permits it.
    Refused,
    /// It is not known yet which policies select the pod.
    Pending,
}

/// The policies that forbid a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRejection {
    pub direction: Direction,
    pub pod: IpAddr,
}

/// Evaluates one flow against the policies of this node's pods.
pub(super) struct FlowCheck<'a> {
    pub(super) plan: &'a FirewallPlan,
    pub(super) flow: &'a PolicyFlow,
}

impl FlowCheck<'_> {
    /// See [`FirewallPlan::rejection`].
    pub(super) fn rejection(&self) -> Option<PolicyRejection> {
        let mut restricting = self.restricting().into_iter().flatten();
        restricting.find_map(|(direction, pod)| {
            let rules = self.plan.pod_rules.get(&pod)?.of(direction);
            let is_refused = !self.passes(rules, other_end(self.flow, direction));
            is_refused.then_some(PolicyRejection { direction, pod })
        })
    }

    /// See [`FirewallPlan::explain`].
    pub(super) fn explain(&self) -> Vec<PolicyStep> {
        let restricting = self.restricting().into_iter().flatten();
        let steps = restricting.filter_map(|(direction, pod)| {
            let subject = self.plan.subjects.get(self.plan.owners.get(&pod)?)?;
            let decision = match direction {
                Direction::Ingress => &subject.ingress,
                Direction::Egress => &subject.egress,
            };
            let class = decision.class.as_ref();
            let (tiers, result) = self.result(decision, other_end(self.flow, direction));
            Some(PolicyStep {
                direction,
                pod: subject.pod.as_ref().map_or_else(|| pod.to_string(), ToString::to_string),
                policies: class.map(|class| class.policies.clone()).unwrap_or_default(),
                tiers,
                result,
            })
        });
        steps.collect()
    }

    /// The directions in which policies may restrict the flow, each with the address of the pod
    /// that they select. A node can always reach its own pods, and NetworkPolicies let a pod reach
    /// itself.
    fn restricting(&self) -> [Option<(Direction, IpAddr)>; 2] {
        let is_to_itself = self.flow.source == self.flow.destination;
        let [is_from_node, is_to_node] = [self.flow.source, self.flow.destination]
            .map(|end| self.plan.link_addresses.contains(&end));
        let of = |direction, pod: IpAddr, counts: bool| {
            let pod_rules = self.plan.pod_rules.get(&pod)?;
            (counts && (!is_to_itself || pod_rules.is_tiered())).then_some((direction, pod))
        };
        let to_node = match self.plan.settings.to_node {
            ToNode::Enforce => true,
            ToNode::Allow => !is_to_node,
        };
        [
            of(Direction::Egress, self.flow.source, to_node && !is_from_node),
            of(Direction::Ingress, self.flow.destination, !is_from_node && !is_to_node),
        ]
    }

    fn passes(&self, rules: &DirectionRules, peer: IpAddr) -> bool {
        match rules.isolation {
            Isolation::Open => true,
            Isolation::Pending => false,
            Isolation::Isolated => {
                if let Some(tiered) = &rules.tiered {
                    let permitted = match self.flow.source == self.flow.destination {
                        true => Some(&tiered.itself),
                        false => tiered.of(self.plan.identity_of(peer)),
                    };
                    let port = self.flow.port.map_or(0, NonZeroU16::get);
                    return permitted
                        .is_some_and(|permitted| permitted.passes(self.flow.protocol, port));
                }
                let identity = self.plan.identity_of(peer);
                rules.permissions.iter().any(|permission| {
                    (permission.peer.is_none() || permission.peer == identity)
                        && permission.ports.covers(self.flow.protocol, self.flow.port)
                })
            }
        }
    }

    fn result(&self, decision: &DirectionDecision, peer: IpAddr) -> (Vec<TierStep>, PolicyResult) {
        let class = match (decision.isolation, &decision.class) {
            (Isolation::Open, _) => return (Vec::new(), PolicyResult::Open),
            (Isolation::Isolated, Some(class)) => class,
            (Isolation::Pending, _) | (Isolation::Isolated, None) => {
                return (Vec::new(), PolicyResult::Pending);
            }
        };
        let key = self.plan.key_of(peer).unwrap_or_default();
        let packet = ClassPacket {
            plan: self.plan,
            class,
            peer: &key,
            protocol: self.flow.protocol,
            port: self.flow.port,
            is_to_itself: self.flow.source == self.flow.destination,
        };
        let Evaluation { matched, verdict } = packet.evaluate();
        let evaluator = class.evaluator(&self.plan.peers);
        let step = |matched| evaluator.step(matched, &key, peer, packet.packet_port());
        let result = match verdict {
            ClassVerdict::Open => PolicyResult::Open,
            ClassVerdict::Accepted => PolicyResult::Accepted,
            ClassVerdict::Denied => PolicyResult::Denied,
            ClassVerdict::Refused => PolicyResult::Refused,
            ClassVerdict::Permitted(permitting) => PolicyResult::Permitted {
                policy: permitting.policy.clone(),
                rule: permitting.index,
                peer: permitting
                    .peer
                    .and_then(|id| self.plan.peers.scope(id))
                    .map(|scope| scope.covering(peer).to_string()),
                ports: permitting.entry.map(ToString::to_string),
            },
        };
        (matched.into_iter().map(step).collect(), result)
    }
}

fn other_end(flow: &PolicyFlow, direction: Direction) -> IpAddr {
    match direction {
        Direction::Ingress => flow.source,
        Direction::Egress => flow.destination,
    }
}
