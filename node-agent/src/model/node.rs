//! This node.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

/// The Node object of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Label `topology.kubernetes.io/zone`; `None` when missing or empty.
    pub zone: Option<Arc<str>>,
    /// `status.addresses` of type InternalIP, then ExternalIP, in the order of the API. The first
    /// of each family is the primary one.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNetwork>,
    /// The node is being deleted, or the cluster autoscaler is about to delete it: load balancers
    /// should stop using it (KEP-3836).
    pub leaving: bool,
}

/// An address on a link of this node's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The address.
    pub address: IpAddr,
    /// The link's name.
    pub interface: Arc<str>,
    /// The link is a dummy device (`ip link add … type dummy`), through which no packet arrives.
    pub dummy: bool,
}
