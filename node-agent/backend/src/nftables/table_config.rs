//! The inputs of a table's constant part.

use ipnetwork::IpNetwork;

use super::name::ServiceTable;
use denizen_model::Family;
use denizen_plan::{LocalTest, NodePlan, NodeSide};

/// The inputs of a table's constant part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableConfig {
    /// The tests that detect local pods' packets (of this family).
    pub local: Vec<LocalTest>,
    /// The service ranges, whose unallocated addresses nobody has (of this family).
    pub service_ranges: Vec<IpNetwork>,
    /// The ranges towards which pods keep their address (of this family); `None` if egress
    /// masquerade is off.
    pub egress: Option<Vec<IpNetwork>>,
    /// Settings of this node.
    pub node_side: NodeSide,
    /// Every address of the node except loopback serves node ports (of this family).
    pub node_ports_everywhere: bool,
    /// Loopback serves node ports, too (of this family).
    pub node_ports_on_loopback: bool,
    /// IPVS may carry connections (of this family).
    pub by_ipvs: bool,
}

impl TableConfig {
    /// The part of the node's plan for this family.
    pub fn new(table_family: ServiceTable, node: &NodePlan) -> Self {
        let in_family = |is_so: &dyn Fn(Family) -> bool| match table_family {
            ServiceTable::Ip(family) => is_so(family),
            ServiceTable::Arp | ServiceTable::Bridge => false,
        };
        Self {
            local: match table_family {
                ServiceTable::Ip(family) => node.detection.tests(family).cloned().collect(),
                // The bridge's table only tests ports. The IP tables test the rest.
                ServiceTable::Bridge => node.detection.ports().cloned().collect(),
                ServiceTable::Arp => Vec::new(),
            },
            service_ranges: table_family.own(&node.service_ranges),
            egress: match table_family {
                ServiceTable::Ip(family) => node.egress.kept(family).map(<[_]>::to_vec),
                ServiceTable::Arp | ServiceTable::Bridge => None,
            },
            node_side: node.node_side,
            node_ports_everywhere: in_family(&|family| node.node_ports.are_everywhere(family)),
            node_ports_on_loopback: in_family(&|family| node.node_ports.are_on_loopback(family)),
            by_ipvs: match table_family {
                ServiceTable::Ip(family) => node.route_sources.contains_key(&family),
                ServiceTable::Arp => node.route_sources.contains_key(&Family::V4),
                ServiceTable::Bridge => false,
            },
        }
    }

    /// Whether it matters through which port of a bridge a packet came in.
    pub fn reads_ports(&self) -> bool {
        self.local.iter().any(LocalTest::asks_port)
    }

    /// Whether a bridged pod's packets must come in through its port of the bridge.
    pub fn proves_ports(&self) -> bool {
        self.local.contains(&LocalTest::PodAtItsPort)
    }
}
