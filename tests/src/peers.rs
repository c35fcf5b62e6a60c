//! The programs beside denizen on a node or in a cluster: the API server, kube-proxy, BIRD,
//! containerd, a mesh's proxy.

pub mod api;
pub mod bird;
pub mod containerd;
pub mod kube_proxy;
pub mod linkerd_init;
pub mod registry;
pub mod sidecar;
