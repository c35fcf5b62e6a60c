//! What is decided about this node: how local traffic is detected, where node ports are served,
//! and which addresses are the node's own.

mod detector;
mod node_port;
mod node_side;
mod own_address;

pub use detector::{Arrival, Detector, Local, Port};
pub use node_port::{NodePortAddresses, node_port_addresses};
pub use node_side::{MarkBit, NodeSide};
pub(super) use own_address::own_addresses;
