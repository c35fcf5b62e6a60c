//! What the constant part of a table depends on.

use ipnetwork::IpNetwork;

use crate::plan::{Detector, NodeSide};

/// What the constant part depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// How local traffic is told apart.
    pub detector: Detector,
    /// The ranges that the detector stands for, where it stands for ranges (of this family).
    pub ranges: Vec<IpNetwork>,
    /// The ranges that cluster IPs come from (of this family), where they are known.
    pub service_ranges: Vec<IpNetwork>,
    /// Where pods keep their address (of this family); `None` where that is not denizen's business.
    pub egress: Option<Vec<IpNetwork>>,
    /// What the operator settled about this node.
    pub node_side: NodeSide,
}
