//! Host ports beside the backend ipvs, which keeps services' addresses as routes of this node.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, STARTING};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, PORT, PROTOCOLS, Who, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::json;

/// A port of the node that a service has, too, at its primary addresses.
const NODE_PORT: u16 = 30080;
/// A port that only the pod asks for, and one that a service has at its own address.
const PORTS: [u16; 3] = [8080, 443, NODE_PORT];

const SENDERS: [Who; 3] = [Who::Outside, Who::Routed, Who::ThisNode];

fn start(fixture: &Fixture) -> Result<Agent> {
    let settings = fixture.cluster.settings_with(["--backend=ipvs", "--host-ports=on"]);
    let mut agent = Agent::spawn(&fixture.cluster.world.node, settings)?;
    agent.quiet();
    agent.wait_programmed(STARTING)?;
    Ok(agent)
}

/// A pod that asks for [`PORTS`] over every protocol.
fn asking(fixture: &Fixture) -> Result<Pod> {
    let mut chain = fixture.cluster.chain(Wiring::Bridged).clone();
    let denizen = chain.plugins.last_mut().context("denizen is the last plugin")?;
    let of_port = |number: &u16| {
        let number = *number;
        ["tcp", "udp", "sctp"].map(
            |protocol| json!({ "HostPort": number, "ContainerPort": PORT, "Protocol": protocol }),
        )
    };
    let ports: Vec<_> = PORTS.iter().flat_map(of_port).collect();
    denizen["hostPorts"] = json!({});
    denizen["runtimeConfig"] = json!({ "portMappings": ports });
    denizen["waitForAgent"] = json!({ "timeout": "60s", "onTimeout": "fail" });
    Pod::attach(&fixture.cluster.world.node, Netns::new("ipvs-hp")?, "asks", &chain)
}

pub fn are_served() -> Result<()> {
    let fixture = Fixture::new("ipvs-hp")?;
    let https = [Port { node_port: Some(NODE_PORT), ..Port::tcp("https", 443, PORT) }];
    let mut objects = fixture.service("api", 10, &https, &[Who::Remote])?;
    objects[0]["spec"]["type"] = json!("NodePort");
    fixture.cluster.manifests.put("services", &objects)?;
    let agent = start(&fixture)?;
    let pod = asking(&fixture)?;
    let all = PROTOCOLS.map(|protocol| (protocol, PORT));
    let _server = serve(&pod.netns, &pod.addresses, &all)?;
    let addresses = fixture.cluster.world.addresses().node.clone();
    let ask = |who, to, protocol, by: Option<std::net::IpAddr>| -> Result<Outcome> {
        let outcome = fixture.ask(who, to, protocol)?;
        let endpoint = outcome.endpoint().map(|endpoint| endpoint.ip());
        ensure!(endpoint == by, "{who:?} to {to}/{protocol}: {outcome:?}, not by {by:?}");
        let explained = fixture.explain(&agent, who, to, protocol)?;
        let said = by.map(|by| vec![SocketAddr::new(by, PORT)]).unwrap_or_default();
        ensure!(explained.endpoints == said, "{who:?} to {to}/{protocol}: {explained:?}");
        Ok(outcome)
    };
    for who in SENDERS {
        for (at, ip) in addresses.iter().enumerate() {
            let own = pod.address_like(*ip);
            for protocol in PROTOCOLS {
                let outcome = ask(who, SocketAddr::new(*ip, 8080), protocol, own)?;
                ensure!(outcome.seen() == Some(fixture.address(who, *ip)?), "{who:?}: {outcome:?}");
            }
            ask(who, SocketAddr::new(*ip, 443), Protocol::Tcp, own)?;
            // The first address of each family is where node ports are served.
            let is_primary = at % 2 == 0;
            let by = if is_primary { Some(fixture.address(Who::Remote, *ip)?) } else { own };
            ask(who, SocketAddr::new(*ip, NODE_PORT), Protocol::Tcp, by)?;
            ask(who, SocketAddr::new(*ip, NODE_PORT), Protocol::Udp, own)?;
        }
        for ip in service_ips(10) {
            let remote = fixture.address(Who::Remote, ip)?;
            ask(who, SocketAddr::new(ip, 443), Protocol::Tcp, Some(remote))?;
            let unused = fixture.ask(who, SocketAddr::new(ip, 8080), Protocol::Tcp)?;
            ensure!(unused.endpoint().is_none(), "{who:?} {ip}: {unused:?}");
        }
    }
    pod.detach(&fixture.cluster.world.node)?;
    let tables = fixture.cluster.world.node.output("nft", &["list", "tables"])?;
    ensure!(!tables.contains("denizen-host-ports"), "{tables}");
    agent.terminate().map(drop)
}
