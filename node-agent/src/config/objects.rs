//! Where Services and EndpointSlices come from: the Kubernetes API or a folder of manifests.

use std::path::PathBuf;

use clap::Args;
use thiserror::Error;

use crate::source::kube::access::{Access, Credentials, is_server};

/// Where the cluster's objects come from, as written.
#[derive(Debug, Clone, Default, Args)]
pub struct ObjectsArgs {
    /// A folder of manifests (Services, EndpointSlices, Nodes, ServiceCIDRs) to serve, in place of
    /// an API server's
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,

    /// How to reach the API server, and as whom; without it, as the service account of the agent's
    /// pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The API server's real address, in place of the one that the kubeconfig names. In a pod it
    /// has to be given: the address that pods are told is a service's, which nobody serves before
    /// this agent does
    #[arg(long, value_name = "URL", env = "DENIZEN_API_SERVER")]
    pub master: Option<String>,
}

/// Where the cluster's objects come from, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objects {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// The Kubernetes API.
    Api(Access),
}

/// Why there is nothing to follow.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ObjectsError {
    /// Not a URL of an API server.
    #[error(
        "--master (DENIZEN_API_SERVER) {0:?} is not the address of an API server such as https://192.168.0.10:6443"
    )]
    Server(String),
    /// Only this agent would serve the address that leads to the API.
    #[error(
        "the address of the API that a pod is told, {0}, is a service's cluster IP, which nobody on this node serves \
         before this agent does: name an API server's own address with --master URL or DENIZEN_API_SERVER"
    )]
    ServiceAddress(String),
    /// There is nothing to serve.
    #[error(
        "no services to serve: give --kubeconfig FILE, or --manifests DIR, or in a pod --master URL (DENIZEN_API_SERVER)"
    )]
    NoObjects,
}

impl ObjectsArgs {
    /// Checks them. `service_host` is what Kubernetes tells a pod in `KUBERNETES_SERVICE_HOST`.
    ///
    /// # Errors
    /// [`ObjectsError`].
    pub fn check(&self, service_host: Option<String>) -> Result<Objects, ObjectsError> {
        if let Some(folder) = &self.manifests {
            return Ok(Objects::Manifests(folder.clone()));
        }
        let server = self.master.clone().filter(|url| !url.is_empty());
        if let Some(url) = server.as_ref().filter(|url| !is_server(url)) {
            return Err(ObjectsError::Server(url.clone()));
        }
        let credentials = match (&self.kubeconfig, &server, service_host) {
            (Some(path), _, _) => Credentials::Kubeconfig(path.clone()),
            // A token in clear is everybody's.
            (None, Some(url), _) if !url.starts_with("https://") => {
                return Err(ObjectsError::Server(url.clone()));
            }
            (None, Some(_), _) => Credentials::ServiceAccount,
            (None, None, Some(host)) => return Err(ObjectsError::ServiceAddress(host)),
            (None, None, None) => return Err(ObjectsError::NoObjects),
        };
        Ok(Objects::Api(Access { credentials, server }))
    }
}
