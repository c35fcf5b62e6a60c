//! How a plan of the pod firewall differs from the one before.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::blocks::AddressRange;
use super::direction::Direction;
use super::direction_rules::PodRules;
use super::identity::IdentityId;
use denizen_state::AttachmentId;

/// A changed decision about one address of this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRulesChange {
    pub address: IpAddr,
    /// `None` if it was not a pod's.
    pub before: Option<PodRules>,
    /// `None` if it is no longer a pod's.
    pub after: Option<PodRules>,
}

impl PodRulesChange {
    /// Whether the address begins or ceases to be restricted in a direction, or to be a pod's.
    pub fn changes_isolation(&self) -> bool {
        let isolation = |pod_rules: &PodRules| {
            Direction::BOTH.map(|direction| pod_rules.of(direction).isolation)
        };
        self.before.as_ref().map(isolation) != self.after.as_ref().map(isolation)
    }
}

/// A changed identity of a range or an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityChange<T> {
    pub of: T,
    pub before: Option<IdentityId>,
    pub after: Option<IdentityId>,
}

/// What differs from the plan before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FirewallChanges {
    /// [`FirewallPlan::is_known`](super::FirewallPlan::is_known),
    /// [`is_left_open`](super::FirewallPlan::is_left_open) or
    /// [`is_enforced`](super::FirewallPlan::is_enforced) differs, or whether every pod is confined.
    pub state: bool,
    /// The addresses of this node's pods about which decisions differ.
    pub pod_rules: Vec<PodRulesChange>,
    /// Addresses of pods and nodes.
    pub identities: Vec<IdentityChange<IpAddr>>,
    /// Ranges of `ipBlock`s.
    pub blocks: Vec<IdentityChange<AddressRange>>,
    /// Addresses that became a pod's or a node's (`true`), or no longer are (`false`): only their
    /// owner may send from them.
    pub taken: Vec<(IpAddr, bool)>,
    /// Recorded pods that begin or cease to have an address.
    pub owners: BTreeSet<AttachmentId>,
    /// Where tunnels end, or [`FirewallPlan::links`](super::FirewallPlan::links), differ.
    pub surroundings: bool,
    /// Identities that no address and no range has any longer.
    pub forgotten: Vec<IdentityId>,
    /// Addresses whose established connections may be forbidden now.
    pub narrowed: BTreeSet<IpAddr>,
    /// Addresses that are no longer a pod's of this node, or are another pod's than before. The
    /// next pod with such an address must not inherit the connections of the last one.
    pub departed: BTreeSet<IpAddr>,
}

impl FirewallChanges {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Notes that an address has another identity. A change of this address as a pod's may already
    /// be noted.
    pub(super) fn note_identity(
        &mut self,
        of: IpAddr,
        before: Option<IdentityId>,
        after: Option<IdentityId>,
    ) {
        if before == after {
            return;
        }
        match self.identities.iter_mut().find(|change| change.of == of) {
            Some(change) => {
                change.before = change.before.or(before);
                change.after = change.after.or(after);
            }
            None => self.identities.push(IdentityChange { of, before, after }),
        }
    }
}
