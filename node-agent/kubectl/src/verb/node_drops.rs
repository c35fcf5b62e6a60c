//! Which nodes dropped or refused packets, and how many.

use std::cmp::Reverse;

use serde::Serialize;

/// How many nodes are shown for each reason or flow.
const NODES: usize = 5;

/// How many packets of one reason, or of one flow, a node dropped or refused.
#[derive(Debug, Serialize)]
pub struct NodeDrops {
    node: String,
    packets: u64,
}

impl NodeDrops {
    pub fn new(node: String, packets: u64) -> Self {
        Self { node, packets }
    }
}

/// Sums the packets of all nodes, and sorts the nodes: most packets first.
pub fn sum(nodes: &mut [NodeDrops]) -> u64 {
    nodes.sort_by_key(|of| Reverse(of.packets));
    nodes.iter().fold(0, |sum: u64, of| sum.saturating_add(of.packets))
}

/// The first nodes, with their packets.
pub fn nodes_text(nodes: &[NodeDrops]) -> String {
    let of = |of: &NodeDrops| format!("{} on {}", of.packets, of.node);
    let shown = nodes.iter().take(NODES).map(of).collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(NODES) {
        0 => shown,
        more => format!("{shown}, and {more} more nodes"),
    }
}
