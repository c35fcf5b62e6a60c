//! Kubernetes API servers for tests: one of the tests' own, which misbehaves on request, and,
//! where `KUBEBUILDER_ASSETS` names a folder with a real `kube-apiserver` and `etcd`, that one too.
//!
//! | file | knows |
//! | --- | --- |
//! | `kinds` | which resources there are |
//! | `select` | label and field selectors |
//! | `store` | objects, their history, and what it looks like to who selects |
//! | `behaviour` | how the server behaves, and what it was asked |
//! | `answer` | a request's answer |
//! | `change` | POST, PUT, PATCH and DELETE, for kubectl |
//! | `watch` | the body of a watch |
//! | [`exec`] | commands in containers |
//! | `server` | sockets, TLS, starting and stopping |
//! | [`context`] | a node whose agent follows it |
//! | `tls` | an authority, and kubeconfig files that trust it |
//! | `real` | the real one |
//! | `upstream` | requests that the tests' own server passes on to a real one |

mod answer;
mod behaviour;
mod change;
pub mod context;
pub mod exec;
mod kinds;
mod real;
mod select;
mod server;
mod store;
mod tls;
mod upstream;
mod watch;

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

pub use self::behaviour::{CutPoint, ReceivedRequest, ServerBehaviour};
pub use self::real::{AGENT, RealServer, assets, release};
pub use self::server::ApiServer;
pub use self::tls::Authority;
use crate::node::netns::Netns;

/// An API server that objects can be put into.
pub trait Api: std::fmt::Debug {
    /// `https://ADDRESS:PORT`.
    fn url(&self) -> String;
    /// A kubeconfig file for the server.
    fn kubeconfig(&self) -> &Path;
    /// Creates an object or replaces the one with its name, status included.
    fn put(&self, object: &Value) -> Result<()>;
    /// Removes the object of this kind and name.
    fn delete(&self, object: &Value) -> Result<()>;
    /// Deletes a pod with this grace period in seconds. It stays until its kubelet reports its end.
    fn end_pod(&self, pod: &Value, grace: u32) -> Result<()>;
    /// The UID of the object of this kind and name.
    fn uid(&self, object: &Value) -> Result<String>;
    /// Whether the server answers in protobuf.
    fn has_protobuf(&self) -> bool {
        true
    }
    /// Every request of the agent since the beginning, watches too.
    fn agent_requests(&self) -> Result<Vec<ReceivedRequest>>;
    /// Defines the kind ClusterNetworkPolicy.
    fn define_tiers(&self) -> Result<()>;
    /// Forbids the agent to read anything, from now on.
    fn forbid_all(&self) -> Result<()>;
    /// Ends the server and all connections abruptly.
    fn stop(&mut self);
    /// Starts the server again in `netns`, with the objects that it had.
    fn go_on(&mut self, netns: &Netns) -> Result<()>;
    /// Whether it serves EndpointSlices in the version that the agent reads (since Kubernetes
    /// 1.21).
    fn has_slices(&self) -> bool {
        true
    }
    /// Whether a watch resumes where it was after a restart (KEP-1904, since Kubernetes 1.21).
    fn resumes(&self) -> bool {
        true
    }

    /// Puts several objects.
    fn put_all(&self, objects: &[Value]) -> Result<()> {
        objects.iter().try_for_each(|object| self.put(object))
    }
}

impl Api for Box<dyn Api> {
    fn url(&self) -> String {
        (**self).url()
    }

    fn kubeconfig(&self) -> &Path {
        (**self).kubeconfig()
    }

    fn put(&self, object: &Value) -> Result<()> {
        (**self).put(object)
    }

    fn delete(&self, object: &Value) -> Result<()> {
        (**self).delete(object)
    }

    fn end_pod(&self, pod: &Value, grace: u32) -> Result<()> {
        (**self).end_pod(pod, grace)
    }

    fn uid(&self, object: &Value) -> Result<String> {
        (**self).uid(object)
    }

    fn has_protobuf(&self) -> bool {
        (**self).has_protobuf()
    }

    fn agent_requests(&self) -> Result<Vec<ReceivedRequest>> {
        (**self).agent_requests()
    }

    fn define_tiers(&self) -> Result<()> {
        (**self).define_tiers()
    }

    fn forbid_all(&self) -> Result<()> {
        (**self).forbid_all()
    }

    fn stop(&mut self) {
        (**self).stop();
    }

    fn go_on(&mut self, netns: &Netns) -> Result<()> {
        (**self).go_on(netns)
    }

    fn has_slices(&self) -> bool {
        (**self).has_slices()
    }

    fn resumes(&self) -> bool {
        (**self).resumes()
    }
}
