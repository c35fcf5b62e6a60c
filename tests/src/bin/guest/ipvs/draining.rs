//! What the agent's `status` and `connections` say of endpoints that drain.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::checked;
use denizen_tests::packets::long_connection::{self, ECHO, LongConnection};
use serde_json::Value;

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The echo service. Its two endpoints are chosen one after the other.
const ECHOES: Port = Port::tcp("echo", 7, ECHO);

/// Its number among [`service_ips`].
const NUMBER: u8 = 11;

const MEMBERS: [Host; 2] = [Host::Routed, Host::Bridged];

struct Drained {
    fixture: Fixture,
}

impl Drained {
    fn new() -> Result<Self> {
        let fixture = long_connection::fixture("ipvs-drain")?;
        let bridged = &fixture.bridged;
        for address in &bridged.addresses {
            long_connection::serve(&bridged.netns, *address)?;
        }
        let drained = Self { fixture };
        drained.echoes(&[])?;
        Ok(drained)
    }

    /// The service's endpoints from now on; `leaving` are among them and get no new connections.
    fn echoes(&self, leaving: &[Host]) -> Result<()> {
        let mut objects = self.fixture.service("echo", NUMBER, &[ECHOES], &MEMBERS)?;
        self.fixture.drain(&mut objects, leaving)?;
        self.fixture.cluster.manifests.put("echo", &objects)
    }

    fn start(&self) -> Result<Agent> {
        let settings = self.fixture.cluster.settings_with(["--backend=ipvs"]);
        let mut agent = Agent::spawn(&self.fixture.cluster.world.node, settings)?;
        agent.quiet();
        agent.wait_programmed(TIMEOUT)?;
        Ok(agent)
    }

    /// One connection to each endpoint.
    fn connections(&self) -> Result<Vec<LongConnection>> {
        let to = SocketAddr::new(service_ips(NUMBER)[0], 7);
        let open = |_| LongConnection::open(self.fixture.place(Host::Outside).0, to);
        MEMBERS.iter().map(open).collect()
    }

    /// The connections through the service that `denizen-agent connections` shows, sorted.
    fn shown(&self, agent: &Agent) -> Result<Vec<Value>> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.args(["connections", "--service=default/echo", "--output=json", "--run-dir"]);
        command.arg(agent.run_dir());
        let output = self.fixture.cluster.world.node.run(|| checked(&mut command))??;
        let output: Value = serde_json::from_slice(&output.stdout)?;
        Ok(output["connections"].as_array().context("connections")?.clone())
    }
}

/// The draining endpoints in `status`, of both families; only the first has a connection.
fn draining(status: &Value) -> Vec<Value> {
    status["ipvs"]["draining"].as_array().cloned().unwrap_or_default()
}

/// One of two endpoints leaves: it is named with its connection and since when, over a restart too,
/// until the connection and then the endpoint are gone.
pub(crate) fn is_shown() -> Result<()> {
    let drained = Drained::new()?;
    let agent = drained.start()?;
    let mut connections = drained.connections()?;
    ensure!(draining(&agent.status()?).is_empty(), "{}", agent.status()?);
    drained.echoes(&[Host::Bridged])?;
    let status =
        agent.until("an endpoint drains", TIMEOUT, |status| draining(status).len() == 2)?;
    connections.iter_mut().try_for_each(LongConnection::still_alive)?;
    let leaving = drained.fixture.address(Host::Bridged, service_ips(NUMBER)[0])?;
    let leaving = SocketAddr::new(leaving, ECHO).to_string();
    let shown = draining(&status);
    let row = shown.iter().find(|row| row["endpoint"] == *leaving).context("the endpoint")?;
    ensure!(row["service"] == "default/echo:echo" && row["active"] == 1, "{row}");
    let since = row["since"].as_str().context("since when")?.to_owned();
    let shown = drained.shown(&agent)?;
    let of = |endpoint: &str| {
        shown.iter().filter(|entry| entry["endpoint"]["address"] == *endpoint).collect::<Vec<_>>()
    };
    ensure!(shown.len() == 2, "{shown:#?}");
    ensure!(matches!(of(&leaving)[..], [it] if it["drainingSince"] == *since), "{shown:#?}");
    let others = shown.iter().filter(|entry| entry.get("drainingSince").is_none());
    ensure!(others.count() == 1, "{shown:#?}");

    agent.terminate()?;
    let agent = drained.start()?;
    let status = agent.status()?;
    let adopted = draining(&status);
    let row = adopted.iter().find(|row| row["endpoint"] == *leaving).context("the endpoint")?;
    ensure!(row["since"].is_null() && row["active"] == 1, "{row}");
    connections.iter_mut().try_for_each(LongConnection::still_alive)?;
    drop(connections);
    agent.until("it has no connections", TIMEOUT, |status| {
        draining(status).iter().all(|row| row["active"] == 0)
    })?;
    drained.echoes(&[])?;
    agent.until("it is back", TIMEOUT, |status| draining(status).is_empty())?;
    agent.terminate()?;
    Ok(())
}
