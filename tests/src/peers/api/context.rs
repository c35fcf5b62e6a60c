//! The usual fixture with an API server in place of a folder of manifests.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Api, ApiServer, RealServer, assets};
use crate::agent::{Agent, Objects, Settings};
use crate::eventually::observed;
use crate::node::cluster::{Cluster, NODE};
use crate::node::fixture::{Fixture, Host, PORT, service_ips};
use crate::node::manifest::{self, Port};
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Protocol};

/// Where API servers listen: a host outside the cluster.
const SERVER: &str = "203.0.113.66:6443";
/// Where a real server listens if the tests' own server is in front of it.
const UPSTREAM: &str = "203.0.113.66:6444";

/// The outcomes for an unknown service address with the tests' own server, which has no ServiceCIDR
/// unless a test puts one.
const OWN: [Outcome; 1] = [Outcome::Unreachable];
/// The same with a real server: since 1.33 it has a ServiceCIDR, and packets to other addresses in
/// that range may be dropped.
const REAL: [Outcome; 2] = [Outcome::Unreachable, Outcome::Dropped];

/// How long anything may take.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// The only port of [`ApiContext::put_web`].
pub const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// The fixture, and the API server that its agent follows.
#[derive(Debug)]
pub struct ApiContext<A> {
    /// The hosts, the pods and the node.
    pub fixture: Fixture,
    /// The API server.
    pub api: A,
    /// The outcomes that a connection to an address without a service may have.
    unknown: &'static [Outcome],
}

impl ApiContext<ApiServer> {
    /// With the tests' own server.
    pub fn own(label: &str) -> Result<Self> {
        Self::with(label, &OWN, |cluster, address| {
            ApiServer::start(&cluster.world.client, address, &cluster.world.subfolder("api")?)
        })
    }

    /// With the tests' own server in front of a real one.
    fn in_front(label: &str, assets: &Path) -> Result<Self> {
        Self::with(label, &REAL, |cluster, address| {
            let world = &cluster.world;
            let (netns, folder) = (&world.client, world.subfolder("upstream")?);
            let real = RealServer::start(assets, netns, UPSTREAM.parse()?, &folder)?;
            ApiServer::in_front_of(real, netns, address, &world.subfolder("api")?)
        })
    }
}

impl<A: Api> ApiContext<A> {
    /// Starts the server again after it was stopped.
    pub fn go_on(&mut self) -> Result<()> {
        self.api.go_on(&self.fixture.cluster.world.client)
    }

    fn with(
        label: &str,
        unknown: &'static [Outcome],
        start: impl FnOnce(&Cluster, SocketAddr) -> Result<A>,
    ) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        let address: SocketAddr = SERVER.parse()?;
        fixture.cluster.world.add_client(address.ip())?;
        let api = start(&fixture.cluster, address)?;
        Ok(Self { fixture, api, unknown })
    }

    /// The agent's settings: with the server's kubeconfig, and without services if the server does
    /// not serve their EndpointSlices as the agent reads them.
    pub fn settings(&self) -> Settings {
        let flags =
            if self.api.has_slices() { Vec::new() } else { vec!["--services=off".to_owned()] };
        Settings {
            flags,
            objects: Objects::Kubeconfig(self.api.kubeconfig().to_owned()),
            ..self.fixture.cluster.settings()
        }
    }

    /// Starts the agent, and waits until all is programmed.
    pub fn start_agent(&self) -> Result<Agent> {
        Agent::start(&self.fixture.cluster.world.node, self.settings())
    }

    /// Starts the agent and waits for nothing.
    pub fn spawn_agent(&self) -> Result<Agent> {
        Agent::spawn(&self.fixture.cluster.world.node, self.settings())
    }

    /// Puts this node's Node object.
    pub fn put_node(&self) -> Result<()> {
        self.put_node_with(&[])
    }

    /// Puts this node's Node object with these podCIDRs.
    pub fn put_node_with(&self, pod_cidrs: &[&str]) -> Result<()> {
        let addresses: Vec<IpAddr> = ["192.168.0.2", "2001:db8::1"].map(ip).into();
        let mut node = manifest::node(NODE, &addresses, "");
        node["spec"] = json!({ "podCIDRs": pod_cidrs });
        self.api.put(&node)
    }

    /// Puts service `name` at [`service_ips`] of `number`, with `members` as its endpoints.
    pub fn put_web(&self, name: &str, number: u8, members: &[Host]) -> Result<()> {
        self.api.put_all(&self.fixture.service(name, number, &HTTP, members)?)
    }

    /// Removes service `name` and, with `slices`, the slices that [`Self::put_web`] put.
    pub fn delete_web(&self, name: &str, slices: bool) -> Result<()> {
        let named = |name: &str| json!({ "namespace": "default", "name": name });
        self.api
            .delete(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": named(name) }))?;
        for family in ["ipv4", "ipv6"].iter().filter(|_| slices) {
            let metadata = named(&format!("{name}-{family}"));
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            });
            self.api.delete(&slice)?;
        }
        Ok(())
    }

    /// Waits until connections to service `number`, in both families, have an outcome that `now`
    /// accepts.
    pub fn until(&self, number: u8, what: &str, now: impl Fn(&Outcome) -> bool) -> Result<()> {
        for address in service_ips(number) {
            let to = SocketAddr::new(address, 80);
            observed(what, TIMEOUT, || self.fixture.probe(Host::Bridged, to, Protocol::Tcp), &now)
                .with_context(|| to.to_string())?;
        }
        Ok(())
    }

    /// Waits until `who` answers at service `number`.
    pub fn until_answered(&self, number: u8, who: Host) -> Result<()> {
        self.until(number, &format!("{who:?} answers"), |outcome| {
            outcome.endpoint().is_some_and(|endpoint| {
                self.fixture
                    .address(who, endpoint.ip())
                    .is_ok_and(|address| address == endpoint.ip())
            })
        })
    }

    /// Waits until nothing translates the addresses of service `number`.
    pub fn until_unknown(&self, number: u8) -> Result<()> {
        self.until(number, "no such service", |outcome| self.unknown.contains(outcome))
    }
}

/// Plays `test` with the tests' own server, and with a real server if there is one.
pub fn with_every_api(
    label: &str,
    test: impl Fn(&mut ApiContext<Box<dyn Api>>) -> Result<()>,
) -> Result<()> {
    let mut own = ApiContext::<Box<dyn Api>>::with(label, &OWN, |cluster, address| {
        let folder = cluster.world.subfolder("api")?;
        Ok(Box::new(ApiServer::start(&cluster.world.client, address, &folder)?))
    })?;
    test(&mut own).context("with the tests' own API server")?;
    drop(own);
    let Some(assets) = assets() else { return Ok(()) };
    let mut real = ApiContext::<Box<dyn Api>>::with(label, &REAL, |cluster, address| {
        let folder = cluster.world.subfolder("api")?;
        Ok(Box::new(RealServer::start(&assets, &cluster.world.client, address, &folder)?))
    })?;
    test(&mut real).context("with a real kube-apiserver")
}

/// Plays `test` with the tests' own server, and with it in front of a real server if there is one.
pub fn with_faulty_apis(
    label: &str,
    test: impl Fn(&mut ApiContext<ApiServer>) -> Result<()>,
) -> Result<()> {
    test(&mut ApiContext::own(label)?).context("with the tests' own API server")?;
    let Some(assets) = assets() else { return Ok(()) };
    let mut front = ApiContext::in_front(label, &assets)?;
    test(&mut front).context("in front of a real kube-apiserver")
}

/// Waits until the agent reports an error that contains `part`.
pub fn until_error(agent: &Agent, part: &str) -> Result<()> {
    until_errors(agent, part, |errors| errors.iter().any(|error| error.to_string().contains(part)))
}

/// Waits until the agent reports no error.
pub fn until_no_error(agent: &Agent) -> Result<()> {
    until_errors(agent, "no errors", |errors| errors.is_empty())
}

fn until_errors(agent: &Agent, what: &str, now: impl Fn(&[Value]) -> bool) -> Result<()> {
    // An agent that was just started may not listen yet.
    let errors = || Ok(agent.status().map(|mut status| status["errors"].take()));
    observed(what, TIMEOUT, errors, |errors| {
        errors.as_ref().is_ok_and(|errors| errors.as_array().is_some_and(|all| now(all)))
    })
    .map(drop)
}
