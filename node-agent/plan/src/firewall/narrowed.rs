//! Finds the addresses whose established connections may be forbidden after a change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::direction::Direction;
use super::{FirewallChanges, FirewallPlan};

/// The addresses whose rules became narrower or whose identity changed; with `all`, also the
/// addresses of every restricted pod.
pub fn narrowed(plan: &FirewallPlan, changes: &FirewallChanges, all: bool) -> BTreeSet<IpAddr> {
    let restricted = || plan.pods().filter(|(_, pod_rules)| pod_rules.is_restricted());
    if restricted().next().is_none() {
        return BTreeSet::new();
    }
    let narrower = changes.pod_rules.iter().filter(|change| {
        let Some(after) = &change.after else { return false };
        match &change.before {
            // The previous owner of the address may have been open.
            None => after.is_restricted(),
            Some(before) => Direction::BOTH
                .iter()
                .any(|direction| after.of(*direction).is_narrower_than(before.of(*direction))),
        }
    });
    // A rule that denies by labels may apply to an address that had no identity before.
    let has_tiers = plan.has_tiers();
    let renamed = changes.identities.iter().filter(|change| has_tiers || change.before.is_some());
    let mut narrowed: BTreeSet<IpAddr> =
        narrower.map(|change| change.address).chain(renamed.map(|change| change.of)).collect();
    if all {
        narrowed.extend(restricted().map(|(address, _)| address));
    }
    narrowed
}
