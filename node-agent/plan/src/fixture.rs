//! Settings for tests, also of the crates that use this one.

use crate::{
    Capabilities, Detector, NodePortAddresses, NodeSide, PermittedRanges, Policy, Scheduler,
    Settings,
};

pub fn settings() -> Settings {
    Settings {
        node_name: "node-1".into(),
        node_hints: true,
        masquerade_all: false,
        permitted: PermittedRanges::default(),
    }
}

/// By default, as the agent's flags have it.
pub fn policy() -> Policy {
    Policy {
        settings: settings(),
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        services: true,
        pod_ranges: Vec::new(),
        firewall: None,
        host_ports: None,
        scheduler: Scheduler::default(),
    }
}

/// A backend that can do everything.
pub const CAPABLE: Capabilities = Capabilities {
    unused_addresses: true,
    guards_loopback_first: true,
    restricts_first: true,
    balances_by_ipvs: false,
};
