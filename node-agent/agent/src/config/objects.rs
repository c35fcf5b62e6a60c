//! The source of the cluster's objects: the Kubernetes API or a folder of manifests.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use clap::Args;
use thiserror::Error;

use denizen_source::kube::access::{Access, Credentials, is_server};

/// The source of the cluster's objects, as written.
#[derive(Debug, Clone, Default, Args)]
pub struct ObjectsArgs {
    /// A folder of manifests (Services, EndpointSlices, Nodes, ServiceCIDRs, NetworkPolicies,
    /// Namespaces, Pods) to serve, instead of an API server's objects
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,

    /// A kubeconfig file for the API server. The default is the service account of the agent's pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The API server's own address, instead of the one in the kubeconfig. Required in a pod,
    /// unless with --services=off: the address that pods get is a cluster IP, which nobody serves
    /// before this agent does
    #[arg(long, value_name = "URL", env = "DENIZEN_API_SERVER")]
    pub master: Option<String>,
}

/// The API's address as Kubernetes tells it to pods: a cluster IP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InCluster {
    /// `KUBERNETES_SERVICE_HOST`.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: String,
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
        "--master (DENIZEN_API_SERVER) {0:?} is not the address of an API server such as \
         https://192.168.0.10:6443"
    )]
    Server(String),
    /// The API's address is a cluster IP, which only this agent would serve.
    #[error(
        "the API address that pods get, {0}, is a cluster IP, which nobody on this node serves \
         before this agent does: give an API server's own address with --master URL or \
         DENIZEN_API_SERVER"
    )]
    ServiceAddress(String),
    /// No source is given.
    #[error(
        "no services to serve: give --kubeconfig FILE, or --manifests DIR, or in a pod --master \
         URL (DENIZEN_API_SERVER)"
    )]
    NoObjects,
}

impl InCluster {
    /// From the environment of a pod.
    pub fn from_environment() -> Option<Self> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".to_owned());
        Some(Self { host, port })
    }

    fn url(&self) -> String {
        let Self { host, port } = self;
        match host.parse::<Ipv6Addr>() {
            Ok(_) => format!("https://[{host}]:{port}"),
            Err(_) => format!("https://{host}:{port}"),
        }
    }
}

impl ObjectsArgs {
    /// Checks the flags. If this agent does not serve `services`, another program does, and the
    /// address `in_cluster` can be used.
    ///
    /// # Errors
    /// [`ObjectsError`].
    pub fn check(
        &self,
        in_cluster: Option<InCluster>,
        services: bool,
    ) -> Result<Objects, ObjectsError> {
        if let Some(folder) = &self.manifests {
            return Ok(Objects::Manifests(folder.clone()));
        }
        let server = self.master.clone().filter(|url| !url.is_empty());
        if let Some(url) = server.as_ref().filter(|url| !is_server(url)) {
            return Err(ObjectsError::Server(url.clone()));
        }
        let is_served = !services && self.kubeconfig.is_none();
        let by_service = in_cluster.as_ref().filter(|_| is_served).map(InCluster::url);
        let server = server.or(by_service);
        let credentials = match (&self.kubeconfig, &server, in_cluster) {
            (Some(path), _, _) => Credentials::Kubeconfig(path.clone()),
            // A token must not be sent in clear.
            (None, Some(url), _) if !url.starts_with("https://") => {
                return Err(ObjectsError::Server(url.clone()));
            }
            (None, Some(_), _) => Credentials::ServiceAccount,
            (None, None, Some(api)) => return Err(ObjectsError::ServiceAddress(api.host)),
            (None, None, None) => return Err(ObjectsError::NoObjects),
        };
        Ok(Objects::Api(Access { credentials, server }))
    }
}
