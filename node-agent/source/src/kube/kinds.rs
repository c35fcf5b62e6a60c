//! Paths and selectors of the requests. Pure.
//!
//! Those of slices are kube-proxy's: the server does not even send what this node would ignore.
//! (Before that filter, headless slices alone were about 1 TB of watch traffic a day in one
//! cluster: kubernetes #81060.)

use kube::api::{ListParams, WatchParams};
use kube::core::Request;

use crate::Features;
use crate::object::ObjectKind;

/// Objects in one page of a list, as in client-go.
const PAGE: u32 = 500;

impl ObjectKind {
    /// The path at which the API serves this kind, for all namespaces.
    pub(super) fn request(self) -> Request {
        Request::new(match self {
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node => "/api/v1/nodes",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
            Self::Namespace => "/api/v1/namespaces",
            Self::Pod => "/api/v1/pods",
            Self::NetworkPolicy => "/apis/networking.k8s.io/v1/networkpolicies",
        })
    }

    /// Parameters for one page of a list with the field selector `fields`.
    pub(super) fn page(self, fields: Option<String>, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels(),
            field_selector: fields,
            limit: Some(PAGE),
            continue_token,
            ..ListParams::default()
        }
    }

    /// Parameters for a watch that ends after `seconds`. With `initial`, all existing objects come
    /// first (KEP-3157).
    pub(super) fn watch(self, fields: Option<String>, seconds: u32, initial: bool) -> WatchParams {
        WatchParams {
            label_selector: self.labels(),
            field_selector: fields,
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: initial,
        }
    }

    fn labels(self) -> Option<String> {
        match self {
            Self::EndpointSlice => Some(
                "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
                    .to_owned(),
            ),
            // Those of other proxies too: `explain` names them.
            Self::Service
            | Self::Node
            | Self::ServiceCidr
            | Self::Namespace
            | Self::Pod
            | Self::NetworkPolicy => None,
        }
    }

    /// The field selector.
    pub(super) fn fields(self, node_name: &str, features: Features) -> Option<String> {
        match self {
            Self::Service => Some("spec.clusterIP!=None".to_owned()),
            Self::Node if features.other_nodes => None,
            Self::Node => Some(format!("metadata.name={node_name}")),
            // A pod that has ended may stay for days, and its address may be another pod's.
            Self::Pod => Some("status.phase!=Succeeded,status.phase!=Failed".to_owned()),
            Self::EndpointSlice | Self::ServiceCidr | Self::Namespace | Self::NetworkPolicy => None,
        }
    }
}
