//! The tests' own API server: real HTTP over real TLS, in a network namespace.

use std::convert::Infallible;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::Api;
use super::answer::answer;
use super::behaviour::{CutPoint, ReceivedRequest, ServerBehaviour};
use super::exec::Executor;
use super::kinds::{RESOURCES, Resource};
use super::real::{AGENTS_TOKEN, RealServer};
use super::store::Store;
use super::tls::{Authority, replace};
use super::upstream::Upstream;
use crate::node::netns::Netns;

/// The token in the kubeconfig's folder at first.
const TOKEN: &str = "the-first-token";

/// How many requests a connection may have at once, as with kube-apiserver since 1.29.
const STREAMS: u32 = 100;

/// What all connections share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) store: Store,
    /// The real server behind this one: it answers unless `behaviour` prescribes a fault.
    pub(super) upstream: Option<Upstream>,
    behaviour: Mutex<ServerBehaviour>,
    requests: Mutex<Vec<ReceivedRequest>>,
    executor: Mutex<Option<Executor>>,
    executions: Arc<Executions>,
    connections: AtomicUsize,
    /// Breaks every watch off.
    pub(super) cut: watch::Sender<CutPoint>,
    /// Tells every watch that its version is too old.
    pub(super) expire: watch::Sender<u64>,
}

/// How many commands run, and how many have run at once.
#[derive(Debug, Default)]
struct Executions {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A command that runs.
pub(super) struct RunningCommand(Arc<Executions>);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn executor(&self) -> Option<Executor> {
        self.executor.lock().expect("nobody panics with it").clone()
    }

    pub(super) fn executing(&self) -> RunningCommand {
        let now = self.executions.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.executions.most.fetch_max(now, Ordering::Relaxed);
        RunningCommand(self.executions.clone())
    }

    pub(super) fn behaviour(&self) -> ServerBehaviour {
        self.behaviour.lock().expect("nobody panics with it").clone()
    }

    /// Takes one from a number of faults that are left to do; returns whether one was left.
    pub(super) fn take(&self, which: impl FnOnce(&mut ServerBehaviour) -> &mut usize) -> bool {
        let mut behaviour = self.behaviour.lock().expect("nobody panics with it");
        let left = which(&mut behaviour);
        let any = *left > 0;
        *left -= usize::from(any);
        any
    }

    pub(super) fn record(&self, request: ReceivedRequest) -> usize {
        let mut all = self.requests.lock().expect("nobody panics with it");
        all.push(request);
        all.len() - 1
    }

    pub(super) fn answered(&self, number: usize, status: u16) {
        let mut all = self.requests.lock().expect("nobody panics with it");
        if let Some(request) = all.get_mut(number) {
            request.status = status;
        }
    }
}

/// A server. Dropping it stops it.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    folder: PathBuf,
    kubeconfig: PathBuf,
    authority: Authority,
    running: Option<RunningThread>,
    /// The real server that has the objects, if this one does not have them itself.
    real: Option<RealServer>,
}

#[derive(Debug)]
struct RunningThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl ApiServer {
    /// Starts a server at `address`, which `netns` has. Its kubeconfig file is in `folder`.
    pub fn start(netns: &Netns, address: SocketAddr, folder: &Path) -> Result<Self> {
        Self::start_with(netns, address, folder, None)
    }

    /// Starts a server in front of a real one in the same namespace. The real server has the
    /// objects, and answers everything for which `behaviour` prescribes no fault, byte for byte.
    pub fn in_front_of(
        real: RealServer,
        netns: &Netns,
        address: SocketAddr,
        folder: &Path,
    ) -> Result<Self> {
        Self::start_with(netns, address, folder, Some(real))
    }

    fn start_with(
        netns: &Netns,
        address: SocketAddr,
        folder: &Path,
        real: Option<RealServer>,
    ) -> Result<Self> {
        let authority = Authority::new()?;
        let token = if real.is_some() { AGENTS_TOKEN } else { TOKEN };
        authority.write_kubeconfig(folder, &format!("https://{address}"), token)?;
        let upstream = real.as_ref().map(RealServer::upstream).transpose()?;
        // A real server decides by itself whether it serves ClusterNetworkPolicies.
        let behaviour = ServerBehaviour { tiers: real.is_some(), ..ServerBehaviour::default() };
        let shared = Shared { upstream, behaviour: behaviour.into(), ..Shared::default() };
        let mut server = Self {
            shared: Arc::new(shared),
            address,
            folder: folder.to_owned(),
            kubeconfig: folder.join("kubeconfig"),
            authority,
            running: None,
            real,
        };
        server.go_on(netns)?;
        Ok(server)
    }

    /// Starts the server again after [`Self::stop`], with the objects that it had.
    pub fn go_on(&mut self, netns: &Netns) -> Result<()> {
        let listener = netns.run(|| TcpListener::bind(self.address))?;
        let listener = listener.with_context(|| format!("cannot listen at {}", self.address))?;
        listener.set_nonblocking(true)?;
        let identity = self.authority.identity(self.address.ip())?;
        let tls = Acceptors {
            both: identity.server_config(&["h2", "http/1.1"])?.into(),
            http1: identity.server_config(&["http/1.1"])?.into(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let shared = self.shared.clone();
        let thread = netns.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    result = accept(listener, tls, shared) => panic!("{result:?}"),
                }
            });
        })?;
        self.running = Some(RunningThread { stop, thread });
        Ok(())
    }

    /// Ends all connections and stops listening: the API is unavailable.
    pub fn stop(&mut self) {
        if let Some(RunningThread { stop, thread }) = self.running.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    /// Changes the server's behaviour.
    pub fn behave(&self, change: impl FnOnce(&mut ServerBehaviour)) {
        change(&mut self.shared.behaviour.lock().expect("nobody panics with it"));
    }

    /// Decides what commands in containers do, from now on.
    pub fn execute(&self, executor: Executor) {
        *self.shared.executor.lock().expect("nobody panics with it") = Some(executor);
    }

    /// The largest number of commands that ran at the same time.
    pub fn most_at_once(&self) -> usize {
        self.shared.executions.most.load(Ordering::Relaxed)
    }

    /// Breaks every watch off in the middle of an event.
    pub fn cut_watches(&self) {
        self.cut_watches_at(CutPoint::Body);
    }

    /// Breaks every watch off.
    pub fn cut_watches_at(&self, point: CutPoint) {
        self.shared.cut.send_replace(point);
    }

    /// Tells every watch that its version is too old (410).
    pub fn expire_watches(&self) {
        self.shared.expire.send_modify(|count| *count += 1);
    }

    /// Forgets its history: a client with an old version gets 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Creates a new certificate authority. The kubeconfig keeps the old one until
    /// [`Self::publish_authority`].
    pub fn change_authority(&mut self) -> Result<()> {
        self.authority = Authority::new()?;
        Ok(())
    }

    /// Writes the authority's certificate where the kubeconfig file names it.
    pub fn publish_authority(&self) -> Result<()> {
        replace(&self.folder.join("ca.crt"), &self.authority.certificate)
    }

    /// Writes another token where the kubeconfig file names it.
    pub fn publish_token(&self, token: &str) -> Result<()> {
        replace(&self.folder.join("token"), token)
    }

    /// Replaces the object with the same UID; returns whether there still was one.
    pub fn update(&self, object: &Value) -> Result<bool> {
        Ok(self.store().update(object.clone())?.is_some())
    }

    /// Every request since the beginning.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().expect("nobody panics with it").clone()
    }

    /// How many connections it has had.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Every object of this resource, by its plural.
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.store().all(plural)
    }

    fn store(&self) -> &Store {
        assert!(self.real.is_none(), "the objects are the real server's");
        &self.shared.store
    }

    /// The folder of its kubeconfig file, certificate and token.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Api for ApiServer {
    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn put(&self, object: &Value) -> Result<()> {
        self.put_all(std::slice::from_ref(object))
    }

    fn put_all(&self, objects: &[Value]) -> Result<()> {
        match &self.real {
            Some(real) => real.put_all(objects),
            None => {
                objects.iter().try_for_each(|object| self.store().put(object.clone()).map(drop))
            }
        }
    }

    fn delete(&self, object: &Value) -> Result<()> {
        if let Some(real) = &self.real {
            return real.delete(object);
        }
        let (resource, namespace, name) = key(object)?;
        let deleted = self.store().delete(resource, namespace, name);
        deleted.map(drop).with_context(|| format!("there is no {} {name}", resource.kind))
    }

    fn end_pod(&self, pod: &Value, grace: u32) -> Result<()> {
        if let Some(real) = &self.real {
            return real.end_pod(pod, grace);
        }
        let end = Timestamp::now() + Duration::from_secs(grace.into());
        let mut pod = pod.clone();
        pod["metadata"]["deletionTimestamp"] =
            Timestamp::from_second(end.as_second())?.to_string().into();
        self.put(&pod)
    }

    fn uid(&self, object: &Value) -> Result<String> {
        if let Some(real) = &self.real {
            return real.uid(object);
        }
        let (resource, namespace, name) = key(object)?;
        let stored = self.store().get(resource, namespace, name).context("it is not there")?;
        let uid = stored.value["metadata"]["uid"].as_str();
        uid.map(str::to_owned).context("each has one")
    }

    fn has_protobuf(&self) -> bool {
        !self.shared.behaviour().only_json
    }

    fn agent_requests(&self) -> Result<Vec<ReceivedRequest>> {
        Ok(self.requests())
    }

    fn define_tiers(&self) -> Result<()> {
        self.behave(|behaviour| behaviour.tiers = true);
        self.real.as_ref().map_or(Ok(()), Api::define_tiers)
    }

    fn forbid_all(&self) -> Result<()> {
        let all = RESOURCES.map(|resource| resource.plural);
        self.behave(|behaviour| behaviour.forbidden = all.into());
        Ok(())
    }

    fn stop(&mut self) {
        self.stop();
    }

    fn go_on(&mut self, netns: &Netns) -> Result<()> {
        self.go_on(netns)
    }

    fn has_slices(&self) -> bool {
        self.real.as_ref().is_none_or(Api::has_slices)
    }
}

/// The key of this object in the store.
fn key(object: &Value) -> Result<(Resource, &str, &str)> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    Ok((Resource::of(object)?, text("namespace"), text("name")))
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The server's TLS settings.
#[derive(Clone)]
struct Acceptors {
    both: TlsAcceptor,
    /// As a proxy that knows no HTTP/2.
    http1: TlsAcceptor,
}

async fn accept(listener: TcpListener, tls: Acceptors, shared: Arc<Shared>) -> Result<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
        let tls = if shared.behaviour().only_http1 { &tls.http1 } else { &tls.both };
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            // A client that does not trust the certificate ends the handshake.
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(answer(shared, connection, request).await) }
            });
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http2().max_concurrent_streams(STREAMS);
            let stream = TokioIo::new(stream);
            let _ = server.serve_connection_with_upgrades(stream, service).await;
        });
    }
}
