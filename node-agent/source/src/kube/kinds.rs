//! Paths and selectors of the requests. Pure.
//!
//! The selectors for slices are kube-proxy's: the server does not even send what this node would
//! ignore. (Before kube-proxy had them, headless slices alone were about 1 TB of watch traffic a
//! day in one cluster: kubernetes #81060.)

use hyper::header::{ACCEPT_ENCODING, HeaderValue};
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::Request;

use crate::Features;
use denizen_object::ObjectKind;

/// Which state a list shows. Each is answered from the server's cache, and never in pages: from the
/// second page on, many servers would read them from etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListedState<'v> {
    /// Whatever the server has: the cheapest.
    Cached,
    /// A state at least as new as this version.
    NotOlderThan(&'v str),
    /// The newest state. The server asks etcd for its current version.
    Newest,
}

/// The path at which the API serves this kind, for all namespaces.
pub(super) fn request(kind: ObjectKind) -> Request {
    Request::new(match kind {
        ObjectKind::Service => "/api/v1/services",
        ObjectKind::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
        ObjectKind::Node | ObjectKind::OtherNode => "/api/v1/nodes",
        ObjectKind::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        ObjectKind::Namespace => "/api/v1/namespaces",
        ObjectKind::Pod => "/api/v1/pods",
        ObjectKind::NetworkPolicy => "/apis/networking.k8s.io/v1/networkpolicies",
        ObjectKind::ClusterNetworkPolicy => {
            "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
        }
    })
}

/// Parameters for a list with the field selector `fields`. `use_field_selectors`: whether the
/// server accepts the selector of [`only_listed`] too.
pub(super) fn list(
    kind: ObjectKind,
    fields: Option<String>,
    use_field_selectors: bool,
    state: ListedState<'_>,
) -> ListParams {
    let (version, matching) = match state {
        ListedState::Cached => (Some("0"), None),
        ListedState::NotOlderThan(version) => (Some(version), Some(VersionMatch::NotOlderThan)),
        ListedState::Newest => (None, None),
    };
    let unfinished = only_listed(kind).filter(|_| use_field_selectors).map(str::to_owned);
    let fields = fields.into_iter().chain(unfinished).reduce(|all, more| all + "," + &more);
    ListParams {
        label_selector: labels(kind),
        field_selector: fields,
        resource_version: version.map(str::to_owned),
        version_match: matching,
        ..ListParams::default()
    }
}

/// Lets the server compress a list. Servers compress those of 128 KiB and more: they become a tenth
/// as long, for about the processor time that the server needs to send them uncompressed. A watch
/// does not ask for it: servers compress none, and a proxy that did would hold events back.
pub(super) fn accept_gzip(list: &mut hyper::Request<Vec<u8>>) {
    list.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
}

/// Parameters for a watch that ends after `seconds`.
pub(super) fn watch(kind: ObjectKind, fields: Option<String>, seconds: u32) -> WatchParams {
    WatchParams {
        label_selector: labels(kind),
        field_selector: fields,
        timeout: Some(seconds),
        bookmarks: true,
        send_initial_events: false,
    }
}

/// A field selector for lists only. A pod that has ended may stay for days, and its address may be
/// another pod's. A watch cannot have this selector: a pod that ends would leave the selection, and
/// the server would have to encode that pod once for every node.
fn only_listed(kind: ObjectKind) -> Option<&'static str> {
    match kind {
        ObjectKind::Pod => Some("status.phase!=Succeeded,status.phase!=Failed"),
        ObjectKind::Service
        | ObjectKind::EndpointSlice
        | ObjectKind::Node
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::NetworkPolicy
        | ObjectKind::ClusterNetworkPolicy
        | ObjectKind::OtherNode => None,
    }
}

fn labels(kind: ObjectKind) -> Option<String> {
    match kind {
        ObjectKind::EndpointSlice => Some(
            "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name".to_owned(),
        ),
        // Services of other proxies are read too: `explain` names them.
        ObjectKind::Service
        | ObjectKind::Node
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::Pod
        | ObjectKind::NetworkPolicy
        | ObjectKind::ClusterNetworkPolicy
        | ObjectKind::OtherNode => None,
    }
}

/// The field selector for lists and watches. No object may stop matching it: see [`only_listed`].
pub(super) fn fields(kind: ObjectKind, node_name: &str, features: Features) -> Option<String> {
    match kind {
        ObjectKind::Service => Some("spec.clusterIP!=None".to_owned()),
        ObjectKind::Node if features.other_nodes => None,
        ObjectKind::Node => Some(format!("metadata.name={node_name}")),
        ObjectKind::Pod
        | ObjectKind::EndpointSlice
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::NetworkPolicy
        | ObjectKind::ClusterNetworkPolicy
        | ObjectKind::OtherNode => None,
    }
}

/// Whether there are field selectors for this kind.
pub(super) fn has_field_selectors(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::Service | ObjectKind::Node | ObjectKind::Pod => true,
        ObjectKind::EndpointSlice
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::NetworkPolicy
        | ObjectKind::ClusterNetworkPolicy
        | ObjectKind::OtherNode => false,
    }
}
