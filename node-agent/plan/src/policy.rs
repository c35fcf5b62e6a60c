//! What a plan depends on besides facts: the configuration, and what the backend can do.

use ipnetwork::IpNetwork;

use super::firewall::FirewallSettings;
use super::host_ports::HostPortSettings;
use super::ipvs::Scheduler;
use super::node::{Detector, NodePortAddresses, NodeSide};
use super::services::Settings;

/// The configuration that affects packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub settings: Settings,
    pub detector: Detector,
    pub node_ports: NodePortAddresses,
    pub node_side: NodeSide,
    /// Whether services are planned. If not, another program serves them, and the plan has none.
    pub services: bool,
    /// The pod firewall; `None` if it is off.
    pub firewall: Option<FirewallSettings>,
    /// Ranges in which pods alone have addresses, for a pod firewall that may not know all pods.
    pub pod_ranges: Vec<IpNetwork>,
    /// Host ports; `None` if another program serves them.
    pub host_ports: Option<HostPortSettings>,
    /// IPVS's scheduler for services that ask for none.
    pub scheduler: Scheduler,
}

/// What a backend can do that others cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It handles all ports of a cluster IP and all addresses of the service ranges: a port without
    /// a service is refused, and packets to an unallocated address are dropped. Otherwise both are
    /// left alone.
    pub unused_addresses: bool,
    /// It protects the node's loopback addresses before services are looked up. Otherwise after:
    /// only packets that no service translated are dropped.
    pub guards_loopback_first: bool,
    /// It checks `loadBalancerSourceRanges` before it looks for endpoints. Otherwise a service
    /// without endpoints is refused first.
    pub restricts_first: bool,
    /// IPVS chooses among endpoints where it can. Otherwise the backend itself always does.
    pub balances_by_ipvs: bool,
}
