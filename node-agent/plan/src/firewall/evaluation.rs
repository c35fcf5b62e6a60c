//! Evaluates the policies of a class of pods for one packet, tier by tier, and finds the rule that
//! decides.
//!
//! The kernel gets the result for all packets at once, from [`permission`](super::permission) and
//! [`tier`](super::tier). Tests compare both.

use std::num::NonZeroU16;

use super::FirewallPlan;
use super::identity::IdentityKey;
use super::permission::{ClassKey, PermittingRule};
use super::tier::{MatchedRule, PacketPort};
use denizen_model::Protocol;

/// A packet, as the policies of a class of pods see it.
pub(super) struct ClassPacket<'a> {
    pub plan: &'a FirewallPlan,
    pub class: &'a ClassKey,
    /// The identity key of the address at the other end.
    pub peer: &'a IdentityKey,
    pub protocol: Option<Protocol>,
    pub port: Option<NonZeroU16>,
    /// Whether a pod sends it to itself, through a service.
    pub is_to_itself: bool,
}

/// The verdict, and the rules that led to it.
pub(super) struct Evaluation<'a> {
    /// The rules of ClusterNetworkPolicies that match, up to the one that decides.
    pub matched: Vec<MatchedRule<'a>>,
    pub verdict: ClassVerdict<'a>,
}

/// See [`PolicyResult`](super::PolicyResult).
pub(super) enum ClassVerdict<'a> {
    Open,
    Accepted,
    Denied,
    Permitted(PermittingRule<'a>),
    Refused,
}

impl<'a> ClassPacket<'a> {
    /// Evaluates tier by tier.
    pub fn evaluate(&self) -> Evaluation<'a> {
        let class = self.class;
        let Some(book) = class.rulebook(&self.plan.rules) else {
            return Evaluation { matched: Vec::new(), verdict: self.by_policies() };
        };
        let evaluator = class.evaluator(&self.plan.peers);
        let admin = evaluator.evaluate(&book.admin, self.peer, self.packet_port());
        let mut matched = admin.matched;
        if admin.is_denied {
            return Evaluation { matched, verdict: ClassVerdict::Denied };
        }
        if admin.is_accepted && !admin.may_pass {
            return Evaluation { matched, verdict: ClassVerdict::Accepted };
        }
        let after_admin = match (class.is_isolated, self.is_to_itself) {
            (true, true) => ClassVerdict::Open,
            (true, false) => self.by_policies(),
            (false, _) => {
                let baseline = evaluator.evaluate(&book.baseline, self.peer, self.packet_port());
                let (is_denied, is_accepted) = (baseline.is_denied, baseline.is_accepted);
                if !admin.is_accepted || is_denied {
                    matched.extend(baseline.matched);
                }
                match (is_denied, is_accepted) {
                    (true, _) => ClassVerdict::Denied,
                    (false, true) => ClassVerdict::Accepted,
                    (false, false) => ClassVerdict::Open,
                }
            }
        };
        let verdict = match after_admin {
            ClassVerdict::Refused | ClassVerdict::Denied => after_admin,
            ClassVerdict::Open | ClassVerdict::Accepted | ClassVerdict::Permitted(_) => {
                if admin.is_accepted { ClassVerdict::Accepted } else { after_admin }
            }
        };
        Evaluation { matched, verdict }
    }

    fn by_policies(&self) -> ClassVerdict<'a> {
        let Self { plan, class, peer, protocol, port, .. } = self;
        match class.permitting(&plan.rules, peer, *protocol, *port) {
            None => ClassVerdict::Refused,
            Some(permitting) => ClassVerdict::Permitted(permitting),
        }
    }

    pub fn packet_port(&self) -> PacketPort {
        PacketPort { protocol: self.protocol, port: self.port.map_or(0, NonZeroU16::get) }
    }
}
