//! What policies say of one connection, and why: for `explain`, and for connections that are
//! established when a policy changes.

use std::net::IpAddr;
use std::num::NonZeroU16;

use super::blocks::piece_of;
use super::identity::IdentityKey;
use super::rules::Direction;
use super::side::{Isolation, Side, SideDecision};
use super::{FirewallPlan, IdentityId, ToNode};
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

/// What the policies of one direction say of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStep {
    /// The direction, seen from the pod whose policies count.
    pub direction: Direction,
    /// The pod, if the runtime passed its name.
    pub pod: String,
    /// The policies that isolate it.
    pub policies: Vec<PolicyName>,
    pub result: PolicyResult,
}

/// What the policies of one pod say in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyResult {
    /// No policy isolates the pod.
    Open,
    /// A rule permits it.
    Permitted {
        /// Whose rule.
        policy: PolicyName,
        /// The rule's index in the policy's list.
        rule: usize,
        /// The peer that covers the other side; `None` if it is for everybody.
        peer: Option<String>,
        /// The ports that it is for; `None` if for all.
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

impl FirewallPlan {
    /// The policies that forbid a flow, if any do, exactly as the kernel's rules decide.
    pub fn rejection(&self, flow: &PolicyFlow) -> Option<PolicyRejection> {
        let mut asked = self.asked(flow).into_iter().flatten();
        asked.find_map(|(direction, pod)| {
            let side = self.sides.get(&pod)?.of(direction);
            let is_refused = !self.passes(side, other_end(flow, direction), flow);
            is_refused.then_some(PolicyRejection { direction, pod })
        })
    }

    /// What each direction says of a flow, for pods of this node.
    pub fn explain(&self, flow: &PolicyFlow) -> Vec<PolicyStep> {
        let asked = self.asked(flow).into_iter().flatten();
        let steps = asked.filter_map(|(direction, pod)| {
            let subject = self.subjects.get(self.owners.get(&pod)?)?;
            let decision = match direction {
                Direction::Ingress => &subject.ingress,
                Direction::Egress => &subject.egress,
            };
            let class = decision.class.as_ref();
            Some(PolicyStep {
                direction,
                pod: subject.pod.as_ref().map_or_else(|| pod.to_string(), ToString::to_string),
                policies: class.map(|class| class.policies.clone()).unwrap_or_default(),
                result: self.result(decision, other_end(flow, direction), flow),
            })
        });
        steps.collect()
    }

    /// The directions whose policies count for a flow, each with its pod. A pod may always reach
    /// itself, and a node its own pods.
    fn asked(&self, flow: &PolicyFlow) -> [Option<(Direction, IpAddr)>; 2] {
        let is_to_itself = flow.source == flow.destination;
        let [is_from_node, is_to_node] =
            [flow.source, flow.destination].map(|end| self.own.contains(&end));
        let of = |direction, pod: IpAddr, counts: bool| {
            (counts && !is_to_itself && self.sides.contains_key(&pod)).then_some((direction, pod))
        };
        let to_node = match self.settings.to_node {
            ToNode::Enforce => true,
            ToNode::Allow => !is_to_node,
        };
        [
            of(Direction::Egress, flow.source, to_node && !is_from_node),
            of(Direction::Ingress, flow.destination, !is_from_node && !is_to_node),
        ]
    }

    fn passes(&self, side: &Side, peer: IpAddr, flow: &PolicyFlow) -> bool {
        match side.isolation {
            Isolation::Open => true,
            Isolation::Pending => false,
            Isolation::Isolated => {
                let identity = self.identity_of(peer);
                side.permissions.iter().any(|permission| {
                    (permission.peer.is_none() || permission.peer == identity)
                        && permission.ports.covers(flow.protocol, flow.port)
                })
            }
        }
    }

    fn result(&self, decision: &SideDecision, peer: IpAddr, flow: &PolicyFlow) -> PolicyResult {
        let class = match (decision.isolation, &decision.class) {
            (Isolation::Open, _) => return PolicyResult::Open,
            (Isolation::Isolated, Some(class)) => class,
            (Isolation::Pending, _) | (Isolation::Isolated, None) => return PolicyResult::Pending,
        };
        let key = self.key_of(peer);
        match class.permitting(&self.rules, key.as_ref(), flow.protocol, flow.port) {
            None => PolicyResult::Refused,
            Some(permitting) => PolicyResult::Permitted {
                policy: permitting.policy.clone(),
                rule: permitting.index,
                peer: permitting
                    .peer
                    .and_then(|id| self.peers.covers(id))
                    .map(|covers| covers.covering(peer).to_string()),
                ports: permitting.entry.map(ToString::to_string),
            },
        }
    }

    pub fn identity_of(&self, address: IpAddr) -> Option<IdentityId> {
        let own = self.addresses.identity(address);
        own.or_else(|| {
            let piece = piece_of(&self.pieces, address)?;
            self.blocks.get(&piece.range.first).map(|(_, id)| *id)
        })
    }

    fn key_of(&self, address: IpAddr) -> Option<IdentityKey> {
        self.identities.key(self.identity_of(address)?).cloned()
    }
}

fn other_end(flow: &PolicyFlow, direction: Direction) -> IpAddr {
    match direction {
        Direction::Ingress => flow.source,
        Direction::Egress => flow.destination,
    }
}
