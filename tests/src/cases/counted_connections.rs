//! Connections to services are counted, with `--service-metrics`: each once, also where IPVS
//! chooses the endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::eventually::{eventually, observed};
use crate::node::fixture::{Fixture, Host, PORT, service_ips};
use crate::node::manifest::Port;
use crate::node::netns::Netns;
use crate::packets::probe::{Probe, SILENCE};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// How long anything may take to have an effect. An emulated processor takes its time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The series of a service.
fn series(name: &str, family: &str) -> String {
    format!(
        "denizen_service_connections_total{{namespace=\"default\",service=\"{name}\",\
         port=\"http\",protocol=\"tcp\",ip_family=\"{family}\"}} "
    )
}

/// Numbers of services that share no endpoint with an older service: IPVS can carry them. The
/// second service has a node port, too.
pub const PLAIN: [u8; 2] = [13, 10];

/// How many connections each gets at its cluster IP at first, in each family.
pub const CONNECTIONS: [usize; 2] = [2, 3];

/// Connections through the service's address, its node port and session affinity are counted; those
/// to a service without endpoints are not. `scrape` reads the metrics of a node's agent; `counted`
/// returns when another counter, if there is one, has counted the first connections.
pub fn are_counted(
    fixture: &Fixture,
    backend: &str,
    scrape: impl Fn(&Netns) -> Result<String>,
    counted: impl Fn(&Netns) -> Result<()>,
) -> Result<()> {
    let cluster = &fixture.cluster;
    let node = &cluster.world.node;
    let port = HTTP[0].at_node(30_080);
    let mut web = fixture.service("web", 10, &[port], &[Host::Remote])?;
    web[0]["spec"]["type"] = "NodePort".into();
    let mut sticky = fixture.service("sticky", 11, &HTTP, &[Host::Routed])?;
    sticky[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    cluster.manifests.put("web", &web)?;
    cluster.manifests.put("sticky", &sticky)?;
    cluster.manifests.put("plain", &fixture.service("plain", 13, &HTTP, &[Host::Routed])?)?;
    cluster.manifests.put("nobody", &fixture.service("nobody", 12, &HTTP, &[])?)?;
    let flags = [backend, "--service-metrics"];
    let agent = cluster.start_agent_with(flags)?;
    let are = |name: &str, family: &str, count: f64| {
        let series = series(name, family);
        let value = || -> Result<Option<f64>> {
            let text = scrape(node)?;
            let found = text.lines().find_map(|line| line.strip_prefix(&series));
            Ok(found.map(str::parse).transpose()?)
        };
        observed(&series, TIMEOUT, value, |value| *value == Some(count)).map(drop)
    };
    let (client, _) = fixture.place(Host::Bridged);
    let ask = |number: u8, times: usize| -> Result<()> {
        for service in service_ips(number).into_iter().cycle().take(2 * times) {
            let to = SocketAddr::new(service, 80);
            let outcome = Probe::tcp(to).timeout(SILENCE).send_in(client);
            ensure!(outcome.endpoint().is_some() == (number != 12), "{to}: {outcome:?}");
        }
        Ok(())
    };
    PLAIN.into_iter().zip(CONNECTIONS).try_for_each(|(number, times)| ask(number, times))?;
    [11, 12].into_iter().try_for_each(|number| ask(number, 3))?;
    counted(node)?;
    let own = fixture.address(Host::ThisNode, service_ips(10)[0])?;
    let at_node = SocketAddr::new(own, 30_080);
    let (outside, _) = fixture.place(Host::Outside);
    let outcome = Probe::tcp(at_node).send_in(outside);
    ensure!(outcome.endpoint().is_some(), "{outcome:?}");
    for (name, family, count) in [
        ("web", "IPv4", 4.0),
        ("web", "IPv6", 3.0),
        ("sticky", "IPv4", 3.0),
        ("sticky", "IPv6", 3.0),
        ("plain", "IPv4", 2.0),
        ("plain", "IPv6", 2.0),
    ] {
        are(name, family, count)?;
    }
    ensure!(!scrape(node)?.contains("service=\"nobody\""), "nobody was reached");
    // The counters are the kernel's: another agent goes on with them, and repairs nothing.
    agent.terminate()?;
    let agent = cluster.start_agent_with(flags)?;
    ask(10, 1)?;
    are("web", "IPv6", 4.0)?;
    let status = agent.status().context("its status")?;
    ensure!(status["driftRepaired"] == 0, "{status:#}");
    cluster.manifests.remove("web")?;
    let gone = || Ok(!scrape(node)?.contains("service=\"web\""));
    eventually("its series are gone", TIMEOUT, gone)
}
