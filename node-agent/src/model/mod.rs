//! What is true: services, endpoints, this node, its pods. Plain values; no kernel, no Kubernetes
//! client.

mod egress;
mod endpoint;
mod event;
mod node;
mod pod;
mod range;
mod service;
mod world;

pub use egress::Egress;
pub use endpoint::{EndpointState, Slice, SliceEndpoint, SliceName, SlicePort};
pub use event::{Event, Listing};
pub use node::{Node, NodeAddress};
pub use pod::{LocalPod, PodSet, PodVersion};
pub use range::canonical_range;
pub use service::{
    Affinity, Family, Protocol, Service, ServiceName, ServicePort, ServicePortName, SourceRanges,
    TrafficPolicy, family_of,
};
pub use world::{Change, Model, Snapshot};
