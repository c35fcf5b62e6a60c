//! Packets are followed on a kernel that many nodes have: kernels differ in how they report them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::agent::trace::TraceCommand;
use denizen_tests::agent::watch::WatchCommand;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::Protocol;

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A client, the number of the service that it connects to, and what becomes of its packet.
const PACKETS: [(Host, u8, &str); 3] =
    [(Host::Bridged, 10, "sent"), (Host::Outside, 10, "sent"), (Host::Outside, 99, "refused")];

/// `trace` agrees with `explain` wherever the rules are nf_tables', and says why it follows nothing
/// where they are not. `drops --watch` shows what is refused.
pub(crate) fn packets_are_followed() -> Result<()> {
    let fixture = served("guest-trace")?;
    for backend in Backend::ALL {
        let node = &fixture.cluster.world.node;
        let mut agent = Agent::spawn(node, fixture.cluster.settings_with(backend.flags()))?;
        agent.wait_programmed(TIMEOUT)?;
        match backend {
            Backend::IptablesLegacy => refused(&fixture, &agent)?,
            Backend::Nftables | Backend::IptablesNft | Backend::Ipvs => {
                followed(&fixture, &agent).with_context(|| format!("{backend:?}"))?;
            }
        }
        if backend == Backend::Nftables {
            watched(&fixture, &agent)?;
        }
        agent.terminate()?;
    }
    Ok(())
}

fn served(label: &str) -> Result<Fixture> {
    let fixture = Fixture::new(label)?;
    let services = [
        fixture.service("web", 10, &HTTP, &[Host::Routed])?,
        fixture.service("lonely", 99, &HTTP, &[])?,
    ];
    fixture.cluster.manifests.put("services", &services.concat())?;
    Ok(fixture)
}

/// `trace` agrees with `explain` of what IPVS carries, whoever sends it, and says that it was IPVS
/// that chose.
pub(crate) fn packets_through_ipvs_are_followed() -> Result<()> {
    let fixture = served("ipvs-trace")?;
    let node = &fixture.cluster.world.node;
    let mut agent = Agent::spawn(node, fixture.cluster.settings_with(Backend::Ipvs.flags()))?;
    agent.wait_programmed(TIMEOUT)?;
    for who in [Host::Bridged, Host::Outside, Host::ThisNode] {
        for ip in service_ips(10) {
            let to = SocketAddr::new(ip, 80);
            let tracing = follow(&fixture, &agent, who, to)?;
            fixture.probe(who, to, Protocol::Tcp)?;
            let traced = tracing.end()?;
            traced.ensure_as_predicted()?;
            let (packet, server) = (&traced.packets()[0], format!("{to}/tcp by rr"));
            let end = SocketAddr::new(fixture.address(Host::Routed, ip)?, PORT);
            ensure!(packet["virtualServer"] == server, "{who:?} to {to}: {packet:#}");
            ensure!(packet["lastDestination"]["address"] == end.to_string(), "{packet:#}");
        }
    }
    agent.terminate()?;
    Ok(())
}

fn follow(fixture: &Fixture, agent: &Agent, who: Host, to: SocketAddr) -> Result<TraceCommand> {
    let (from, to) = (fixture.address(who, to.ip())?.to_string(), to.to_string());
    TraceCommand::start(&fixture.cluster.world.node, agent, &["--from", &from, "--to", &to])
}

fn followed(fixture: &Fixture, agent: &Agent) -> Result<()> {
    for (who, number, fate) in PACKETS {
        for ip in service_ips(number) {
            let to = SocketAddr::new(ip, 80);
            let tracing = follow(fixture, agent, who, to)?;
            fixture.probe(who, to, Protocol::Tcp)?;
            let traced = tracing.end()?;
            traced.ensure_as_predicted()?;
            let packet = &traced.packets()[0];
            ensure!(packet["fate"] == fate, "{who:?} to {to}: {packet:#}");
        }
    }
    Ok(())
}

fn refused(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let error = follow(fixture, agent, Host::Outside, to).err().context("it was followed")?;
    ensure!(error.to_string().contains("tables of ip_tables"), "{error:#}");
    Ok(())
}

fn watched(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let watching = WatchCommand::start(&fixture.cluster.world.node, agent, &["drops"])?;
    let to = SocketAddr::new(service_ips(99)[0], 80);
    fixture.probe(Host::Routed, to, Protocol::Tcp)?;
    let packet = watching.until("what is refused", |packet| packet["verdict"] == "refused")?;
    ensure!(packet["service"] == "default/lonely:http", "{packet:#}");
    ensure!(packet["source"]["name"] == "default/routed", "{packet:#}");
    watching.kill()
}
