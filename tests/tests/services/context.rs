//! A test cluster with its agent, and what becomes of connections in it: real ones, which must be
//! as `explain` says.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{self, Agent};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT, PROTOCOLS, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, Protocol, SILENCE};
use serde_json::{Value, json};

pub const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];
pub const NODE_PORT: u16 = 30080;
/// Which [`service_ips`] are a load balancer's.
pub const BALANCER: u8 = 100;
/// With three to choose from, one in ten million such series misses one by chance.
pub const TRIES: usize = 42;

/// What became of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Answered(BTreeSet<Host>),
    Refused,
    Dropped,
}

pub fn by(who: impl IntoIterator<Item = Host>) -> Fate {
    Fate::Answered(who.into_iter().collect())
}

/// A test cluster whose agent has programmed its services.
pub struct AgentContext {
    pub fixture: Fixture,
    pub agent: Agent,
}

impl AgentContext {
    /// An agent that has programmed what `objects` gives, started with these flags.
    pub fn new(
        label: &str,
        flags: &[&str],
        objects: impl FnOnce(&Fixture) -> Result<Vec<Value>>,
    ) -> Result<Self> {
        let mut fixture = Fixture::new(label)?;
        let world = &fixture.cluster.world;
        let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
        let server = serve(&world.client, &world.addresses().client, &ports)?;
        fixture.servers.push(server);
        fixture.cluster.manifests.put("services", &objects(&fixture)?)?;
        let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
        Ok(Self { fixture, agent })
    }

    /// These objects are the only ones from now on.
    pub fn becomes(&self, objects: &[Value]) -> Result<()> {
        let change = || self.fixture.cluster.manifests.put("services", objects);
        agent::programmed(&self.agent, change, || ()).map(drop)
    }

    /// What becomes of connections of `who`, which must be what `explain` says of them.
    pub fn fate(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<Fate> {
        let from = self.fixture.address(who, to.ip())?;
        let (netns, interface) = self.fixture.place(who);
        let explained = self.agent.explain(from, interface, to, protocol)?;
        let owner =
            |endpoint: &SocketAddr| self.fixture.owner(endpoint.ip()).context("nobody's address");
        let output = match explained.verdict.as_str() {
            "forward" => {
                Fate::Answered(explained.endpoints.iter().map(owner).collect::<Result<_>>()?)
            }
            "drop" => Fate::Dropped,
            _ => Fate::Refused,
        };
        let probe = Probe {
            protocol,
            from: Some(from),
            timeout: if output == Fate::Dropped { SILENCE } else { ANSWER_TIMEOUT },
            ..Probe::tcp(to)
        };
        let mut answered = BTreeSet::new();
        let mut seen = None;
        for _ in 0..TRIES {
            match probe.send_in(netns) {
                Outcome::Answered { endpoint, .. } => _ = answered.insert(owner(&endpoint)?),
                Outcome::Refused => seen = Some(Fate::Refused),
                Outcome::Dropped => seen = Some(Fate::Dropped),
                other @ (Outcome::Unreachable | Outcome::Broken(_)) => {
                    anyhow::bail!("{who:?} to {to}/{protocol}: {other:?}")
                }
            }
            if seen.is_some() {
                break;
            }
        }
        let seen = seen.unwrap_or(Fate::Answered(answered));
        ensure!(
            seen == output,
            "{who:?} to {to}/{protocol}: {seen:?}, but explain says {explained:?}"
        );
        Ok(seen)
    }
}

/// Both cluster IPs of `number`, at a port.
pub fn at(number: u8, port: u16) -> [SocketAddr; 2] {
    service_ips(number).map(|ip| SocketAddr::new(ip, port))
}

/// The node's own first addresses, at a port.
pub fn at_node(fixture: &Fixture, port: u16) -> Result<Vec<SocketAddr>> {
    let node = |like| Ok(SocketAddr::new(fixture.address(Host::ThisNode, like)?, port));
    service_ips(1).into_iter().map(node).collect()
}

/// Service 10, `web`, as a load balancer's at [`BALANCER`].
pub fn balanced(fixture: &Fixture, ports: &[Port], members: &[Host]) -> Result<Vec<Value>> {
    let mut objects = fixture.service("web", 10, ports, members)?;
    objects[0]["spec"]["type"] = "LoadBalancer".into();
    let ingress = service_ips(BALANCER).map(|ip| json!({ "ip": ip }));
    objects[0]["status"]["loadBalancer"]["ingress"] = json!(ingress);
    Ok(objects)
}

/// The same under external policy Local.
pub fn local(fixture: &Fixture, ports: &[Port], members: &[Host]) -> Result<Vec<Value>> {
    let mut objects = balanced(fixture, ports, members)?;
    objects[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    Ok(objects)
}

/// The slices' endpoints at `who`'s addresses, to be changed.
pub fn endpoints_of<'a>(
    objects: &'a mut [Value],
    fixture: &Fixture,
    who: Host,
) -> Vec<&'a mut Value> {
    let own: Vec<IpAddr> =
        service_ips(1).into_iter().filter_map(|like| fixture.address(who, like).ok()).collect();
    let lists = objects.iter_mut().filter_map(|object| object["endpoints"].as_array_mut());
    lists
        .flatten()
        .filter(|endpoint| own.iter().any(|ip| endpoint["addresses"][0] == json!(ip)))
        .collect()
}

/// Conditions of `who`'s endpoints.
pub fn condition(objects: &mut [Value], fixture: &Fixture, who: Host, conditions: &Value) {
    for endpoint in endpoints_of(objects, fixture, who) {
        endpoint["conditions"] = conditions.clone();
    }
}

/// Conditions of an endpoint that serves still, but not for long.
pub fn draining() -> Value {
    json!({ "ready": false, "serving": true, "terminating": true })
}
