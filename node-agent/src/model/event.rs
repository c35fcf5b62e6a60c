//! The events that sources send.

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::egress::Egress;
use super::endpoint::{Slice, SliceName};
use super::node::{Node, NodeAddress};
use super::pod::PodSet;
use super::service::{Service, ServiceName};

/// The first lists that services wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Listing {
    /// All Services.
    Services,
    /// All EndpointSlices.
    Slices,
    /// This node's Node object, or that there is none.
    Node,
    /// All ServiceCIDRs, or that the API does not serve them.
    ServiceCidrs,
    /// The addresses of this node's links.
    Addresses,
}

impl std::fmt::Display for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Services => "services",
            Self::Slices => "endpoint slices",
            Self::Node => "this node's object",
            Self::ServiceCidrs => "service CIDRs",
            Self::Addresses => "this node's addresses",
        })
    }
}

impl Listing {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Services, Self::Slices, Self::Node, Self::ServiceCidrs, Self::Addresses];
}

/// One fact from the outside world. It gives the current state, not a difference, so a repeated or
/// superseded event does no harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The state of a Service; `None` if it is gone or not served by this proxy.
    Service(ServiceName, Option<Service>),
    /// The state of an EndpointSlice; `None` if it is gone.
    Slice(SliceName, Option<Slice>),
    /// The last state of this slice follows a change of a pod or a Service at this time.
    Triggered(SliceName, Timestamp),
    /// The state of this node's Node object; `None` if there is none.
    Node(Option<Node>),
    /// The ranges of the ServiceCIDR with this name; `None` if it is gone.
    ServiceCidr(String, Option<Vec<IpNetwork>>),
    /// The pods in the state file.
    Pods(PodSet),
    /// The addresses of the kernel's links, sorted.
    Addresses(Vec<NodeAddress>),
    /// The egress configuration.
    Egress(Egress),
    /// The first full list of these objects is complete.
    Listed(Listing),
}
