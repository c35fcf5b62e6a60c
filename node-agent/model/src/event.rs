//! The events that sources send.

use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::cluster_network_policy::ClusterNetworkPolicy;
use super::cluster_pod::{ClusterPod, Namespace, PodName};
use super::egress::Egress;
use super::endpoint::{Slice, SliceName};
use super::link::NodeLinks;
use super::network_policy::{NetworkPolicy, PolicyName};
use super::node::{Node, NodeAddress, OtherNode};
use super::pod::PodSet;
use super::pod_coverage::PodCoverage;
use super::service::{ForeignService, Service, ServiceName};

/// The first lists that a feature waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Listing {
    Services,
    Slices,
    /// This node's Node object, or that there is none. If the other Nodes are followed too, they
    /// are in the same list.
    Node,
    /// All ServiceCIDRs, or that the API does not serve them.
    ServiceCidrs,
    /// The addresses of this node's links.
    Addresses,
    Namespaces,
    Pods,
    NetworkPolicies,
    /// All ClusterNetworkPolicies, or that the API does not serve them.
    ClusterNetworkPolicies,
    /// All other Nodes, if only ClusterNetworkPolicies need them.
    OtherNodes,
}

impl std::fmt::Display for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Services => "services",
            Self::Slices => "endpoint slices",
            Self::Node => "this node's object",
            Self::ServiceCidrs => "service CIDRs",
            Self::Addresses => "this node's addresses",
            Self::Namespaces => "namespaces",
            Self::Pods => "pods",
            Self::NetworkPolicies => "network policies",
            Self::ClusterNetworkPolicies => "cluster network policies",
            Self::OtherNodes => "other nodes",
        })
    }
}

impl Listing {
    /// The lists that services wait for.
    pub const SERVICES: [Self; 5] =
        [Self::Services, Self::Slices, Self::Node, Self::ServiceCidrs, Self::Addresses];
    /// The lists that the pod firewall waits for. Without this node's addresses, it would treat the
    /// node as a foreign host, and not know where the node's tunnels end.
    pub const FIREWALL: [Self; 5] = [
        Self::Namespaces,
        Self::Pods,
        Self::NetworkPolicies,
        Self::ClusterNetworkPolicies,
        Self::Addresses,
    ];
}

/// One fact from the outside world. It gives the current state, not a difference, so a repeated or
/// superseded event does no harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The state of a Service; `None` if it is gone or not served by this proxy.
    Service(ServiceName, Option<Service>),
    /// The state of a Service that another proxy serves, not this one.
    ForeignService(ServiceName, ForeignService),
    /// The state of an EndpointSlice; `None` if it is gone.
    Slice(SliceName, Option<Slice>),
    /// The slice's last state results from a change of a pod or a Service at this time.
    Triggered(SliceName, Timestamp),
    /// The state of this node's Node object; `None` if there is none.
    Node(Option<Node>),
    /// The state of another node's Node object; `None` if it is gone.
    OtherNode(Arc<str>, Option<OtherNode>),
    /// The ranges of the ServiceCIDR with this name; `None` if it is gone.
    ServiceCidr(String, Option<Vec<IpNetwork>>),
    /// The state of a Namespace; `None` if it is gone.
    Namespace(Arc<str>, Option<Namespace>),
    /// The state of a pod of the cluster; `None` if it is gone, has ended, or uses its node's
    /// network.
    ClusterPod(PodName, Option<Arc<ClusterPod>>),
    /// Which pods of the cluster the sources show. Without this event, a complete list of pods has
    /// all.
    PodCoverage(PodCoverage),
    /// The state of a NetworkPolicy; `None` if it is gone.
    NetworkPolicy(PolicyName, Option<NetworkPolicy>),
    /// The state of a ClusterNetworkPolicy; `None` if it is gone, or cannot be used.
    ClusterNetworkPolicy(Arc<str>, Option<ClusterNetworkPolicy>),
    /// The pods in the state file.
    Pods(PodSet),
    /// The addresses of the kernel's links, sorted.
    Addresses(Vec<NodeAddress>),
    Links(NodeLinks),
    Egress(Egress),
    /// The first full list of these objects is complete.
    Listed(Listing),
    /// The API does not permit the agent to list these objects.
    Refused(Listing),
}
