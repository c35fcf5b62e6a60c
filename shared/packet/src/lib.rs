//! Words for packets that drivers and the model share: the family of their addresses, their
//! transport protocol, and flows as connection tracking knows them. Plain values.

#![deny(missing_docs)]

mod family;
mod flow_selection;
mod packed_flow;
mod protocol;
mod tracked_flow;
mod treatment;

pub use family::{Family, family_of};
pub use flow_selection::FlowSelection;
pub use packed_flow::PackedFlow;
pub use protocol::Protocol;
pub use tracked_flow::{TrackedFlow, Transport};
pub use treatment::Treatment;
