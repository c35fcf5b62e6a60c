//! What the constant part of a table depends on.

use ipnetwork::IpNetwork;

use super::name::TableFamily;
use crate::plan::{LocalTest, NodePlan, NodeSide};

/// What the constant part depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableConfig {
    /// What local pods' packets are known by (of this family).
    pub local: Vec<LocalTest>,
    /// The ranges whose unallocated addresses nobody has (of this family).
    pub service_ranges: Vec<IpNetwork>,
    /// Where pods keep their address (of this family); `None` where that is not denizen's business.
    pub egress: Option<Vec<IpNetwork>>,
    /// What the operator settled about this node.
    pub node_side: NodeSide,
}

impl TableConfig {
    /// As the node's plan has it.
    pub fn new(table_family: TableFamily, node: &NodePlan) -> Self {
        Self {
            local: match table_family {
                TableFamily::Ip(family) => node.detection.tests(family).cloned().collect(),
                // It sees ports, and leaves the rest to the IP tables.
                TableFamily::Bridge => node.detection.ports().cloned().collect(),
            },
            service_ranges: table_family.own(&node.service_ranges),
            egress: match table_family {
                TableFamily::Ip(family) => node.egress.kept(family).map(<[_]>::to_vec),
                TableFamily::Bridge => None,
            },
            node_side: node.node_side,
        }
    }

    /// Whether it matters through which port of a bridge a packet came in.
    pub fn reads_ports(&self) -> bool {
        self.local.iter().any(LocalTest::asks_port)
    }

    /// Whether a bridged pod's port of its bridge must be right.
    pub fn proves_ports(&self) -> bool {
        self.local.contains(&LocalTest::PodAtItsPort)
    }
}
