//! Objects of the Kubernetes API, reduced to the fields that are used, and their conversion to the
//! model's terms.
//!
//! Plain serde structs and pure functions, which do not know where an object came from (a file, the
//! API server). A field that cannot be used is skipped and named in a [`Warning`]; the rest of the
//! object is used.

mod address;
mod cluster_network_policy;
mod decoder;
#[cfg(test)]
mod encodings;
mod key;
pub mod manifest;
mod name;
mod namespace;
mod network_policy;
mod node;
mod pod;
pub mod protobuf;
mod raw_object;
mod service;
mod service_cidr;
mod slice;
mod text;
mod text_map;
mod time;

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use thiserror::Error;

use crate::protobuf::{Field, FromProtobuf, MapEntry, ProtobufError};
use denizen_model::{Listing, ServiceName, SliceName};

pub use address::{parse_address, parse_range};
pub use cluster_network_policy::{ClusterNetworkPolicy, cluster_network_policy};
pub use decoder::Decoder;
pub use key::ObjectKey;
pub use name::is_dns_name;
pub use namespace::{NamespaceObject, namespace};
pub use network_policy::{NetworkPolicyObject, network_policy};
pub use node::{NodeObject, node, other_node};
pub use pod::{PodObject, pod};
pub use raw_object::{DecodedObject, RawObject};
pub use service::{ServiceObject, foreign_service, service};
pub use service_cidr::{ServiceCidr, service_cidr};
pub use slice::{EndpointSlice, slice};
pub use text::BorrowedText;
pub use text_map::TextMap;
pub use time::Time;

/// With any value, this label gives a Service or slice to another proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    #[serde(default, borrow)]
    pub name: BorrowedText<'a>,
    /// The API takes `default` if it is missing.
    pub namespace: Option<BorrowedText<'a>>,
    pub labels: Option<TextMap<'a>>,
    pub annotations: Option<Annotations<'a>>,
    /// In UTC.
    pub creation_timestamp: Option<Time<'a>>,
    /// When its deletion began, if it did.
    pub deletion_timestamp: Option<Time<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Annotations<'a> {
    /// On slices: when the pod or Service changed that led to this state, RFC 3339.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time", borrow)]
    pub last_change_trigger_time: Option<BorrowedText<'a>>,
    /// On Services: IPVS's scheduler.
    #[serde(rename = "kube-router.io/service.scheduler")]
    pub scheduler: Option<BorrowedText<'a>>,
    /// On Services: flags of IPVS's scheduler.
    #[serde(rename = "kube-router.io/service.schedflags")]
    pub scheduler_flags: Option<BorrowedText<'a>>,
}

impl<'a> FromProtobuf<'a> for Metadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            3 => self.namespace = Some(field.text()?),
            8 => self.creation_timestamp = Time::of(field)?,
            9 => self.deletion_timestamp = Time::of(field)?,
            11 => self.labels.get_or_insert_default().take(field)?,
            12 => self.annotations.get_or_insert_default().insert(field.message()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Annotations<'a> {
    fn insert(&mut self, MapEntry { key, value }: MapEntry<'a>) {
        match &*key {
            "endpoints.kubernetes.io/last-change-trigger-time" => {
                self.last_change_trigger_time = Some(value);
            }
            "kube-router.io/service.scheduler" => self.scheduler = Some(value),
            "kube-router.io/service.schedflags" => self.scheduler_flags = Some(value),
            _ => {}
        }
    }
}

impl Metadata<'_> {
    /// The namespace, `default` if it is missing.
    pub fn namespace(&self) -> &str {
        namespace_or_default(self.namespace.as_deref())
    }

    pub fn service_name(&self) -> ServiceName {
        ServiceName::new(self.namespace(), &self.name)
    }

    /// The name of an EndpointSlice with this metadata.
    pub fn slice_name(&self) -> SliceName {
        SliceName { namespace: self.namespace().into(), name: (*self.name).into() }
    }

    /// When the change happened that led to this state; `None` if the annotation is missing or not
    /// a time.
    fn triggered(&self) -> Option<Timestamp> {
        let annotations = self.annotations.as_ref()?;
        annotations.last_change_trigger_time.as_deref()?.parse().ok()
    }

    /// When the object was created, RFC 3339 in UTC; empty if that is not known.
    fn created(&self) -> std::sync::Arc<str> {
        self.creation_timestamp.as_ref().map(Time::to_text).unwrap_or_default().into()
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.get(name)
    }
}

/// A namespace as written, `default` if it is missing.
fn namespace_or_default(written: Option<&str>) -> &str {
    match written {
        None | Some("") => "default",
        Some(namespace) => namespace,
    }
}

/// The kinds of objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
    Namespace,
    Pod,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
    /// `policy.networking.k8s.io` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// `v1` Node, of other nodes: followed once there is a ClusterNetworkPolicy.
    OtherNode,
}

impl ObjectKind {
    pub const ALL: [Self; 9] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::ServiceCidr,
        Self::Namespace,
        Self::Pod,
        Self::NetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::OtherNode,
    ];

    /// From `apiVersion` and `kind`; `None` for other kinds. Both count: Knative's Service is
    /// something else.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            ("v1", "Service") => Some(Self::Service),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Self::EndpointSlice),
            ("v1", "Node") => Some(Self::Node),
            ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => {
                Some(Self::ServiceCidr)
            }
            ("v1", "Namespace") => Some(Self::Namespace),
            ("v1", "Pod") => Some(Self::Pod),
            ("networking.k8s.io/v1", "NetworkPolicy") => Some(Self::NetworkPolicy),
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => {
                Some(Self::ClusterNetworkPolicy)
            }
            (_, _) => None,
        }
    }

    /// The listing that the first list of this kind completes.
    pub fn listing(self) -> Listing {
        match self {
            Self::Service => Listing::Services,
            Self::EndpointSlice => Listing::Slices,
            Self::Node => Listing::Node,
            Self::ServiceCidr => Listing::ServiceCidrs,
            Self::Namespace => Listing::Namespaces,
            Self::Pod => Listing::Pods,
            Self::NetworkPolicy => Listing::NetworkPolicies,
            Self::ClusterNetworkPolicy => Listing::ClusterNetworkPolicies,
            Self::OtherNode => Listing::OtherNodes,
        }
    }

    /// The plural of the kind, for messages.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Service => "Services",
            Self::EndpointSlice => "EndpointSlices",
            Self::Node => "Nodes",
            Self::ServiceCidr => "ServiceCIDRs",
            Self::Namespace => "Namespaces",
            Self::Pod => "Pods",
            Self::NetworkPolicy => "NetworkPolicies",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicies",
            Self::OtherNode => "Nodes of others",
        }
    }

    /// Whether objects of this kind are in namespaces.
    fn is_namespaced(self) -> bool {
        match self {
            Self::Service | Self::EndpointSlice | Self::Pod | Self::NetworkPolicy => true,
            Self::Node
            | Self::ServiceCidr
            | Self::Namespace
            | Self::ClusterNetworkPolicy
            | Self::OtherNode => false,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Namespace => "Namespace",
            Self::Pod => "Pod",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::OtherNode => "Node",
        })
    }
}

/// Why nothing of an object can be used.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// The object has no name, so a report could not say which object it is.
    #[error("{kind} without metadata.name")]
    Unnamed { kind: ObjectKind },
    /// A field has a type that the API does not allow.
    #[error("{kind} {name}: {field}")]
    Malformed {
        kind: ObjectKind,
        /// Namespace and name, if they can be read.
        name: String,
        field: String,
        #[source]
        source: serde_json::Error,
    },
    /// The object's protobuf cannot be read.
    #[error("{kind} {name} cannot be read")]
    Unreadable {
        kind: ObjectKind,
        /// Namespace and name, if they can be read.
        name: String,
        #[source]
        source: ProtobufError,
    },
}

/// A part of an object that is skipped, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Kind, namespace and name.
    pub object: String,
    pub field: String,
    pub value: String,
    /// Why the value cannot be used, and the consequence.
    pub problem: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:?}: {}", self.object, self.field, self.value, self.problem)
    }
}

/// Collects the warnings about one object.
struct Notes<'a> {
    kind: ObjectKind,
    namespace: &'a str,
    name: &'a str,
    warnings: &'a mut Vec<Warning>,
}

impl<'a> Notes<'a> {
    /// For an object that has a name.
    fn new(
        kind: ObjectKind,
        metadata: &'a Metadata<'_>,
        warnings: &'a mut Vec<Warning>,
    ) -> Result<Self, ObjectError> {
        Self::named(kind, metadata.namespace(), &metadata.name, warnings)
    }

    /// For an object with this namespace, if its kind has one, and this name.
    fn named(
        kind: ObjectKind,
        namespace: &'a str,
        name: &'a str,
        warnings: &'a mut Vec<Warning>,
    ) -> Result<Self, ObjectError> {
        if name.is_empty() {
            return Err(ObjectError::Unnamed { kind });
        }
        Ok(Self { kind, namespace, name, warnings })
    }

    fn warn(&mut self, field: impl fmt::Display, value: impl fmt::Display, problem: &'static str) {
        let Self { kind, namespace, name, .. } = self;
        let object = match kind.is_namespaced() {
            true => format!("{kind} {namespace}/{name}"),
            false => format!("{kind} {name}"),
        };
        self.warnings.push(Warning {
            object,
            field: field.to_string(),
            value: value.to_string(),
            problem,
        });
    }
}

/// The elements of a list field. As in Go, `null` and a missing field are an empty list.
fn elements<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map_or(&[], Vec::as_slice)
}
