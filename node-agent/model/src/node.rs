//! This node, and the others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::Labels;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    /// As [`OtherNode::created`].
    pub created: Arc<str>,
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
    /// Label `node.kubernetes.io/exclude-from-external-load-balancers`, whatever its value.
    pub excluded: bool,
    /// Condition `NetworkUnavailable` is true.
    pub network_unavailable: bool,
    /// The keys of `spec.taints`.
    pub taints: Vec<Arc<str>>,
    pub labels: Labels,
}

/// The Node object of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNode {
    /// `metadata.creationTimestamp` as the API writes it (RFC 3339 in UTC, so it sorts); empty in
    /// hand written manifests. If two nodes claim one range, the older one has it.
    pub created: Arc<str>,
    /// `status.addresses` of type InternalIP, in the order of the API.
    pub internal: Vec<IpAddr>,
    /// Those of type ExternalIP.
    pub external: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNetwork>,
    pub labels: Labels,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// This node, if it has a Node object.
    pub own: Option<Node>,
    pub others: Arc<BTreeMap<Arc<str>, OtherNode>>,
}

/// An address on a link of this node's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    pub address: IpAddr,
    pub interface: Arc<str>,
    /// The link is a dummy device (`ip link add … type dummy`), through which no packet arrives.
    pub dummy: bool,
}
