//! Connections to the API server that detect a dead server.
//!
//! A watch may be silent for minutes, and a server that lost power sends nothing, so the kernel
//! probes the connection. kube's own client has no keep-alive, and logs every failure as an error
//! of its own.

use std::time::Duration;

use hyper_util::client::legacy::Client as Transport;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::util::MapRequestLayer;
use tower::{BoxError, ServiceBuilder};

use super::token::TokenFile;

/// Time limit for a connection, as kubelet's.
const CONNECT: Duration = Duration::from_secs(10);

/// After this much silence the kernel probes the server …
const KEEPALIVE: Duration = Duration::from_secs(15);

/// … this many times at this interval, and then closes the connection: after 45 s, as client-go's
/// HTTP/2 pings do.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A client with these credentials. It adds `token` to every request.
pub(super) fn new(config: &Config, token: Option<TokenFile>) -> kube::Result<Client> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(PROBES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let transport: Transport<_, Body> = Transport::builder(TokioExecutor::new()).build(connector);
    let token = token.map(|token| MapRequestLayer::new(move |request| token.put_into(request)));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(token)
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(transport);
    Ok(Client::new(service, config.default_namespace.clone()))
}
