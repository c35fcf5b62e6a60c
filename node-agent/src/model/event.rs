//! What sources say.

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::egress::Egress;
use super::endpoint::{Slice, SliceName};
use super::node::{Node, NodeAddress};
use super::pod::PodSet;
use super::service::{Service, ServiceName};

/// What a source must have listed once before services are programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Listing {
    /// All Services.
    Services,
    /// All EndpointSlices.
    Slices,
    /// This Node object, or that there is none.
    Node,
    /// All ServiceCIDRs, or that the API has none.
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

/// One fact from the outside world. Each says what is so now, not what changed: an event that is
/// repeated or overtaken by a later one does no harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A Service is so, or is gone (or no longer ours to program).
    Service(ServiceName, Option<Service>),
    /// An EndpointSlice is so, or is gone.
    Slice(SliceName, Option<Slice>),
    /// What was told last of this slice answers to a change of a pod or a Service that was made
    /// then.
    Triggered(SliceName, Timestamp),
    /// This node's Node object is so, or is missing.
    Node(Option<Node>),
    /// A ServiceCIDR of this name has these ranges, or is gone.
    ServiceCidr(String, Option<Vec<IpNetwork>>),
    /// The state file says so.
    Pods(PodSet),
    /// The kernel's links have these addresses, sorted.
    Addresses(Vec<NodeAddress>),
    /// Pods' connections beyond services are to be masqueraded so.
    Egress(Egress),
    /// The first full list of these objects has been told.
    Listed(Listing),
}
