//! The backend ipvs on difficult hosts: firewalls that drop by default, endpoints in the host
//! network, and interfaces without an address.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT};
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{EVERYONE, Fixture, Host, PORT, every_way, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::long_connection;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::packets::server::Server;

/// A firewall that admits only what the host's owner knows of. Neighbour discovery, and answers to
/// the node itself, must pass.
const FIREWALL: &str = r"
table inet filter {
    chain input {
        type filter hook input priority 0; policy drop;
        iif lo accept
        ct state established,related accept
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept
    }
    chain forward { type filter hook forward priority 0; policy drop; }
}
";

/// The port of endpoints in the host network. Without such a service, a port of the node itself.
const HOST_PORT: u16 = 8181;

/// The number of their service among [`service_ips`].
const HOSTS: u8 = 20;

fn start(fixture: &Fixture, flags: &[&str]) -> Result<Agent> {
    let flags = [&["--backend=ipvs"], flags].concat();
    let settings = fixture.cluster.settings_with(flags);
    let mut agent = Agent::spawn(&fixture.cluster.world.node, settings)?;
    agent.quiet();
    agent.wait_programmed(START_TIMEOUT)?;
    Ok(agent)
}

/// `--open-forward` lets in what IPVS carries, and nothing else.
fn dropping_firewalls(fixture: &Fixture) -> Result<()> {
    let node = &fixture.cluster.world.node;
    node.nft(FIREWALL)?;
    let agent = start(fixture, &[])?;
    let web = SocketAddr::new(service_ips(10)[0], 80);
    let closed = Probe::tcp(web).timeout(SILENCE).send_in(fixture.place(Host::Outside).0);
    ensure!(closed == Outcome::Dropped, "nothing lets it in: {closed:?}");
    agent.terminate()?;
    let agent = start(fixture, &["--open-forward"])?;
    for (to, protocol) in every_way(10) {
        for who in EVERYONE {
            let is_served = |outcome: &Outcome| outcome.endpoint().is_some();
            observed("served", START_TIMEOUT, || fixture.probe(who, to, protocol), is_served)
                .with_context(|| format!("{who:?} to {to}/{protocol}"))?;
        }
    }
    let own = SocketAddr::new(fixture.address(Host::ThisNode, web.ip())?, HOST_PORT);
    let outcome = Probe::tcp(own).timeout(SILENCE).send_in(fixture.place(Host::Outside).0);
    ensure!(outcome == Outcome::Dropped, "the node's own port is let in: {outcome:?}");
    agent.terminate()?;
    node.nft("delete table inet filter")
}

/// Endpoints in the host network of this node, and of another one.
fn hosts_as_endpoints(fixture: &Fixture) -> Result<()> {
    let ports =
        [Port::tcp("tcp", 80, HOST_PORT), Port::tcp("udp", 80, HOST_PORT).over(Protocol::Udp)];
    let members = [Host::ThisNode, Host::Remote];
    let objects = fixture.service("hosts", HOSTS, &ports, &members)?;
    fixture.cluster.manifests.put("hosts", &objects)?;
    let agent = start(fixture, &[])?;
    for who in EVERYONE {
        for (ip, protocol) in service_ips(HOSTS)
            .into_iter()
            .flat_map(|ip| [Protocol::Tcp, Protocol::Udp].map(|protocol| (ip, protocol)))
        {
            let to = SocketAddr::new(ip, 80);
            let explained = fixture.explain(&agent, who, to, protocol)?;
            ensure!(explained.virtual_server.is_some(), "{explained:?}");
            let mut answered = Vec::new();
            for _ in members {
                let outcome = fixture.probe(who, to, protocol)?;
                let endpoint =
                    outcome.endpoint().with_context(|| format!("{who:?} {to}: {outcome:?}"))?;
                answered.push(fixture.owner(endpoint.ip()));
            }
            answered.sort_unstable();
            let all = [Some(Host::Remote), Some(Host::ThisNode)];
            ensure!(answered == all, "{who:?} to {to}/{protocol}: {answered:?}");
        }
    }
    agent.terminate()?;
    Ok(())
}

/// A connection that is masqueraded out of an interface without an address gets an address of the
/// node as its source, and never a service's: no device has services' addresses.
fn no_source_is_a_services(fixture: &Fixture) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let (routed, web) = (&fixture.routed, [Port::tcp("only", 80, PORT)]);
    let only = fixture.service("only", 21, &web, &[Host::Routed])?;
    fixture.cluster.manifests.put("only", &only)?;
    let like = service_ips(21)[0];
    let at = fixture.address(Host::Routed, like)?;
    let veth = routed.host_interface();
    let before = node.output("ip", &["-o", "addr"])?;
    let agent = start(fixture, &[])?;
    let after = node.output("ip", &["-o", "addr"])?;
    ensure!(before == after, "{before}\nbut now\n{after}");
    node.output("ip", &["-4", "addr", "flush", "dev", veth])?;
    node.ip(&format!("route replace {at}/32 dev {veth}"))?;
    node.sysctl(&format!("net.ipv4.conf.{veth}.proxy_arp"), "1")?;
    let outcome = fixture.probe(Host::Outside, SocketAddr::new(like, 80), Protocol::Tcp)?;
    let seen = outcome.seen().with_context(|| format!("{outcome:?}"))?;
    ensure!(fixture.cluster.is_nodes(seen)?, "an endpoint saw {seen}");
    agent.terminate()?;
    Ok(())
}

pub(crate) fn are_served() -> Result<()> {
    let fixture = long_connection::fixture("ipvs-host")?;
    let world = &fixture.cluster.world;
    let both = [Protocol::Tcp, Protocol::Udp].map(|protocol| (protocol, HOST_PORT));
    let own: Vec<IpAddr> = service_ips(HOSTS)
        .into_iter()
        .map(|like| fixture.address(Host::ThisNode, like))
        .collect::<Result<_>>()?;
    let _servers: Vec<Server> = [(&world.node, &own), (&world.remote, &world.addresses().remote)]
        .into_iter()
        .map(|(netns, addresses): (&Netns, &Vec<IpAddr>)| serve(netns, addresses, &both))
        .collect::<Result<_>>()?;
    dropping_firewalls(&fixture)?;
    hosts_as_endpoints(&fixture)?;
    no_source_is_a_services(&fixture)
}
