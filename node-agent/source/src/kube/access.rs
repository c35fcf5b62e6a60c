//! Which API server, and with which credentials: a kubeconfig file, or the service account of the
//! agent's pod.
//!
//! Every new client reads the files again, and a new client is made when the server no longer
//! accepts the credentials: that is how certificates are rotated. A token file is read for every
//! request.

use std::io;
use std::path::{Path, PathBuf};

use denizen_state::regular;
use kube::Config;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;

use super::token::TokenFile;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub credentials: Credentials,
    /// Overrides the server that the credentials name: `https://ADDRESS:PORT`.
    pub server: Option<String>,
}

/// Where the agent's credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The service account of the agent's pod, where Kubernetes mounts it. The API's address in it
    /// is never used.
    ServiceAccount,
    Kubeconfig(PathBuf),
}

#[derive(Debug, Error)]
pub enum AccessError {
    #[error(
        "cannot use the service account of this pod: mount one at \
         /var/run/secrets/kubernetes.io/serviceaccount, or give --kubeconfig FILE or --manifests DIR"
    )]
    ServiceAccount(#[source] Box<InClusterError>),
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("cannot use the token in {}", path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The server's address is not a URL.
    #[error("the API server's address {0:?} is not a URL such as https://192.168.0.10:6443")]
    Server(String),
    /// The name that the server's certificate should have is not a name.
    #[error("the kubeconfig's `tls-server-name` {0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
    /// The configuration names a proxy, which is not supported.
    #[error(
        "the API would be reached through the proxy {0}, which is not supported: remove `proxy-url` from the \
         kubeconfig and HTTPS_PROXY from the environment"
    )]
    Proxy(String),
    #[error("cannot make a client of the API from its credentials")]
    Client(#[source] Box<kube::Error>),
}

impl Access {
    /// The kubeconfig file, if that is where the credentials come from.
    pub fn kubeconfig(&self) -> Option<&Path> {
        match &self.credentials {
            Credentials::ServiceAccount => None,
            Credentials::Kubeconfig(path) => Some(path),
        }
    }

    /// What a client needs, from the current content of the files. If the token is in a file of its
    /// own, it is not in the configuration.
    ///
    /// # Errors
    /// [`AccessError`], which names the file.
    pub(super) async fn config(&self) -> Result<(Config, Option<TokenFile>), AccessError> {
        let mut config = match &self.credentials {
            Credentials::ServiceAccount => Config::incluster_dns()
                .map_err(|error| AccessError::ServiceAccount(Box::new(error)))?,
            Credentials::Kubeconfig(path) => {
                let failed = |source| AccessError::Kubeconfig {
                    path: path.clone(),
                    source: Box::new(source),
                };
                // kube reads the file by its path, and would block on a file that is not regular.
                regular::open(path)
                    .map_err(|error| failed(KubeconfigError::ReadConfig(error, path.clone())))?;
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
            }
        };
        if let Some(server) = &self.server {
            config.cluster_url = server.parse().map_err(|_| AccessError::Server(server.clone()))?;
        }
        if let Some(proxy) = &config.proxy_url {
            return Err(AccessError::Proxy(proxy.to_string()));
        }
        // A token in the kubeconfig itself comes first, as in client-go.
        let token_file = config.auth_info.token_file.take();
        let token = match token_file.filter(|_| config.auth_info.token.is_none()) {
            Some(path) => Some(
                TokenFile::open(Path::new(&path))
                    .map_err(|source| AccessError::Token { path: path.into(), source })?,
            ),
            None => None,
        };
        Ok((config, token))
    }
}

/// Whether `text` can be an API server's address: `https://` or, for a local proxy, `http://`, and
/// a host.
pub fn is_server(text: &str) -> bool {
    let url = text.parse().map(Config::new).map(|config| config.cluster_url);
    url.is_ok_and(|url| matches!(url.scheme_str(), Some("https" | "http")) && url.host().is_some())
}
