//! The decisions about this node: how local traffic is detected, where node ports are served,
//! egress masquerade, and which addresses are the node's own.

mod detector;
mod egress;
mod local;
mod node_plan;
mod node_port;
mod node_side;
mod own_address;
mod source_address;

pub use detector::Detector;
pub use egress::{EgressMasquerade, SeenAs};
pub use local::{Arrival, BridgePort, Detection, Local, LocalTest};
pub use node_plan::NodePlan;
pub(crate) use node_port::unspecified;
pub use node_port::{NodePortAddresses, NodePorts, node_port_addresses};
pub use node_side::{MarkBit, NodeSide};
