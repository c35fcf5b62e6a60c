//! NetworkPolicy and ClusterNetworkPolicy as Kubernetes describes them: the objects as they are in
//! manifests, and an oracle that says which packets they permit. Neither depends on denizen's code.

mod build;
pub mod churn;
mod object;
mod oracle;
mod selector;
mod tier;

pub use object::{
    Container, ContainerPort, IpBlock, Labels, NamespaceObject, NetworkPolicy, NodeObject,
    ObjectMeta, PodIp, PodObject, PodSpec, PodStatus, PolicyPeer, PolicyPort, PolicyRule,
    PolicySpec, PolicyWorld, PortNumber,
};
pub use oracle::{PolicyPacket, Transport, allowed, egress_allowed, ingress_allowed};
pub use selector::{LabelSelector, Requirement};
pub use tier::ClusterNetworkPolicy;
