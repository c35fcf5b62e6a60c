//! Decisions: what becomes of a packet at every frontend of every service.
//!
//! Pure, and no word of any backend: nftables, iptables and `explain` all read the same
//! [`Frontend`]s.

mod conflict;
mod decide;
mod detector;
mod frontend;
mod health_check;
mod node_port;
mod node_side;
mod outcome;
mod own_address;
mod remark;
mod selection;
#[cfg(test)]
mod tests;

pub use conflict::{Conflict, Plan, Touched};
pub use decide::{Settings, frontends};
pub use detector::{Arrival, Detector, Local, Port};
pub use frontend::{Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade};
pub use health_check::{HealthCheck, HealthChecks, HealthPorts};
pub use node_port::{NodePortAddresses, node_port_addresses};
pub use node_side::{MarkBit, NodeSide};
pub use outcome::{Endpoint, Endpoints, Outcome};
pub use remark::Remark;
pub use selection::{Selection, Whereabouts, select, serving};
