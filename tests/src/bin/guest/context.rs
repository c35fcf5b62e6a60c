//! A node that a kube-proxy in ipvs mode serves, or denizen. Its clients and connections must not
//! notice a change from one to the other.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::KeptFlow;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, every_protocol, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::world::ip;
use denizen_tests::packets::load::{Load, Tally};
use denizen_tests::packets::long_connection::{self, ECHO, LongConnection, MEMBERS};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::kube_proxy::ipvs::{Ipvs, VirtualServer};
use serde_json::json;

/// The service with a node port.
const FRONTEND: Port = Port::tcp("frontend", 80, PORT).at_node(NODE_PORT);
const NODE_PORT: u16 = 30_080;

/// The node's addresses at which both kube-proxy and denizen serve node ports.
const NODE: [&str; 2] = ["192.168.0.2", "2001:db8::1"];

/// The hosts whose connections nothing may disturb. (A connection from the node itself to a service
/// address that the node also has comes from that very address, and ends with it.)
const OTHERS: [Host; 3] = [Host::Bridged, Host::Routed, Host::Outside];

/// The hosts that connect all the time: the emulated processor can work for two.
const CLIENTS: [Host; 2] = [Host::Bridged, Host::Outside];

/// Pause between two connections of a client. An emulated processor needs a third of this for one
/// connection, and has other work too.
const PAUSE: Duration = Duration::from_millis(15);

/// An emulated processor has to load the kernel's modules first, and clients keep it busy.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The services, and the virtual servers by which kube-proxy serves them at the same addresses.
pub(crate) struct GuestContext {
    fixture: Fixture,
    servers: Vec<VirtualServer>,
}

impl GuestContext {
    pub(crate) fn new(label: &str) -> Result<Self> {
        let fixture = long_connection::fixture(label)?;
        let manifests = &fixture.cluster.manifests;
        manifests.put("frontend", &fixture.service("frontend", 12, &[FRONTEND], &MEMBERS)?)?;
        // Closed connections of the clients would fill the conntrack table. A UDP flow must stay
        // tracked for as long as a test may take.
        let node = &fixture.cluster.world.node;
        node.sysctl("net.netfilter.nf_conntrack_tcp_timeout_close", "1")?;
        node.sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "600")?;
        // The kernel notices with a delay that a link is up, and then adds the link-local address.
        eventually("the node has all its addresses", TIMEOUT, || {
            let own = node.output("ip", &["-o", "addr", "show", "dev", "eth0", "scope", "link"])?;
            Ok(own.lines().count() == 2 && !own.contains("tentative"))
        })?;
        let servers = Vec::new();
        let mut context = Self { fixture, servers };
        for (web, frontend) in service_ips(10).into_iter().zip(service_ips(12)) {
            context.serve(SocketAddr::new(web, 80), Protocol::Tcp, &MEMBERS, PORT)?;
            context.serve(SocketAddr::new(web, 80), Protocol::Udp, &MEMBERS, PORT)?;
            context.serve(SocketAddr::new(frontend, 80), Protocol::Tcp, &MEMBERS, PORT)?;
        }
        context.serve(echo(), Protocol::Tcp, &[Host::Routed], ECHO)?;
        for node in NODE.map(ip) {
            context.serve(SocketAddr::new(node, NODE_PORT), Protocol::Tcp, &MEMBERS, PORT)?;
        }
        Ok(context)
    }

    fn serve(
        &mut self,
        at: SocketAddr,
        protocol: Protocol,
        members: &[Host],
        port: u16,
    ) -> Result<()> {
        let endpoint = |who: &Host| Ok(SocketAddr::new(self.fixture.address(*who, at.ip())?, port));
        self.servers.push(VirtualServer {
            at,
            protocol,
            is_node_port: at.port() == NODE_PORT,
            endpoints: members.iter().map(endpoint).collect::<Result<_>>()?,
        });
        Ok(())
    }

    /// The endpoints of `web` from now on; `leaving` are among them and get no new connections.
    pub(crate) fn web(&self, members: &[Host], leaving: &[Host]) -> Result<()> {
        let mut objects = self.fixture.service("web", 10, &every_protocol(), members)?;
        for slice in &mut objects[1..] {
            for endpoint in slice["endpoints"].as_array_mut().context("endpoints")? {
                let at = endpoint["addresses"][0].as_str().context("an address")?.parse()?;
                if self.fixture.owner(at).is_some_and(|who| leaving.contains(&who)) {
                    endpoint["conditions"] =
                        json!({ "ready": false, "serving": true, "terminating": true });
                }
            }
        }
        self.fixture.cluster.manifests.put("web", &objects)
    }

    pub(crate) fn fixture(&self) -> &Fixture {
        &self.fixture
    }

    pub(crate) fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    /// The node's kube-proxy, which has not started yet.
    pub(crate) fn ipvs(&self, variant: Variant) -> Ipvs<'_> {
        Ipvs { node: self.node(), variant, servers: self.servers.clone() }
    }

    pub(crate) fn spawn(&self, flags: Vec<String>) -> Result<Agent> {
        Agent::spawn(self.node(), self.fixture.cluster.settings_with(flags))
    }

    pub(crate) fn start(&self, flags: Vec<String>) -> Result<Agent> {
        let mut agent = self.spawn(flags)?;
        agent.wait_programmed(TIMEOUT)?;
        Ok(agent)
    }

    /// Runs `denizen-agent cleanup`; returns what it printed.
    pub(crate) fn cleanup(&self, flags: &[&str]) -> Result<String> {
        let mut cleanup = Command::new(binary::ours("denizen-agent")?);
        cleanup.arg("cleanup").args(flags);
        let output = self.node().run(|| checked(&mut cleanup))??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Opens a connection from each of [`OTHERS`] to `echo`.
    pub(crate) fn lasting(&self) -> Result<Vec<LongConnection>> {
        let open = |who: &Host| LongConnection::open(self.fixture.place(*who).0, echo());
        OTHERS.iter().map(open).collect()
    }

    /// A UDP flow to `web`.
    pub(crate) fn flow(&self) -> Result<KeptFlow> {
        let to = SocketAddr::new(service_ips(10)[0], 80);
        let (from, source) =
            (self.fixture.place(Host::Bridged).0, self.fixture.address(Host::Bridged, to.ip())?);
        KeptFlow::open(from, Protocol::Udp, source, to)
    }

    /// Connections of `clients` to all services, all the time.
    fn load(&self, clients: &[Host]) -> Result<Load> {
        let mut load = Load::with_pause(PAUSE);
        for who in clients {
            let mut targets = Vec::new();
            for (web, node) in service_ips(10).into_iter().zip(NODE.map(ip)) {
                targets.push((SocketAddr::new(web, 80), Protocol::Tcp));
                targets.push((SocketAddr::new(web, 80), Protocol::Udp));
                targets.push((SocketAddr::new(node, NODE_PORT), Protocol::Tcp));
            }
            load.client(self.fixture.place(*who).0, targets, |outcome| {
                outcome.endpoint().is_some()
            })?;
        }
        Ok(load)
    }

    /// Does `work` while clients connect; no connection may fail, and no stream may break.
    pub(crate) fn unnoticed<T>(
        &self,
        streams: &mut [LongConnection],
        what: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let load = self.load(&CLIENTS)?;
        let done = work().with_context(|| what.to_owned());
        let tally = load.stop()?;
        let done = done?;
        well(what, &tally)?;
        for stream in streams {
            stream.still_alive().with_context(|| what.to_owned())?;
        }
        Ok(done)
    }

    /// All hosts connect to all services, the node too; returns how many connections that were.
    pub(crate) fn everyone(&self, what: &str) -> Result<u64> {
        let load = self.load(&[&OTHERS[..], &[Host::ThisNode]].concat())?;
        thread::sleep(Duration::from_millis(300));
        let tally = load.stop()?;
        well(what, &tally)?;
        Ok(tally.answered as u64)
    }

    /// What `ip` says of the node's addresses.
    pub(crate) fn addresses(&self) -> Result<String> {
        self.node().output("ip", &["-o", "addr"])
    }
}

fn well(what: &str, tally: &Tally) -> Result<()> {
    println!("  {what}: {tally:?}");
    ensure!(tally.failed == 0 && tally.answered > 0, "{what}: {tally:?}");
    Ok(())
}

fn echo() -> SocketAddr {
    SocketAddr::new(service_ips(11)[0], 7)
}
