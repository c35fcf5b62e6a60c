//! NetworkPolicy as Kubernetes describes it: the objects as they are in manifests, and an oracle
//! that says which packets they permit. Both know nothing of denizen.

mod build;
pub mod churn;
mod object;
mod oracle;
mod selector;

pub use object::{
    Container, ContainerPort, IpBlock, Labels, Metadata, Namespace, NetworkPolicy, Node, Peer, Pod,
    PodIp, PodSpec, PodStatus, PolicySpec, Port, PortNumber, Rule, World,
};
pub use oracle::{Packet, Transport, allowed, egress_allowed, ingress_allowed};
pub use selector::{Requirement, Selector};
