//! TCP connections that nobody has answered, while their service changes: the client's next SYN
//! goes where a new connection goes, and what was answered goes on where it is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, programmed};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use socket2::Socket;

use super::TIMEOUT;
use crate::context::{BALANCER, NODE_PORT, balanced};

/// Where the other node's pod drops every SYN.
const HOLE: u16 = 8081;
/// Where it accepts connections and keeps them.
const KEPT: u16 = 8082;
/// Ports of clients that bind to one.
const FIRST_PORT: u16 = 42_000;
/// The kernel sends a SYN again after 1, 3 and 7 seconds.
const RETRANSMITTED: Duration = Duration::from_secs(5);
const CLIENTS: [Host; 3] = [Host::Bridged, Host::Outside, Host::ThisNode];

/// A service with every kind of frontend.
struct SynContext {
    fixture: Fixture,
    flags: Vec<String>,
}

/// A connection that has begun.
struct Attempt {
    who: Host,
    probe: Probe,
    socket: Socket,
}

impl SynContext {
    fn new(label: &str, flags: Vec<String>) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        fixture.cluster.world.remote.nft(&format!(
            "table inet hole {{
                chain input {{
                    type filter hook input priority 0
                    tcp dport {HOLE} drop
                }}
            }}"
        ))?;
        Ok(Self { fixture, flags })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn start_agent(&self) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(self.flags.clone())
    }

    /// `who` alone serves, at this port.
    fn endpoint_is(&self, who: Host, target: u16) -> Result<()> {
        let port = Port::tcp("web", 80, target).at_node(NODE_PORT);
        let objects = balanced(&self.fixture, &[port], &[who])?;
        self.fixture.cluster.manifests.put("web", &objects)
    }

    /// Cluster IPs and load balancer IPs.
    fn service_addresses() -> impl Iterator<Item = SocketAddr> {
        let all = [10, BALANCER].into_iter().flat_map(service_ips);
        all.map(|ip| SocketAddr::new(ip, 80))
    }

    fn begin(&self) -> Result<Vec<Attempt>> {
        let mut frontends: Vec<SocketAddr> = Self::service_addresses().collect();
        for like in service_ips(10) {
            let node = self.fixture.address(Host::ThisNode, like)?;
            frontends.push(SocketAddr::new(node, NODE_PORT));
        }
        let pairs = frontends.iter().flat_map(|to| CLIENTS.map(|who| (who, *to)));
        pairs.map(|(who, to)| self.attempt(who, to)).collect()
    }

    fn attempt(&self, who: Host, to: SocketAddr) -> Result<Attempt> {
        let probe = Probe::tcp(to).from(self.fixture.address(who, to.ip())?);
        let probe = probe.timeout(RETRANSMITTED);
        let socket = self.fixture.place(who).0.run(|| probe.begin())?;
        Ok(Attempt { who, probe, socket: socket.with_context(|| format!("{who:?} to {to}"))? })
    }

    /// Connections of the node that are translated to this port.
    fn at(&self, port: u16) -> Result<usize> {
        let all = tracked(self.node(), Protocol::Tcp)?;
        Ok(all.iter().filter(|entry| entry.reply_source.port() == port).count())
    }

    fn is(&self, outcome: &Outcome, who: Host) -> bool {
        let owner = outcome.endpoint().and_then(|endpoint| self.fixture.owner(endpoint.ip()));
        owner == Some(who)
    }

    /// Another application gets the address and the port of the endpoint that is gone; `change`
    /// gives the service a living one.
    fn all_go_on(&self, attempts: Vec<Attempt>, change: impl FnOnce() -> Result<()>) -> Result<()> {
        eventually("all wait for the dead endpoint", TIMEOUT, || {
            Ok(self.at(HOLE)? == attempts.len())
        })?;
        let begun = Instant::now();
        change()?;
        eprintln!("{} flushed {:?} after the change", attempts.len(), begun.elapsed());
        assert_eq!(self.at(HOLE)?, 0, "programmed, and nobody is kept at the dead endpoint");
        let world = &self.fixture.cluster.world;
        world.remote.nft("delete table inet hole")?;
        let _stranger = serve(&world.remote, &world.addresses().remote, &[(Protocol::Tcp, HOLE)])?;
        for Attempt { who, probe, socket } in attempts {
            let outcome = probe.end(socket);
            ensure!(self.is(&outcome, Host::Routed), "{who:?} to {}: {outcome:?}", probe.to);
        }
        Ok(())
    }
}

/// Whoever waits for an endpoint that is dead reaches its successor with the same connection, and
/// never what has the dead one's address by then.
fn attempts_go_on(label: &str, flags: Vec<String>) -> Result<()> {
    let context = SynContext::new(label, flags)?;
    context.endpoint_is(Host::Remote, HOLE)?;
    let agent = context.start_agent()?;
    let attempts = context.begin()?;
    let change = || context.endpoint_is(Host::Routed, PORT);
    context.all_go_on(attempts, || programmed(&agent, change, || ()).map(drop))
}

#[test]
fn attempts_to_a_dead_endpoint_go_on_at_its_successor() -> Result<()> {
    attempts_go_on("syn-dead", Vec::new())
}

#[test]
fn so_they_do_with_iptables_legacy() -> Result<()> {
    attempts_go_on("syn-dead-l", Variant::Legacy.flags())
}

#[test]
fn so_they_do_with_iptables_nft() -> Result<()> {
    attempts_go_on("syn-dead-n", Variant::Nft.flags())
}

#[test]
fn so_they_do_if_the_endpoint_was_replaced_while_no_agent_ran() -> Result<()> {
    let context = SynContext::new("syn-restart", Vec::new())?;
    context.endpoint_is(Host::Remote, HOLE)?;
    let agent = context.start_agent()?;
    let attempts = context.begin()?;
    context.all_go_on(attempts, || {
        agent.terminate()?;
        context.endpoint_is(Host::Routed, PORT)?;
        let agent = context.start_agent()?;
        eventually("done with looking", TIMEOUT, || Ok(agent.status()?["flushing"] == false))
    })
}

/// Nobody translated the SYN of a client that came too early. It comes again from the same port,
/// and is not to hang where everybody else is served.
fn early_clients_are_served(label: &str, flags: Vec<String>) -> Result<()> {
    let context = SynContext::new(label, flags)?;
    let agent = context.start_agent()?;
    let pairs = SynContext::service_addresses().flat_map(|to| CLIENTS.map(|who| (who, to)));
    let pairs: Vec<_> = pairs.zip(FIRST_PORT..).collect();
    let ask = |&((who, to), port): &((Host, SocketAddr), u16)| -> Result<Outcome> {
        let probe = Probe { port, ..Probe::tcp(to).timeout(SILENCE) };
        let from = context.fixture.address(who, to.ip())?;
        Ok(probe.from(from).send_in(context.fixture.place(who).0))
    };
    for pair in &pairs {
        let outcome = ask(pair)?;
        ensure!(outcome == Outcome::Unreachable, "{pair:?}: {outcome:?}");
    }
    let all = tracked(context.node(), Protocol::Tcp)?;
    for ((_, to), port) in &pairs {
        let mine = all.iter().find(|entry| entry.source.port() == *port);
        let mine = mine.with_context(|| format!("the SYN to {to} is tracked"))?;
        ensure!((mine.destination, mine.reply_source) == (*to, *to), "{mine:?}");
    }
    programmed(&agent, || context.endpoint_is(Host::Routed, PORT), || ())?;
    for pair in &pairs {
        let outcome = ask(pair)?;
        ensure!(context.is(&outcome, Host::Routed), "{pair:?}: {outcome:?}");
    }
    Ok(())
}

#[test]
fn clients_that_came_before_the_service_are_served() -> Result<()> {
    early_clients_are_served("syn-early", Vec::new())
}

#[test]
fn so_they_are_with_iptables_legacy() -> Result<()> {
    early_clients_are_served("syn-early-l", Variant::Legacy.flags())
}

#[test]
fn so_they_are_with_iptables_nft() -> Result<()> {
    early_clients_are_served("syn-early-n", Variant::Nft.flags())
}

fn passes(from: &mut TcpStream, to: &mut TcpStream) -> Result<()> {
    from.write_all(b"on")?;
    let mut buffer = [0; 2];
    to.set_read_timeout(Some(TIMEOUT))?;
    to.read_exact(&mut buffer)?;
    ensure!(&buffer == b"on", "{buffer:?}");
    Ok(())
}

/// Its endpoint lives on, though it serves no more.
#[test]
fn a_connection_that_was_answered_goes_on_at_its_endpoint() -> Result<()> {
    let context = SynContext::new("syn-answered", Vec::new())?;
    context.endpoint_is(Host::Remote, KEPT)?;
    let agent = context.start_agent()?;
    let mut connections = Vec::new();
    for like in service_ips(10) {
        let at = SocketAddr::new(context.fixture.address(Host::Remote, like)?, KEPT);
        let remote = context.fixture.place(Host::Remote).0;
        let listener = remote.run(|| TcpListener::bind(at))??;
        for who in CLIENTS {
            let probe = Probe::tcp(SocketAddr::new(like, 80));
            let probe = probe.from(context.fixture.address(who, like)?);
            let client = context.fixture.place(who).0.run(|| probe.connect())??;
            connections.push((client, listener.accept()?.0));
        }
    }
    let kept = || -> Result<Vec<_>> {
        let all = tracked(context.node(), Protocol::Tcp)?.into_iter();
        Ok(all.filter(|entry| entry.reply_source.port() == KEPT).collect())
    };
    let before = kept()?;
    assert_eq!(before.len(), connections.len());
    programmed(&agent, || context.endpoint_is(Host::Routed, PORT), || ())?;
    // Long enough for the second look.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(kept()?, before);
    for (client, server) in &mut connections {
        passes(client, server)?;
        passes(server, client)?;
    }
    Ok(())
}
