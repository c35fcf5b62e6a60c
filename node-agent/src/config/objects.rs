//! The source of Services and EndpointSlices: the Kubernetes API or a folder of manifests.

use std::path::PathBuf;

use clap::Args;
use thiserror::Error;

use crate::source::kube::access::{Access, Credentials, is_server};

/// The source of the cluster's objects, as written.
#[derive(Debug, Clone, Default, Args)]
pub struct ObjectsArgs {
    /// A folder of manifests (Services, EndpointSlices, Nodes, ServiceCIDRs, NetworkPolicies,
    /// Namespaces, Pods) to serve, instead of
    /// an API server's objects
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,

    /// A kubeconfig file for the API server. The default is the service account of the agent's pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The API server's own address, instead of the one in the kubeconfig. Required in a pod: the
    /// address that pods get is a cluster IP, which nobody serves before this agent does
    #[arg(long, value_name = "URL", env = "DENIZEN_API_SERVER")]
    pub master: Option<String>,
}

/// The source of the cluster's objects, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objects {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// The Kubernetes API.
    Api(Access),
}

/// Why there is no source of objects.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ObjectsError {
    /// Not a URL of an API server.
    #[error(
        "--master (DENIZEN_API_SERVER) {0:?} is not the address of an API server such as https://192.168.0.10:6443"
    )]
    Server(String),
    /// The API's address is a cluster IP, which only this agent would serve.
    #[error(
        "the API address that pods get, {0}, is a cluster IP, which nobody on this node serves \
         before this agent does: give an API server's own address with --master URL or DENIZEN_API_SERVER"
    )]
    ServiceAddress(String),
    /// No source is given.
    #[error(
        "no services to serve: give --kubeconfig FILE, or --manifests DIR, or in a pod --master URL (DENIZEN_API_SERVER)"
    )]
    NoObjects,
}

impl ObjectsArgs {
    /// Checks the flags. `service_host` is `KUBERNETES_SERVICE_HOST`, which Kubernetes sets in
    /// pods.
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
            // A token must not be sent in clear.
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
