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
/// Where a real one listens that the tests' own stands in front of.
const UPSTREAM: &str = "203.0.113.66:6444";

/// The tests' own server has no ServiceCIDR unless it is given one.
const OWN: [Outcome; 1] = [Outcome::Unreachable];
/// A real one has, since 1.33, and addresses in it are nobody else's.
const REAL: [Outcome; 2] = [Outcome::Unreachable, Outcome::Dropped];

/// What has not come about by then never will.
pub const BOUND: Duration = Duration::from_secs(90);

/// The only port of [`ApiContext::put_web`].
pub const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// The fixture, and the API server that its agent follows.
#[derive(Debug)]
pub struct ApiContext<A> {
    /// Who sends and who answers.
    pub fixture: Fixture,
    /// The API.
    pub api: A,
    /// What may come of a connection to an address that no service has.
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
    /// The server goes on after it was stopped.
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

    /// How the agent is run: with the server's kubeconfig, and without services where the server
    /// has none of their endpoints.
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

    /// Puts this node's Node object there.
    pub fn put_node(&self) -> Result<()> {
        self.put_node_with(&[])
    }

    /// Puts it there with these podCIDRs.
    pub fn put_node_with(&self, pod_cidrs: &[&str]) -> Result<()> {
        let addresses: Vec<IpAddr> = ["192.168.0.2", "2001:db8::1"].map(ip).into();
        let mut node = manifest::node(NODE, &addresses, "");
        node["spec"] = json!({ "podCIDRs": pod_cidrs });
        self.api.put(&node)
    }

    /// Puts service `name` there, at [`service_ips`] of `number`, served by `members`.
    pub fn put_web(&self, name: &str, number: u8, members: &[Host]) -> Result<()> {
        self.api.put_all(&self.fixture.service(name, number, &HTTP, members)?)
    }

    /// Removes service `name` and, where `slices`, what [`Self::put_web`] put beside it.
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

    /// Waits until connections to service `number`, in both families, come to what `now` accepts.
    pub fn until(&self, number: u8, what: &str, now: impl Fn(&Outcome) -> bool) -> Result<()> {
        for address in service_ips(number) {
            let to = SocketAddr::new(address, 80);
            observed(what, BOUND, || self.fixture.ask(Host::Bridged, to, Protocol::Tcp), &now)
                .with_context(|| to.to_string())?;
        }
        Ok(())
    }

    /// Waits until service `number` is answered by `who`.
    pub fn until_answered(&self, number: u8, who: Host) -> Result<()> {
        self.until(number, &format!("{who:?} answers"), |outcome| {
            outcome.endpoint().is_some_and(|endpoint| {
                self.fixture
                    .address(who, endpoint.ip())
                    .is_ok_and(|address| address == endpoint.ip())
            })
        })
    }

    /// Waits until nobody translates the addresses of service `number`.
    pub fn until_unknown(&self, number: u8) -> Result<()> {
        self.until(number, "no such service", |outcome| self.unknown.contains(outcome))
    }
}

/// Plays `test` with the tests' own server, and with a real one where there is one.
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

/// Plays `test` with the tests' own server, and with that in front of a real one where there is one.
pub fn with_faulty_apis(
    label: &str,
    test: impl Fn(&mut ApiContext<ApiServer>) -> Result<()>,
) -> Result<()> {
    test(&mut ApiContext::own(label)?).context("with the tests' own API server")?;
    let Some(assets) = assets() else { return Ok(()) };
    let mut front = ApiContext::in_front(label, &assets)?;
    test(&mut front).context("in front of a real kube-apiserver")
}

/// Waits until the agent says that something is wrong with `part` in it.
pub fn until_error(agent: &Agent, part: &str) -> Result<()> {
    until_errors(agent, part, |errors| errors.iter().any(|error| error.to_string().contains(part)))
}

/// Waits until the agent says that nothing is wrong.
pub fn until_no_error(agent: &Agent) -> Result<()> {
    until_errors(agent, "no errors", |errors| errors.is_empty())
}

fn until_errors(agent: &Agent, what: &str, now: impl Fn(&[Value]) -> bool) -> Result<()> {
    // One that has just been started may not listen yet.
    let errors = || Ok(agent.status().map(|mut status| status["errors"].take()));
    observed(what, BOUND, errors, |errors| {
        errors.as_ref().is_ok_and(|errors| errors.as_array().is_some_and(|all| now(all)))
    })
    .map(drop)
}
