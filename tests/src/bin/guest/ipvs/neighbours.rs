//! No neighbour learns that services' addresses are this node's: no link has them.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::fixture::{Fixture, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::long_connection;
use denizen_tests::packets::probe::{Probe, SILENCE};

/// The link that the node shares with its neighbour, and the node's addresses on it.
const LINK: &str = "lan0";
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8:2::1"];
const NEIGHBOUR: [&str; 2] = ["192.0.2.2", "2001:db8:2::2"];

/// Time for the kernel to ask for a neighbour three times.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time for an agent that checks a minute later whether connections through IPVS have ended. On an
/// emulated processor, waiting is cheap and asking is not: [`PAUSE`] between two questions.
const DRAINED: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_secs(2);

fn start(fixture: &Fixture, backend: &str) -> Result<Agent> {
    let settings = fixture.cluster.settings_with([format!("--backend={backend}")]);
    let mut agent = Agent::spawn(&fixture.cluster.world.node, settings)?;
    agent.quiet();
    agent.wait_programmed(START_TIMEOUT)?;
    Ok(agent)
}

/// A host beside the node, which expects these addresses of services on the link itself.
pub(crate) fn neighbour(node: &Netns, services: [IpAddr; 2]) -> Result<Netns> {
    let host = Netns::new("neighbour")?;
    node.ip(&format!("link add {LINK} type veth peer name {LINK} netns {}", host.name()))?;
    for (at, own) in [(node, NODE), (&host, NEIGHBOUR)] {
        let [v4, v6] = own;
        at.ip(&format!(
            "addr add {v4}/24 dev {LINK}\naddr add {v6}/64 dev {LINK} nodad\nlink set {LINK} up"
        ))?;
    }
    for (service, version) in services.into_iter().zip(["ipv4", "ipv6"]) {
        host.ip(&format!("route add {service} dev {LINK}"))?;
        host.sysctl(&format!("net.{version}.neigh.{LINK}.retrans_time_ms"), "200")?;
    }
    Ok(host)
}

/// Whether somebody on the link claims the address.
pub(crate) fn is_claimed(host: &Netns, address: IpAddr) -> Result<bool> {
    host.output("ip", &["neigh", "flush", "dev", LINK])?;
    let to = address.to_string();
    Probe::tcp(SocketAddr::new(address, 80)).timeout(SILENCE).send_in(host);
    let neighbour = || host.output("ip", &["neigh", "show", "to", &to, "dev", LINK]);
    let is_known = |seen: &String| ["lladdr", "FAILED"].iter().any(|state| seen.contains(state));
    Ok(observed("asked for", TIMEOUT, neighbour, is_known)?.contains("lladdr"))
}

pub(crate) fn has_table(node: &Netns) -> Result<bool> {
    Ok(node.output("nft", &["list", "tables"])?.contains("table arp denizen"))
}

pub(crate) fn are_not_told() -> Result<()> {
    let fixture = long_connection::fixture("ipvs-link")?;
    let node = &fixture.cluster.world.node;
    let host = neighbour(node, service_ips(10))?;
    let agent = start(&fixture, "ipvs")?;
    for address in service_ips(10) {
        ensure!(!is_claimed(&host, address)?, "the node claims {address}");
    }
    for address in NODE.map(ip) {
        ensure!(is_claimed(&host, address)?, "the node does not claim its own {address}");
    }
    agent.terminate()?;

    // For IPv4 the rule prevents it; IPv6 needs no rule.
    node.nft("delete table arp denizen")?;
    let [v4, v6] = service_ips(10);
    ensure!(is_claimed(&host, v4)?, "without the rule, the kernel does not claim {v4} either");
    ensure!(!is_claimed(&host, v6)?, "the kernel claims {v6}");

    start(&fixture, "ipvs")?.terminate()?;
    ensure!(has_table(node)?, "the table was not made again");
    let agent = start(&fixture, "nftables")?;
    eventually("the table is gone", DRAINED, || {
        thread::sleep(PAUSE);
        Ok(!has_table(node)?)
    })?;
    agent.terminate()?;
    Ok(())
}
