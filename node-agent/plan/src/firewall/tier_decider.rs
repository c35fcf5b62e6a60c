//! Which rule of which ClusterNetworkPolicy decides.

use std::sync::Arc;

use super::tiered_policy::{TieredPolicy, TieredRule};
use denizen_model::{Action, Tier};

/// A rule of a ClusterNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierDecider {
    pub tier: Tier,
    pub priority: u16,
    pub policy: Arc<str>,
    /// Its index in the policy's list.
    pub index: usize,
    /// Empty if it has none.
    pub name: Arc<str>,
    pub action: Action,
}

impl TierDecider {
    pub(super) fn of(policy: &TieredPolicy, rule: &TieredRule) -> Self {
        Self {
            tier: policy.source.tier,
            priority: policy.source.priority,
            policy: policy.source.name.clone(),
            index: rule.index,
            name: rule.name.clone(),
            action: rule.action,
        }
    }
}
