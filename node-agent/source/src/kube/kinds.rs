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

/// The path at which the API serves this kind, for all namespaces.
pub(super) fn request(kind: ObjectKind) -> Request {
    Request::new(match kind {
        ObjectKind::Service => "/api/v1/services",
        ObjectKind::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
        ObjectKind::Node => "/api/v1/nodes",
        ObjectKind::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        ObjectKind::Namespace => "/api/v1/namespaces",
        ObjectKind::Pod => "/api/v1/pods",
        ObjectKind::NetworkPolicy => "/apis/networking.k8s.io/v1/networkpolicies",
    })
}

/// Parameters for one page of a list with the field selector `fields`.
pub(super) fn page(
    kind: ObjectKind,
    fields: Option<String>,
    continue_token: Option<String>,
) -> ListParams {
    ListParams {
        label_selector: labels(kind),
        field_selector: fields,
        limit: Some(PAGE),
        continue_token,
        ..ListParams::default()
    }
}

/// Parameters for a watch that ends after `seconds`. With `initial`, all existing objects come
/// first (KEP-3157).
pub(super) fn watch(
    kind: ObjectKind,
    fields: Option<String>,
    seconds: u32,
    initial: bool,
) -> WatchParams {
    WatchParams {
        label_selector: labels(kind),
        field_selector: fields,
        timeout: Some(seconds),
        bookmarks: true,
        send_initial_events: initial,
    }
}

fn labels(kind: ObjectKind) -> Option<String> {
    match kind {
        ObjectKind::EndpointSlice => Some(
            "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name".to_owned(),
        ),
        // Those of other proxies too: `explain` names them.
        ObjectKind::Service
        | ObjectKind::Node
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::Pod
        | ObjectKind::NetworkPolicy => None,
    }
}

pub(super) fn fields(kind: ObjectKind, node_name: &str, features: Features) -> Option<String> {
    match kind {
        ObjectKind::Service => Some("spec.clusterIP!=None".to_owned()),
        ObjectKind::Node if features.other_nodes => None,
        ObjectKind::Node => Some(format!("metadata.name={node_name}")),
        // A pod that has ended may stay for days, and its address may be another pod's.
        ObjectKind::Pod => Some("status.phase!=Succeeded,status.phase!=Failed".to_owned()),
        ObjectKind::EndpointSlice
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::NetworkPolicy => None,
    }
}
