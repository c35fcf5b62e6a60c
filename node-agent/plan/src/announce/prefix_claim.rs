//! A claim on a prefix, and what is decided about it.

use ipnetwork::IpNetwork;

use super::super::FrontendKey;
use super::{Announcement, Withheld};

/// The decision about one owner's claim on a prefix.
pub(super) type PrefixDecision = Result<Announcement, Withheld>;

/// The claim of one owner on a prefix.
#[derive(Debug, PartialEq)]
pub(super) struct PrefixClaim {
    pub(super) prefix: IpNetwork,
    pub(super) verdict: PrefixDecision,
    /// The owner's frontends at which this node drops packets from outside.
    pub(super) dropped: Vec<FrontendKey>,
}

impl PrefixClaim {
    /// A claim without dropped frontends.
    pub(super) fn of(prefix: IpNetwork, verdict: PrefixDecision) -> Self {
        Self { prefix, verdict, dropped: Vec::new() }
    }
}
