//! The backend ipvs: clients see what they see with nftables, and IPVS balances.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, PROTOCOLS, every_protocol, put_load_balancer, service_ips,
};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::packets::long_connection::{self, LongConnection, MEMBERS};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::packets::server::{Listen, Server};
use denizen_tests::test_length::in_full;

use crate::context::GuestContext;
use crate::ipvs::leaving::step_by_step;
use crate::ipvs::neighbours::{has_table, is_claimed, neighbour};

const NODE_PORT: u16 = 30_080;

/// Which [`service_ips`] are a load balancer's.
const BALANCER: u8 = 100;

/// A port where only the node itself listens, at all its addresses.
pub(crate) const OWN_PORT: u16 = 7777;

/// A virtual server that is not denizen's, as `ipvsadm` writes it.
const FOREIGN: &str = "-A -t 203.0.113.7:80 -s wlc";

/// Arguments of `ip` that list the node's addresses, without link-local ones: these appear late.
const GLOBAL: &[&str] = &["-o", "addr", "show", "scope", "global"];

/// IPVS serves one endpoint after the other, so this many connections reach all.
const ROUND: usize = MEMBERS.len();

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

struct Served {
    fixture: Fixture,
}

impl Served {
    /// `web` (service 10) at cluster IPs, a load balancer's addresses and node ports over every
    /// protocol, and `echo`.
    fn new() -> Result<Self> {
        let fixture = long_connection::fixture("ipvs-own")?;
        let ports: Vec<_> =
            every_protocol().into_iter().map(|port| port.at_node(NODE_PORT)).collect();
        let mut web = fixture.service("web", 10, &ports, &MEMBERS)?;
        put_load_balancer(&mut web, BALANCER);
        fixture.cluster.manifests.put("web", &web)?;
        fixture.cluster.world.node.feed("ipvsadm", &["--restore"], &format!("{FOREIGN}\n"))?;
        Ok(Self { fixture })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn start(&self) -> Result<Agent> {
        let settings = self.fixture.cluster.settings_with(["--backend=ipvs"]);
        let mut agent = Agent::spawn(self.node(), settings)?;
        agent.wait_programmed(TIMEOUT)?;
        Ok(agent)
    }

    /// What `ipvsadm` says, sorted.
    fn servers(&self) -> Result<Vec<String>> {
        let saved = self.node().output("ipvsadm", &["--save", "--numeric"])?;
        let mut lines: Vec<String> = saved.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.sort_unstable();
        Ok(lines)
    }

    /// Each frontend of `web`, and whether local pods keep their address there.
    fn frontends(&self) -> Result<Vec<(SocketAddr, bool)>> {
        let node = |like| self.fixture.address(Host::ThisNode, like);
        let mut all = Vec::new();
        for (ip, balancer) in service_ips(10).into_iter().zip(service_ips(BALANCER)) {
            all.push((SocketAddr::new(ip, 80), true));
            all.push((SocketAddr::new(balancer, 80), false));
            all.push((SocketAddr::new(node(ip)?, NODE_PORT), false));
        }
        Ok(all)
    }

    /// Everyone reaches every endpoint at every frontend, and endpoints see the right source.
    fn everyone_is_answered(&self) -> Result<()> {
        for (to, keeps) in self.frontends()? {
            // The other frontends lead to the cluster IP's virtual server, so one protocol suffices
            // there.
            let protocols = if keeps { &PROTOCOLS[..] } else { &PROTOCOLS[..1] };
            let all =
                EVERYONE.iter().flat_map(|who| protocols.iter().map(|protocol| (*who, *protocol)));
            for (who, protocol) in all {
                let mut answered = BTreeSet::new();
                for _ in 0..ROUND {
                    answered.insert(self.asked(who, to, protocol, keeps)?);
                }
                let all: BTreeSet<Host> = MEMBERS.into_iter().collect();
                ensure!(answered == all, "{who:?} to {to}/{protocol}: {answered:?}");
            }
        }
        Ok(())
    }

    /// Connects, checks the source that the endpoint saw, and returns which endpoint answered.
    fn asked(&self, who: Host, to: SocketAddr, protocol: Protocol, keeps: bool) -> Result<Host> {
        let outcome = self.fixture.probe(who, to, protocol)?;
        let describe = || format!("{who:?} to {to}/{protocol}: {outcome:?}");
        let endpoint = outcome.endpoint().with_context(describe)?;
        let answerer = self.fixture.owner(endpoint.ip()).with_context(describe)?;
        let is_pod = who == Host::Bridged || who == Host::Routed;
        let is_kept = keeps && is_pod && answerer != who;
        if who != Host::ThisNode {
            let is_masqueraded =
                self.fixture.was_masqueraded(who, &outcome).with_context(describe)?;
            ensure!(is_masqueraded != is_kept, "{}, masqueraded: {is_masqueraded}", describe());
        }
        Ok(answerer)
    }

    fn cleanup(&self, flags: &[&str]) -> Result<String> {
        let mut cleanup = Command::new(binary::ours("denizen-agent")?);
        let output = self.node().run(|| checked(cleanup.arg("cleanup").args(flags)))??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Listens at [`OWN_PORT`] at all addresses of the node.
pub(crate) fn own_port(node: &Netns) -> Result<Server> {
    let everywhere = |any: IpAddr| {
        let address = SocketAddr::new(any, OWN_PORT);
        Listen { protocol: Protocol::Tcp, address }
    };
    let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    Server::start(node, &any.map(everywhere))
}

/// At these addresses of services, the node's own port is refused.
fn own_port_is_refused(fixture: &Fixture, services: [IpAddr; 2]) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let _server = own_port(node)?;
    for ip in services {
        for who in EVERYONE {
            let outcome = fixture.probe(who, SocketAddr::new(ip, OWN_PORT), Protocol::Tcp)?;
            ensure!(outcome == Outcome::Refused, "{who:?} to {ip}: {outcome:?}");
        }
    }
    let own = fixture.address(Host::ThisNode, services[0])?;
    let outcome = Probe::tcp(SocketAddr::new(own, OWN_PORT)).send_in(node);
    ensure!(outcome.endpoint().is_some(), "nobody listens there: {outcome:?}");
    Ok(())
}

/// Another backend serves, and connections through IPVS drain: their services' addresses are still
/// routed to the node. At these addresses nobody reaches a port of the node itself, and no
/// neighbour learns that the node has them.
fn nobody_is_misled_meanwhile(context: &GuestContext, neighbour: &Netns) -> Result<()> {
    eventually("no new connections for IPVS", TIMEOUT, || Ok(!saved(context)?.contains(" -w 1")))?;
    let (services, routes) = (service_ips(11), routes(context.node())?);
    ensure!(services.iter().all(|ip| routes.contains(&ip.to_string())), "{routes}");
    own_port_is_refused(context.fixture(), services)?;
    ensure!(!is_claimed(neighbour, services[0])?, "the node claims {}", services[0]);
    Ok(())
}

fn saved(context: &GuestContext) -> Result<String> {
    context.node().output("ipvsadm", &["--save", "--numeric"])
}

/// The routes of protocol 213: denizen's.
fn routes(node: &Netns) -> Result<String> {
    let of =
        |family| node.output("ip", &[family, "route", "show", "table", "local", "proto", "213"]);
    Ok(of("-4")? + &of("-6")?)
}

/// Endpoints come and go, agents are killed, and backends change, while clients connect.
pub(crate) fn nobody_notices() -> Result<()> {
    let context = GuestContext::new("ipvs-load")?;
    let flags = || vec!["--backend=ipvs".to_owned()];
    let mut agent = context.start(flags())?;
    let mut streams = context.lasting()?;
    let pause = || thread::sleep(Duration::from_millis(300));
    context.unnoticed(&mut streams, "an endpoint leaves and comes back", || {
        context.web(&MEMBERS, &[Host::Remote])?;
        pause();
        context.web(&[Host::Bridged, Host::Routed], &[])?;
        pause();
        context.web(&MEMBERS, &[])?;
        pause();
        Ok(())
    })?;
    agent = context.unnoticed(&mut streams, "agents are killed", || {
        for after in [0, 40, 120] {
            context.web(&MEMBERS[..2], &[])?;
            thread::sleep(Duration::from_millis(after));
            agent.kill()?;
            context.web(&MEMBERS, &[])?;
            agent = context.start(flags())?;
        }
        Ok(agent)
    })?;
    let neighbour = neighbour(context.node(), service_ips(11))?;
    let other_backends = [
        ("nftables", Vec::new()),
        ("iptables", Variant::Nft.flags()),
        ("iptables", Variant::Legacy.flags()),
    ];
    let count = in_full(other_backends.len(), 2);
    for (other, other_flags) in other_backends.into_iter().take(count) {
        let mut drained = context.lasting()?;
        let [_, echo] = service_ips(11).map(|ip| SocketAddr::new(ip, 7));
        drained.push(LongConnection::open(context.fixture().place(Host::Outside).0, echo)?);
        let what = format!("{other}, and back");
        agent = context.unnoticed(&mut streams, &what, || {
            agent.terminate()?;
            agent = step_by_step(&context, other_flags, service_ips(11)).context(other)?;
            ensure!(agent.status()?["backend"] == other, "{}", agent.status()?);
            nobody_is_misled_meanwhile(&context, &neighbour).context(other)?;
            drained.iter_mut().try_for_each(LongConnection::still_alive).context(other)?;
            agent.terminate()?;
            context.start(flags())
        })?;
    }
    eventually("nothing is left of the others", TIMEOUT, || {
        let is_served = saved(&context)?.contains(" -w 1");
        let is_left = |variant: &Variant| Ok(variant.dump(context.node())?.contains("KUBE-"));
        let left =
            [Variant::Nft, Variant::Legacy].iter().map(is_left).collect::<Result<Vec<_>>>()?;
        Ok(is_served && !left.contains(&true))
    })?;
    agent.terminate()?;
    let agent = context.start(vec!["--backend=nftables".to_owned()])?;
    // The agent checks again in a minute. On an emulated processor, waiting is cheap and asking is
    // not.
    eventually("no virtual servers", TIMEOUT, || {
        thread::sleep(Duration::from_secs(2));
        Ok(saved(&context)?.is_empty())
    })?;
    ensure!(routes(context.node())?.is_empty(), "{}", routes(context.node())?);
    eventually("no table of ARP", TIMEOUT, || Ok(!has_table(context.node())?))?;
    context.everyone("nftables alone")?;
    agent.until("no errors", TIMEOUT, |status| {
        status["errors"].as_array().is_some_and(Vec::is_empty)
    })?;
    agent.terminate()?;
    Ok(())
}

/// First packets, a restart that nobody notices, and a cleanup that leaves what is not denizen's.
pub(crate) fn serves() -> Result<()> {
    let served = Served::new()?;
    let addresses = served.node().output("ip", GLOBAL)?;
    let agent = served.start()?;
    let status = agent.status()?;
    ensure!(status["backend"] == "ipvs", "{status}");
    ensure!(status["errors"].as_array().is_some_and(Vec::is_empty), "{status}");
    let servers = served.servers()?;
    // Two families of three protocols of `web` and of `echo`, and the foreign one.
    let virtual_servers = servers.iter().filter(|line| line.starts_with("-A")).count();
    ensure!(virtual_servers == 2 * (3 + 1) + 1, "{servers:#?}");
    ensure!(routes(served.node())?.lines().count() == 4, "{}", routes(served.node())?);
    served.everyone_is_answered()?;
    own_port_is_refused(&served.fixture, service_ips(10))?;

    let echo = SocketAddr::new(service_ips(11)[0], 7);
    let mut lasting = LongConnection::open(served.fixture.place(Host::Bridged).0, echo)?;
    agent.terminate()?;
    let agent = served.start()?;
    ensure!(served.servers()? == servers, "{:#?}", served.servers()?);
    lasting.still_alive().context("over a restart")?;
    let output = served.cleanup(&["--kube-proxy"])?;
    ensure!(output.contains("kept 1 virtual server of ipvs"), "beside the agent: {output}");
    agent.terminate()?;
    ensure!(served.servers()? == servers, "a stop leaves them: {:#?}", served.servers()?);
    let output = served.cleanup(&[])?;
    ensure!(output.contains("removed 8 virtual servers"), "{output}");
    ensure!(served.servers()? == [FOREIGN], "{:#?}", served.servers()?);
    ensure!(routes(served.node())?.is_empty(), "{}", routes(served.node())?);
    let now = served.node().output("ip", GLOBAL)?;
    ensure!(now == addresses, "{addresses}\nbut now\n{now}");
    Ok(())
}
