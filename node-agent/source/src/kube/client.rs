//! Connections to the API server that detect a dead server.
//!
//! A watch may be silent for minutes, and a server that lost power sends nothing, so the connection
//! is probed. kube's own client has no keep-alive, no HTTP/2, and logs every failure as an error of
//! its own.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Request;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Transport;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tower::layer::layer_fn;
use tower::util::MapRequestLayer;
use tower::{BoxError, Service, ServiceBuilder};

use super::access::{Access, AccessError};
use super::token::TokenFile;

/// Time limit for a connection, as kubelet's.
const CONNECT: Duration = Duration::from_secs(10);

/// After this much silence the kernel probes the server …
const KEEPALIVE: Duration = Duration::from_secs(15);

/// … this many times at this interval, and then closes the connection: after 45 s.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// As client-go: after this much silence HTTP/2 pings the server, and closes the connection if no
/// answer comes in time. TCP keep-alive is not enough: if the server hangs, its kernel still
/// answers.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(15);

/// The flow-control window of one answer: 20 MB a second with a round trip of 50 ms.
const STREAM_WINDOW: u32 = 1 << 20;

/// The flow-control window of a connection: more than the windows of all its answers together,
/// since a server permits 100 streams (250 before 1.29). So answers that nobody reads for a while
/// cannot hold up the others.
const CONNECTION_WINDOW: u32 = 256 * STREAM_WINDOW;

/// The user agent, by which the server's audit log and metrics tell agents from other clients.
const NAME: &str = concat!("denizen-agent/", env!("CARGO_PKG_VERSION"));

/// How long other requests wait for the first request of their client.
const ALONE: Duration = Duration::from_secs(1);

/// A client that several tasks use, and with it one connection.
#[derive(Clone)]
pub struct SharedClient {
    access: Access,
    current: Arc<Mutex<Option<Arc<Client>>>>,
}

impl fmt::Debug for SharedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedClient").field("access", &self.access).finish_non_exhaustive()
    }
}

impl SharedClient {
    /// It connects with the first request.
    pub fn new(access: Access) -> Self {
        Self { access, current: Arc::default() }
    }

    /// Another client with the same credentials, which shares nothing with this one.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.access.clone())
    }

    /// The client; a new one, from the current content of the files, if there is none.
    ///
    /// # Errors
    /// [`AccessError`], which names the file.
    pub async fn get(&self) -> Result<Arc<Client>, AccessError> {
        let mut current = self.current.lock().await;
        if let Some(client) = &*current {
            return Ok(client.clone());
        }
        Ok(current.insert(Arc::new(client(&self.access).await?)).clone())
    }

    /// Forgets the client `used`, if any: the server does not accept its credentials. The next
    /// [`Self::get`] makes a new client.
    pub(crate) async fn discard(&self, used: Option<Arc<Client>>) {
        let Some(used) = used else { return };
        self.current.lock().await.take_if(|client| Arc::ptr_eq(client, &used));
    }
}

/// A client with these credentials, from the current content of their files. It connects with the
/// first request. It has one connection if the server speaks HTTP/2, else one for each request that
/// is not answered.
///
/// # Errors
/// What is wrong with the credentials.
pub(super) async fn client(access: &Access) -> Result<Client, AccessError> {
    let (config, token) = access.config().await?;
    of_config(&config, token)
}

/// A client that adds `token` to every request.
fn of_config(config: &Config, token: Option<TokenFile>) -> Result<Client, AccessError> {
    let failed = |error| AccessError::Client(Box::new(error));
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(PROBES));
    let tls = config.rustls_client_config().map_err(failed)?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let fixed = name.clone().try_into().map_err(|_| AccessError::ServerName(name.clone()))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(fixed));
    }
    let connector = https.enable_all_versions().wrap_connector(connector);
    let transport: Transport<_, Body> = Transport::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_ANSWER)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let named = MapRequestLayer::new(|mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(NAME));
        request
    });
    let token = token.map(|token| MapRequestLayer::new(move |request| token.put_into(request)));
    let service = ServiceBuilder::new()
        .layer(layer_fn(FirstAlone::new))
        .layer(config.base_uri_layer())
        .layer(named)
        .option_layer(token)
        .option_layer(config.auth_layer().map_err(failed)?)
        .map_err(BoxError::from)
        .service(transport);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Holds back other requests, for at most [`ALONE`], until the head of the first request's answer
/// has arrived. The first request finds out whether the server speaks HTTP/2; requests sent at the
/// same time would each open a connection.
#[derive(Clone)]
struct FirstAlone<S> {
    inner: S,
    begun: Arc<AtomicBool>,
    ended: watch::Sender<bool>,
}

impl<S> FirstAlone<S> {
    fn new(inner: S) -> Self {
        Self { inner, begun: Arc::default(), ended: watch::Sender::new(false) }
    }
}

impl<S, R> Service<R> for FirstAlone<S>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // Only the service that was polled is ready; its clone may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let is_first = !self.begun.swap(true, Ordering::Relaxed);
        let first = is_first.then(|| FirstRequest(self.ended.clone()));
        let mut ended = self.ended.subscribe();
        Box::pin(async move {
            if first.is_none() {
                let _ = timeout(ALONE, ended.wait_for(|ended| *ended)).await;
            }
            inner.call(request).await
        })
    }
}

/// The other requests go on when this is dropped, however the first request ended.
struct FirstRequest(watch::Sender<bool>);

impl Drop for FirstRequest {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
