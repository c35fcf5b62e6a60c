//! An agent with the backend ipvs is killed between any two messages to the kernel. Whatever state
//! that leaves, no client gets a wrong answer, and the next agent repairs it. The same holds for
//! `cleanup`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT};
use denizen_tests::binary;
use denizen_tests::kernel::system_calls::{Sent, at_each_message, stopped_behind};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::cni::give;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::long_connection::{self, MEMBERS};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::packets::server::{Listen, Server};
use denizen_tests::test_length::in_full;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// A port where only the node itself listens, at all its addresses.
const OWN_PORT: u16 = 7777;

/// Numbers among [`service_ips`]: of a service that is always there, of one without endpoints, and
/// of one that comes and goes.
const WEB: u8 = 10;
const NONE: u8 = 20;
const EXTRA: u8 = 21;

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// The service that comes and goes has endpoints of its own: if services share an endpoint, IPVS
/// carries only one of them.
const EXTRA_HTTP: [Port; 1] = [Port::tcp("http", 80, 8090)];

/// The hosts that connect. The source of the node's own connections is always the node's address.
const CLIENTS: [Host; 3] = [Host::Bridged, Host::Outside, Host::ThisNode];

/// Each connection has a source port of its own, since ports that the kernel picks at random may
/// repeat. If a client got no answer before there were rules, connection tracking remembers that
/// for two minutes: no NAT rule is evaluated for that port, and a route leads to the node itself,
/// or IPVS to an endpoint, unmasqueraded.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 65_000;

/// At how many places of each change the agent is killed, unless tests run in full length. Each
/// place costs an agent's start, two seconds of the guest's time.
const QUICK: usize = 1;

/// More messages than any change takes.
const ALL: usize = 10_000;

/// What was served before the agent was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// No agent has ever loaded all its rules.
    Nothing,
    /// All services but the one that changes were served.
    Served,
}

struct KillContext {
    fixture: Fixture,
    /// The port that the next client asks from.
    next_port: Cell<u16>,
    _servers: Vec<Server>,
}

/// What is done to the service that comes and goes.
type ServiceChange = (&'static str, fn(&KillContext) -> Result<()>);

const CHANGES: [ServiceChange; 3] = [
    ("a service comes", |context| context.extra(&MEMBERS)),
    ("an endpoint goes", |context| context.extra(&MEMBERS[..2])),
    ("a service goes", |context| context.fixture.cluster.manifests.remove("extra")),
];

impl KillContext {
    fn new() -> Result<Self> {
        let fixture = long_connection::fixture("ipvs-kill")?;
        let none = [manifest::service("none", &service_ips(NONE), &HTTP)];
        fixture.cluster.manifests.put("none", &none)?;
        let listen = |any: IpAddr| Listen {
            protocol: Protocol::Tcp,
            address: SocketAddr::new(any, OWN_PORT),
        };
        let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let mut _servers = vec![Server::start(&fixture.cluster.world.node, &any.map(listen))?];
        let ports = EXTRA_HTTP.map(|port| (port.protocol, port.target));
        for who in MEMBERS {
            let own = |like| fixture.address(who, like);
            let own = service_ips(EXTRA).into_iter().map(own).collect::<Result<Vec<_>>>()?;
            _servers.push(serve(fixture.place(who).0, &own, &ports)?);
        }
        Ok(Self { fixture, next_port: Cell::new(FIRST_PORT), _servers })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn extra(&self, members: &[Host]) -> Result<()> {
        let objects = self.fixture.service("extra", EXTRA, &EXTRA_HTTP, members)?;
        self.fixture.cluster.manifests.put("extra", &objects)
    }

    fn spawned(&self) -> Result<Agent> {
        let settings = self.fixture.cluster.settings_with(["--backend=ipvs"]);
        let mut agent = Agent::spawn(self.node(), settings)?;
        agent.quiet();
        Ok(agent)
    }

    fn started(&self) -> Result<Agent> {
        let mut agent = self.spawned()?;
        agent.wait_programmed(START_TIMEOUT)?;
        Ok(agent)
    }

    fn probe(&self, who: Host, number: u8, like: usize, port: u16) -> Result<Outcome> {
        let to = SocketAddr::new(service_ips(number)[like], port);
        let from = self.next_port.replace(self.next_port.get() + 1);
        ensure!(from < LAST_PORT, "a client would use a port again");
        let probe = Probe::tcp(to).from(self.fixture.address(who, to.ip())?);
        let probe = Probe { port: from, ..probe };
        Ok(probe.send_in(self.fixture.place(who).0))
    }

    /// Whether an endpoint answered. It must be one of `MEMBERS`, and must have seen the right
    /// source.
    fn is_served(&self, who: Host, outcome: &Outcome) -> Result<bool> {
        let (Some(endpoint), Some(seen)) = (outcome.endpoint(), outcome.seen()) else {
            return Ok(false);
        };
        let answerer = self.fixture.owner(endpoint.ip());
        ensure!(
            answerer.is_some_and(|who| MEMBERS.contains(&who)),
            "nobody's endpoint: {outcome:?}"
        );
        let keeps = who == Host::Bridged && answerer != Some(who);
        let is_right = match keeps {
            true => seen == self.fixture.address(who, seen)?,
            false => self.fixture.cluster.is_nodes(seen)?,
        };
        ensure!(is_right, "{who:?}: a wrong source: {outcome:?}");
        Ok(true)
    }

    /// What must hold whenever the agent is killed.
    fn ensure_safe(&self, before: Before) -> Result<()> {
        for (who, like) in CLIENTS.into_iter().flat_map(|who| [(who, 0), (who, 1)]) {
            for number in [WEB, EXTRA] {
                let outcome = self.probe(who, number, like, OWN_PORT)?;
                let describe =
                    || format!("{who:?} to the node's own port at {number}: {outcome:?}");
                ensure!(outcome.endpoint().is_none(), describe());
            }
            let outcome = self.probe(who, WEB, like, 80)?;
            let is_served = self.is_served(who, &outcome)?;
            ensure!(is_served || before == Before::Nothing, "{who:?} to a service: {outcome:?}");
            let outcome = self.probe(who, EXTRA, like, 80)?;
            let is_served = self.is_served(who, &outcome)?;
            ensure!(is_served || is_refused(&outcome), "{who:?} to what changes: {outcome:?}");
            let outcome = self.probe(who, NONE, like, 80)?;
            ensure!(is_refused(&outcome), "{who:?} to nobody's service: {outcome:?}");
        }
        Ok(())
    }

    /// Everything is as it should be; the service that comes and goes is served exactly if
    /// `is_there`.
    fn ensure_whole(&self, is_there: bool) -> Result<()> {
        self.ensure_safe(Before::Served)?;
        for (who, like) in CLIENTS.into_iter().flat_map(|who| [(who, 0), (who, 1)]) {
            let outcome = self.probe(who, EXTRA, like, 80)?;
            ensure!(self.is_served(who, &outcome)? == is_there, "{who:?}: {outcome:?}");
        }
        let saved = self.node().output("ipvsadm", &["--save", "--numeric"])?;
        // A real server that is not wanted any more may have connections left, and gets no new
        // ones.
        let reals = saved.lines().map(str::trim_end).filter(|line| line.starts_with("-a"));
        let serving = reals.filter(|line| !line.ends_with("-w 0"));
        let at = |line: &str| line.split(' ').skip(1).take(2).collect::<String>();
        let count = serving.map(at).collect::<BTreeSet<_>>().len();
        // Two families of three protocols of `web`, of `echo`, and of the changing service.
        ensure!(count == 2 * (3 + 1 + usize::from(is_there)), "{saved}");
        Ok(())
    }

    /// Kills `agent` after this many messages of `change`; returns whether it sent that many.
    fn kill(
        &self,
        agent: Agent,
        count: usize,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let pid = Pid::from_raw(i32::try_from(agent.pid())?);
        let sent = stopped_behind(pid, count, change)?;
        agent.kill()?;
        Ok(sent == Sent::Stopped)
    }

    /// How many messages a change takes.
    fn messages(&self, agent: &Agent, change: impl FnOnce() -> Result<()>) -> Result<usize> {
        let pid = Pid::from_raw(i32::try_from(agent.pid())?);
        match stopped_behind(pid, ALL, change)? {
            Sent::Only(count) if count > 0 => Ok(count),
            other @ (Sent::Stopped | Sent::Only(_)) => {
                anyhow::bail!("neither none nor {ALL} messages, but {other:?}")
            }
        }
    }

    /// What must hold wherever `cleanup` is killed. Returns how many connections were served.
    fn probe_remains(&self) -> Result<usize> {
        let mut served = 0;
        for (who, like) in CLIENTS.into_iter().flat_map(|who| [(who, 0), (who, 1)]) {
            for number in [WEB, EXTRA] {
                let outcome = self.probe(who, number, like, OWN_PORT)?;
                let describe =
                    || format!("{who:?} to the node's own port at {number}: {outcome:?}");
                ensure!(outcome.endpoint().is_none(), describe());
            }
            served += usize::from(self.is_served(who, &self.probe(who, WEB, like, 80)?)?);
        }
        Ok(served)
    }

    fn cleanup(&self) -> Result<()> {
        self.node().output(&binary::ours("denizen-agent")?.to_string_lossy(), &["cleanup"])?;
        Ok(())
    }

    /// A `cleanup` that waits to begin: what lets it begin, and its process id.
    fn waiting_cleanup(&self) -> Result<(impl FnOnce() -> Result<()>, Pid)> {
        let agent = binary::ours("denizen-agent")?;
        let mut command = Command::new("sh");
        command.args(["-c", "read -r go; exec \"$0\" cleanup"]).arg(agent);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = self.node().run(|| command.spawn())??;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let begin = move || {
            give(&mut child, b"go\n");
            Ok(())
        };
        Ok((begin, pid))
    }
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused | Outcome::Unreachable)
}

/// At how many places of a change that takes `messages` the agent is killed.
fn count(messages: usize) -> usize {
    in_full(messages, QUICK)
}

/// One of these places, spread evenly: 0 is before the first message.
fn place(turn: usize, messages: usize) -> usize {
    (2 * turn + 1) * messages / (2 * count(messages))
}

/// The first load, from nothing.
pub(crate) fn first_load() -> Result<()> {
    let context = KillContext::new()?;
    let agent = context.spawned()?;
    let messages = context.messages(&agent, || Ok(()))?;
    agent.kill()?;
    context.ensure_whole(false)?;
    let mut hit = 0;
    for turn in 0..count(messages) {
        let place = place(turn, messages);
        context.cleanup()?;
        hit += usize::from(context.kill(context.spawned()?, place, || Ok(()))?);
        let describe = || format!("the first load, killed behind {place} of {messages} messages");
        context.ensure_safe(Before::Nothing).with_context(describe)?;
        let agent = context.started().with_context(describe)?;
        context.ensure_whole(false).with_context(describe)?;
        agent.kill()?;
    }
    println!("  killed at {hit} of {messages} places");
    ensure!(hit > 0, "the first load was never disturbed");
    Ok(())
}

/// Services and endpoints come and go.
pub(crate) fn changes() -> Result<()> {
    let context = KillContext::new()?;
    let mut agent = context.started()?;
    let mut messages = Vec::new();
    for (_, change) in CHANGES {
        messages.push(context.messages(&agent, || change(&context))?);
    }
    let mut hit = [0; CHANGES.len()];
    let most = messages.iter().copied().max().unwrap_or_default();
    for turn in 0..count(most) {
        for (index, (what, change)) in CHANGES.into_iter().enumerate() {
            let of = messages[index];
            let place = place(turn, of);
            let describe = || format!("{what}, killed behind {place} of {of} messages");
            hit[index] += usize::from(context.kill(agent, place, || change(&context))?);
            context.ensure_safe(Before::Served).with_context(describe)?;
            agent = context.started().with_context(describe)?;
            context.ensure_whole(index != 2).with_context(describe)?;
        }
    }
    for ((what, _), (hit, of)) in CHANGES.iter().zip(hit.iter().zip(&messages)) {
        println!("  {what}: killed at {hit} of {of} places");
        ensure!(*hit > 0, "{what}: never disturbed");
    }
    agent.terminate()?;
    Ok(())
}

/// Clients connect after every message of a `cleanup`. Then other cleanups are killed, and the next
/// one finishes each time.
pub(crate) fn cleanups() -> Result<()> {
    let context = KillContext::new()?;
    context.extra(&MEMBERS)?;
    context.started()?.kill()?;
    let mut served = Vec::new();
    let (begin, pid) = context.waiting_cleanup()?;
    let messages = at_each_message(pid, begin, |sent| {
        let count = context.probe_remains().with_context(|| format!("behind {sent} messages"))?;
        served.push(count);
        Ok(())
    })?;
    println!("  asked behind {messages} messages, of which clients were served: {served:?}");
    ensure!(served.first() == Some(&(2 * CLIENTS.len())), "not all are served when it begins");
    let nobody = served.iter().position(|count| *count == 0).context("some are always served")?;
    ensure!(served.last() == Some(&0), "some are served when it ends");
    let spread = (0..count(messages)).map(|turn| place(turn, messages));
    // `nobody` is a place where virtual servers, or their routes, are being removed: the next
    // cleanup recognises virtual servers by these routes.
    for place in spread.chain([nobody]) {
        let describe = || format!("killed behind {place} of {messages} messages");
        context.started().with_context(describe)?.kill()?;
        let (begin, pid) = context.waiting_cleanup()?;
        ensure!(stopped_behind(pid, place, begin)? == Sent::Stopped, "it ended before {place}");
        kill(pid, Signal::SIGKILL)?;
        waitpid(pid, None)?;
        context.cleanup().with_context(describe)?;
        let servers = context.node().output("ipvsadm", &["--save", "--numeric"])?;
        let tables = context.node().output("nft", &["list", "tables"])?;
        ensure!(servers.is_empty() && !tables.contains("denizen"), "left: {servers}{tables}");
    }
    Ok(())
}
