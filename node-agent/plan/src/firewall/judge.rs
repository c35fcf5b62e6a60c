//! Judges one packet by the policies of a class of pods, tier by tier, and finds the rule that
//! decides.
//!
//! The kernel gets the result for all packets at once, from [`permission`](super::permission) and
//! [`tier`](super::tier). Tests compare both.

use std::num::NonZeroU16;

use super::FirewallPlan;
use super::identity::IdentityKey;
use super::permission::{ClassKey, Permitting};
use super::tier::{Asked, MatchedRule};
use denizen_model::Protocol;

/// A packet, as the policies of a class of pods see it.
pub(super) struct Judge<'a> {
    pub plan: &'a FirewallPlan,
    pub class: &'a ClassKey,
    /// The identity key of the address at the other end.
    pub peer: &'a IdentityKey,
    pub protocol: Option<Protocol>,
    pub port: Option<NonZeroU16>,
    /// Whether a pod sends it to itself, through a service.
    pub is_to_itself: bool,
}

/// The judgement, and the rules that led to it.
pub(super) struct Judged<'a> {
    /// The rules of ClusterNetworkPolicies that match, up to the one that decides.
    pub matched: Vec<MatchedRule<'a>>,
    pub judgement: Judgement<'a>,
}

/// See [`PolicyResult`](super::PolicyResult).
pub(super) enum Judgement<'a> {
    Open,
    Accepted,
    Denied,
    Permitted(Permitting<'a>),
    Refused,
}

impl<'a> Judge<'a> {
    /// Tier by tier.
    pub fn judged(&self) -> Judged<'a> {
        let class = self.class;
        let Some(book) = class.rulebook(&self.plan.rules) else {
            return Judged { matched: Vec::new(), judgement: self.by_policies() };
        };
        let painter = class.painter(&self.plan.peers);
        let admin = painter.walk(&book.admin, self.peer, self.asked());
        let mut matched = admin.matched;
        if admin.is_denied {
            return Judged { matched, judgement: Judgement::Denied };
        }
        if admin.is_accepted && !admin.may_pass {
            return Judged { matched, judgement: Judgement::Accepted };
        }
        let behind = match (class.is_isolated, self.is_to_itself) {
            (true, true) => Judgement::Open,
            (true, false) => self.by_policies(),
            (false, _) => {
                let baseline = painter.walk(&book.baseline, self.peer, self.asked());
                let (is_denied, is_accepted) = (baseline.is_denied, baseline.is_accepted);
                if !admin.is_accepted || is_denied {
                    matched.extend(baseline.matched);
                }
                match (is_denied, is_accepted) {
                    (true, _) => Judgement::Denied,
                    (false, true) => Judgement::Accepted,
                    (false, false) => Judgement::Open,
                }
            }
        };
        let judgement = match behind {
            Judgement::Refused | Judgement::Denied => behind,
            Judgement::Open | Judgement::Accepted | Judgement::Permitted(_) => {
                if admin.is_accepted { Judgement::Accepted } else { behind }
            }
        };
        Judged { matched, judgement }
    }

    fn by_policies(&self) -> Judgement<'a> {
        let Self { plan, class, peer, protocol, port, .. } = self;
        match class.permitting(&plan.rules, peer, *protocol, *port) {
            None => Judgement::Refused,
            Some(permitting) => Judgement::Permitted(permitting),
        }
    }

    pub fn asked(&self) -> Asked {
        Asked { protocol: self.protocol, port: self.port.map_or(0, NonZeroU16::get) }
    }
}
