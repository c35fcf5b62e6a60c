//! The name of an object, as one type for all kinds.

use std::fmt;
use std::sync::Arc;

use super::ObjectKind;
use denizen_model::{Event, PodName, PolicyName, ServiceName, SliceName};

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKey {
    Service(ServiceName),
    Slice(SliceName),
    /// This node's Node.
    Node,
    /// Another node's Node.
    OtherNode(Arc<str>),
    ServiceCidr(String),
    Namespace(Arc<str>),
    Pod(PodName),
    NetworkPolicy(PolicyName),
    ClusterNetworkPolicy(Arc<str>),
}

impl ObjectKey {
    /// The key of an object with this kind, namespace and name, on the node `here`.
    pub fn new(kind: ObjectKind, namespace: &str, name: &str, here: &str) -> Self {
        match kind {
            ObjectKind::Service => Self::Service(ServiceName::new(namespace, name)),
            ObjectKind::EndpointSlice => {
                Self::Slice(SliceName { namespace: namespace.into(), name: name.into() })
            }
            ObjectKind::Node if name == here => Self::Node,
            ObjectKind::Node | ObjectKind::OtherNode => Self::OtherNode(name.into()),
            ObjectKind::ClusterNetworkPolicy => Self::ClusterNetworkPolicy(name.into()),
            ObjectKind::ServiceCidr => Self::ServiceCidr(name.to_owned()),
            ObjectKind::Namespace => Self::Namespace(name.into()),
            ObjectKind::Pod => {
                Self::Pod(PodName { namespace: namespace.into(), name: name.into() })
            }
            ObjectKind::NetworkPolicy => {
                Self::NetworkPolicy(PolicyName { namespace: namespace.into(), name: name.into() })
            }
        }
    }

    pub fn gone(&self) -> Event {
        match self {
            Self::Service(name) => Event::Service(name.clone(), None),
            Self::Slice(name) => Event::Slice(name.clone(), None),
            Self::Node => Event::Node(None),
            Self::OtherNode(name) => Event::OtherNode(name.clone(), None),
            Self::ServiceCidr(name) => Event::ServiceCidr(name.clone(), None),
            Self::Namespace(name) => Event::Namespace(name.clone(), None),
            Self::Pod(name) => Event::ClusterPod(name.clone(), None),
            Self::NetworkPolicy(name) => Event::NetworkPolicy(name.clone(), None),
            Self::ClusterNetworkPolicy(name) => Event::ClusterNetworkPolicy(name.clone(), None),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(name) => write!(f, "EndpointSlice {name}"),
            Self::Node => f.write_str("Node of this node"),
            Self::OtherNode(name) => write!(f, "Node {name}"),
            Self::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
            Self::Namespace(name) => write!(f, "Namespace {name}"),
            Self::Pod(name) => write!(f, "Pod {name}"),
            Self::NetworkPolicy(name) => write!(f, "NetworkPolicy {name}"),
            Self::ClusterNetworkPolicy(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}
