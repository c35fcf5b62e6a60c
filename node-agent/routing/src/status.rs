//! What `status` says of routes and announcements.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutingStatus {
    /// All Nodes are known. Before that no route is made or removed.
    pub is_known: bool,
    pub pod_cidrs: Vec<String>,
    /// Ranges that have their route in the kernel.
    pub routes: usize,
    /// The podCIDRs that get none, each with the reason.
    pub rejected: Vec<String>,
    /// Routes that were repaired after another program changed them.
    pub repaired: u64,
}

impl fmt::Display for RoutingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_known, pod_cidrs: _, routes, rejected, repaired } = self;
        if !is_known {
            return write!(f, "waiting for all nodes");
        }
        let rejected = rejected.len();
        write!(f, "{routes} to other nodes' pods, {rejected} rejected, {repaired} repaired")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnnouncementsStatus {
    /// All first lists are complete. Before that nothing is announced or withdrawn.
    pub is_known: bool,
    pub pod_cidrs: Vec<String>,
    pub table: u32,
    /// Prefixes that are to be announced.
    pub wanted: usize,
    /// Prefixes in the table.
    pub in_table: usize,
    /// The announced prefixes in the table, by class.
    pub announced: BTreeMap<String, usize>,
    /// Recorded pods with an address that no announcement covers.
    pub uncovered_pods: usize,
    /// Withheld prefixes about which somebody must act, each with the reason.
    pub refused: Vec<String>,
    pub is_draining: bool,
    /// Announcements that were repaired after another program changed them.
    pub repaired: u64,
}

impl fmt::Display for AnnouncementsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_known, pod_cidrs: _, table, wanted, in_table, announced, .. } = self;
        let Self { refused, is_draining, repaired, .. } = self;
        if !is_known {
            return write!(f, "waiting for the first lists");
        }
        let counts = announced.iter().map(|(class, count)| format!(", {class} {count}"));
        let counts: String = counts.collect();
        let draining = if *is_draining { ", draining" } else { "" };
        let refused = refused.len();
        write!(
            f,
            "{in_table} of {wanted} in table {table}{counts}, {refused} refused, {repaired} \
             repaired{draining}"
        )
    }
}
