//! ClusterNetworkPolicies whose order the API leaves open.

use std::fmt;
use std::sync::Arc;

use super::permission::ClassKey;
use super::rules::PoliciesInForce;
use denizen_model::Tier;

/// ClusterNetworkPolicies of one tier and priority that say something about one direction of one
/// pod. Their names decide which comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyTie {
    pub tier: Tier,
    pub priority: u16,
    /// Their names, in the order in which they are evaluated.
    pub policies: Vec<Arc<str>>,
}

impl PolicyTie {
    /// The ties among the policies of a class.
    pub(super) fn of_class(class: &ClassKey, rules: &PoliciesInForce) -> Vec<Self> {
        let policies = class.tiers.iter().flatten().filter_map(|name| rules.tier(name));
        let policies: Vec<_> = policies.map(|policy| &policy.source).collect();
        let same = policies.chunk_by(|a, b| (a.tier, a.priority) == (b.tier, b.priority));
        let ties = same.filter(|same| same.len() > 1).map(|same| Self {
            tier: same[0].tier,
            priority: same[0].priority,
            policies: same.iter().map(|policy| policy.name.clone()).collect(),
        });
        ties.collect()
    }
}

impl fmt::Display for PolicyTie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, priority, policies } = self;
        write!(
            f,
            "ClusterNetworkPolicies {} select one pod and have one priority, {tier} {priority}: \
             their names decide which comes first",
            policies.join(", ")
        )
    }
}
