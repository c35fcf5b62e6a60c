//! Kubernetes API servers for tests: one of the tests' own, which misbehaves on request, and,
//! where `KUBEBUILDER_ASSETS` names a folder with a real `kube-apiserver` and `etcd`, that one too.
//!
//! | file | knows |
//! | --- | --- |
//! | `kinds` | which resources there are |
//! | `select` | label and field selectors |
//! | `store` | objects, their history, and what it looks like to who selects |
//! | `manners` | how the server behaves, and what it was asked |
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
mod change;
pub mod context;
pub mod exec;
mod kinds;
mod manners;
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

pub use self::manners::{CutPoint, Manners, ReceivedRequest};
pub use self::real::{AGENT, RealServer, assets, release};
pub use self::server::ApiServer;
pub use self::tls::Authority;
use crate::node::netns::Netns;

/// An API server that objects can be put into.
pub trait Api: std::fmt::Debug {
    /// `https://ADDRESS:PORT`.
    fn url(&self) -> String;
    /// A kubeconfig file that leads to it.
    fn kubeconfig(&self) -> &Path;
    /// Puts an object there, or in the place of what has its name: status included.
    fn put(&self, object: &Value) -> Result<()>;
    /// Removes the object of this kind and name.
    fn delete(&self, object: &Value) -> Result<()>;
    /// Deletes a pod that has this many seconds to end, and stays until its kubelet says that it has.
    fn end_pod(&self, pod: &Value, grace: u32) -> Result<()>;
    /// The UID of the object of this kind and name.
    fn uid(&self, object: &Value) -> Result<String>;
    /// Whether it answers in protobuf.
    fn has_protobuf(&self) -> bool {
        true
    }
    /// Every request of the agent since the beginning, watches too.
    fn agent_requests(&self) -> Result<Vec<ReceivedRequest>>;
    /// Defines ClusterNetworkPolicies.
    fn define_tiers(&self) -> Result<()>;
    /// From now on the agent may read nothing.
    fn forbid_all(&self) -> Result<()>;
    /// It ends without a word, with all connections.
    fn stop(&mut self);
    /// It starts again in `netns`, with the objects that it has.
    fn go_on(&mut self, netns: &Netns) -> Result<()>;
    /// Whether it has EndpointSlices as the agent reads them (since Kubernetes 1.21).
    fn has_slices(&self) -> bool {
        true
    }
    /// Whether a watch goes on after a restart where it was (KEP-1904, since Kubernetes 1.21).
    fn resumes(&self) -> bool {
        true
    }

    /// Puts several.
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
