//! What becomes of connections that IPVS carries: silent ones, those of an endpoint that drains or
//! ends, and those that share a client's port.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT, programmed};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::kernel::conntrack::{KeptFlow, tracked};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{
    Fixture, Host, PORT, every_protocol, put_load_balancer, service_ips,
};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::long_connection::{self, ECHO, LongConnection, MEMBERS};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};

/// IPVS's own timeouts here, in seconds. Without denizen, it would forget a silent connection after
/// that.
const SHORT: u64 = 2;

/// The number among [`service_ips`] of an echo service with several pods, and of its load balancer.
const ECHOES: u8 = 20;
const BALANCER: u8 = 100;

/// The number of a service whose endpoint is replaced before it answers, and the port at which that
/// first endpoint drops every SYN.
const MOVED: u8 = 30;
const HOLE: u16 = 8081;

/// The endpoints of the echo service: IPVS chooses one after the other.
const BEHIND: [Host; 2] = [Host::Bridged, Host::Remote];

/// A change takes a second of the guest's time.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A client's port that is used again and again.
const REUSED_PORT: u16 = 41_000;

struct Connections {
    fixture: Fixture,
}

impl Connections {
    fn new() -> Result<Self> {
        let fixture = long_connection::fixture("ipvs-conn")?;
        let (bridged, world) = (&fixture.bridged, &fixture.cluster.world);
        bridged.addresses.iter().try_for_each(|at| long_connection::serve(&bridged.netns, *at))?;
        world
            .addresses()
            .remote
            .iter()
            .try_for_each(|at| long_connection::serve(&world.remote, *at))?;
        let short = SHORT.to_string();
        world.node.output("ipvsadm", &["--set", &short, &short, &short])?;
        let connections = Self { fixture };
        connections.echoes(&BEHIND, &[])?;
        Ok(connections)
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn client(&self) -> &Netns {
        self.fixture.place(Host::Routed).0
    }

    /// The endpoints of the echo service; `leaving` are among them and get no new connections.
    fn echoes(&self, members: &[Host], leaving: &[Host]) -> Result<()> {
        let port = [Port::tcp("echo", 7, ECHO)];
        let mut objects = self.fixture.service("echoes", ECHOES, &port, members)?;
        put_load_balancer(&mut objects, BALANCER);
        self.fixture.drain(&mut objects, leaving)?;
        self.fixture.cluster.manifests.put("echoes", &objects)
    }

    fn start(&self) -> Result<Agent> {
        let settings = self.fixture.cluster.settings_with(["--backend=ipvs"]);
        let mut agent = Agent::spawn(self.node(), settings)?;
        agent.quiet();
        agent.wait_programmed(START_TIMEOUT)?;
        Ok(agent)
    }

    /// What IPVS says of an endpoint of the echo service: its weight, and how many connections it
    /// has that are open.
    fn open(&self, who: Host) -> Result<Option<(u32, u32)>> {
        let at = self.fixture.address(who, service_ips(ECHOES)[0])?;
        let listed = self.node().output("ipvsadm", &["--list", "--numeric"])?;
        let service = format!("TCP  {}:7 ", service_ips(ECHOES)[0]);
        let of_service = listed.split_once(&service).context(listed.clone())?.1;
        let mut reals = of_service.lines().skip(1).take_while(|line| line.contains("->"));
        let real = format!("{at}:{ECHO} ");
        let Some(line) = reals.find(|line| line.contains(&real)) else { return Ok(None) };
        let mut numbers = line.split_whitespace().skip(3).map(str::parse);
        let (weight, open) = (numbers.next(), numbers.next());
        Ok(Some((weight.context("a weight")??, open.context("connections")??)))
    }

    fn wait(&self, who: Host, wanted: Option<(u32, u32)>) -> Result<()> {
        let what = format!("{who:?} has {wanted:?}");
        eventually(&what, TIMEOUT, || Ok(self.open(who)? == wanted))
    }
}

fn at(number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(service_ips(number)[0], port)
}

/// IPVS forgets neither connections nor flows before connection tracking does.
fn silent_ones_live(context: &Connections, streams: &mut [LongConnection]) -> Result<()> {
    let web = at(10, 80);
    let source = context.fixture.address(Host::Routed, web.ip())?;
    let flow = KeptFlow::open(context.client(), Protocol::Udp, source, web)?;
    let first = flow.send();
    ensure!(first.endpoint().is_some(), "{first:?}");
    thread::sleep(Duration::from_secs(3 * SHORT));
    streams.iter_mut().try_for_each(LongConnection::still_alive).context("a silent connection")?;
    let again = flow.send();
    ensure!(again == first, "a silent flow: {first:?}, then {again:?}");
    Ok(())
}

/// An endpoint that drains keeps its connections and gets no new ones; also across a restart, and
/// when it has left the slices. Connections to a pod that is gone by its DEL are reset.
fn endpoints_drain(
    context: &Connections,
    agent: Agent,
    mut streams: [LongConnection; 2],
) -> Result<Agent> {
    // IPVS chose one endpoint after the other: each has one connection.
    context.wait(Host::Remote, Some((1, 1)))?;
    context.echoes(&BEHIND, &[Host::Remote])?;
    context.wait(Host::Remote, Some((0, 1)))?;
    let mut new = Vec::new();
    for _ in 0..2 * BEHIND.len() {
        new.push(LongConnection::open(context.client(), at(ECHOES, 7))?);
    }
    context.wait(Host::Bridged, Some((1, 1 + new.len() as u32)))?;
    agent.kill()?;
    let agent = context.start()?;
    context.wait(Host::Remote, Some((0, 1)))?;
    streams
        .iter_mut()
        .try_for_each(LongConnection::still_alive)
        .context("beside one that drains")?;
    context.echoes(&BEHIND, &[])?;
    context.wait(Host::Remote, Some((1, 1)))?;
    // The slices lack a pod of another node, then one of this node.
    context.echoes(&BEHIND[..1], &[])?;
    context.wait(Host::Remote, Some((0, 1)))?;
    context.echoes(&BEHIND[1..], &[])?;
    context.wait(Host::Bridged, Some((0, 1 + new.len() as u32)))?;
    let mut all = streams.iter_mut().chain(&mut new);
    all.try_for_each(LongConnection::still_alive).context("to one that has left the slices")?;
    let begun = Instant::now();
    context.fixture.bridged.forget(context.node())?;
    context.wait(Host::Bridged, None)?;
    let all_reset = new.iter_mut().all(|stream| stream.is_reset().is_ok());
    ensure!(all_reset, "a connection to a pod that is gone goes on");
    let reset = streams.iter_mut().filter_map(|stream| stream.is_reset().ok()).count();
    ensure!(reset == 1, "{reset} of two connections were the pod's");
    println!("  connections were reset {:?} after DEL began", begun.elapsed());
    Ok(agent)
}

/// A UDP flow whose endpoint goes moves to another endpoint at once.
fn flows_move_at_once(context: &Connections) -> Result<()> {
    let web = at(10, 80);
    let source = context.fixture.address(Host::Routed, web.ip())?;
    let flow = KeptFlow::open(context.client(), Protocol::Udp, source, web)?;
    let outcome = flow.send();
    let endpoint = outcome.endpoint().with_context(|| format!("{outcome:?}"))?;
    let served = context.fixture.owner(endpoint.ip()).context("an endpoint")?;
    let rest: Vec<Host> = MEMBERS.into_iter().filter(|who| *who != served).collect();
    let objects = context.fixture.service("web", 10, &every_protocol(), &rest)?;
    context.fixture.cluster.manifests.put("web", &objects)?;
    let gone = format!("{endpoint} ");
    eventually("the endpoint is gone", TIMEOUT, || {
        let listed =
            context.node().output("ipvsadm", &["--list", "--numeric", "-u", &web.to_string()])?;
        Ok(!listed.contains(&gone))
    })?;
    // A datagram is lost if it comes before the kernel has forgotten the flow.
    let is_answered = |outcome: &Outcome| outcome.endpoint().is_some();
    let outcome = observed("answered again", TIMEOUT, || Ok(flow.send()), is_answered)?;
    let moved = outcome.endpoint().and_then(|endpoint| context.fixture.owner(endpoint.ip()));
    ensure!(moved.is_some_and(|who| rest.contains(&who)), "{served:?} is gone, and {outcome:?}");
    Ok(())
}

/// A retransmitted SYN goes to the successor of a dead endpoint that never answered the first one,
/// although IPVS knows the connection, and by then another application has the dead endpoint's
/// address.
fn unanswered_ones_move(context: &Connections, agent: &Agent) -> Result<()> {
    let Connections { fixture } = context;
    let world = &fixture.cluster.world;
    world.remote.nft(&format!(
        "table inet hole {{
            chain input {{
                type filter hook input priority 0
                tcp dport {HOLE} drop
            }}
        }}"
    ))?;
    let is_served_by = |who: Host, target: u16| {
        let objects = fixture.service("moved", MOVED, &[Port::tcp("web", 80, target)], &[who]);
        let put = || fixture.cluster.manifests.put("moved", &objects?);
        programmed(agent, put, || ())
    };
    is_served_by(Host::Remote, HOLE)?;
    let mut attempts = Vec::new();
    for ip in service_ips(MOVED) {
        for who in [Host::Routed, Host::Outside, Host::ThisNode] {
            let probe = Probe::tcp(SocketAddr::new(ip, 80)).from(fixture.address(who, ip)?);
            let probe = probe.timeout(TIMEOUT);
            attempts.push((who, probe, fixture.place(who).0.run(|| probe.begin())??));
        }
    }
    let waiting = || -> Result<usize> {
        let all = tracked(context.node(), Protocol::Tcp)?;
        Ok(all.iter().filter(|entry| entry.reply_source.port() == HOLE).count())
    };
    eventually("they wait for the dead endpoint", TIMEOUT, || Ok(waiting()? == attempts.len()))?;
    is_served_by(Host::Bridged, PORT)?;
    let begun = Instant::now();
    // IPVS would drop the next SYN of a connection that connection tracking still knows.
    ensure!(waiting()? == 0, "{} wait for the dead endpoint still", waiting()?);
    world.remote.nft("delete table inet hole")?;
    let _stranger = serve(&world.remote, &world.addresses().remote, &[(Protocol::Tcp, HOLE)])?;
    for (who, probe, socket) in attempts {
        let outcome = probe.end(socket);
        let moved = outcome.endpoint().and_then(|endpoint| fixture.owner(endpoint.ip()));
        ensure!(moved == Some(Host::Bridged), "{who:?} to {}: {outcome:?}", probe.to);
    }
    println!("  unanswered ones moved within {:?}", begun.elapsed());
    Ok(())
}

/// A client that uses one port for connection after connection waits for none of them.
fn a_port_is_used_again(context: &Connections) -> Result<()> {
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        let outcome =
            Probe { port: REUSED_PORT, ..Probe::tcp(at(10, 80)) }.send_in(context.client());
        ensure!(outcome.endpoint().is_some(), "{outcome:?}");
        longest = longest.max(begun.elapsed());
    }
    println!("  ten connections from one port: the longest took {longest:?}");
    Ok(())
}

/// A client connects from one port to two frontends of a service: IPVS knows only one connection.
/// (After one has ended and IPVS has forgotten it, nothing is promised for the other one.)
fn two_frontends_from_one_port(context: &Connections) -> Result<()> {
    let open = |number, port| LongConnection::open_from(context.client(), port, at(number, 7));
    for (port, first, second) in
        [(REUSED_PORT + 10, ECHOES, BALANCER), (REUSED_PORT + 11, BALANCER, ECHOES)]
    {
        let mut one = open(first, port)?;
        one.still_alive()?;
        let mut other = open(second, port)?;
        one.still_alive().context("the first one")?;
        other.still_alive().context("the second one")?;
        drop(one);
        other.still_alive().context("the second one, beside one that ends")?;
    }
    Ok(())
}

pub(crate) fn live_and_end() -> Result<()> {
    let context = Connections::new()?;
    let agent = context.start()?;
    let open = || LongConnection::open(context.client(), at(ECHOES, 7));
    let mut streams = [open()?, open()?];
    silent_ones_live(&context, &mut streams)?;
    a_port_is_used_again(&context)?;
    two_frontends_from_one_port(&context)?;
    flows_move_at_once(&context)?;
    unanswered_ones_move(&context, &agent)?;
    let agent = endpoints_drain(&context, agent, streams)?;
    agent.terminate()?;
    Ok(())
}
