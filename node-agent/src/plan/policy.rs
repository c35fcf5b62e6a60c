//! What a plan is made by, beside facts: what the operator asked for, and what the backend can do.

use super::node::{Detector, NodePortAddresses, NodeSide};
use super::services::Settings;

/// What the operator asked for, as far as it decides about packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What decides about every service alike.
    pub settings: Settings,
    /// How local traffic is detected.
    pub detector: Detector,
    /// Where node ports are served.
    pub node_ports: NodePortAddresses,
    /// What is settled about this node.
    pub node_side: NodeSide,
}

/// What a backend's facility can do that others cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It answers for the whole of a cluster IP and of the ranges that these come from: a port that
    /// no service has is refused, and what goes to an unallocated address is dropped. Else both are
    /// left alone.
    pub unused_addresses: bool,
    /// It keeps others out of the node's loopback addresses before a service is looked for. Else it
    /// keeps out what no service has translated.
    pub guards_loopback_first: bool,
    /// It asks `loadBalancerSourceRanges` before it is known whether anybody serves. Else it
    /// refuses first.
    pub restricts_first: bool,
}
