//! A node whose agent serves host ports, and pods that ask for some.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::agent::{Agent, Explanation, Settings};
use crate::eventually::eventually;
use crate::node::cluster::serve;
use crate::node::cni::Chain;
use crate::node::fixture::{Fixture, Host, PORT, PROTOCOLS};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::oracle::flows::table::Backend;
use crate::packets::probe::{Outcome, Probe, Protocol};
use crate::packets::server::Server;
use anyhow::{Context as _, Result, ensure};
use denizen_state::RunDir;
use serde_json::{Value, json};

/// How long anything may take. An emulated processor takes its time.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Who serves services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Services {
    /// Denizen.
    By(Backend),
    /// Another program, or none.
    Off,
}

impl Services {
    /// All that can serve on the kernel under the tests. The guest's kernel also has ipvs.
    pub const ALL: [Self; 4] = [
        Self::By(Backend::Nftables),
        Self::By(Backend::IptablesLegacy),
        Self::By(Backend::IptablesNft),
        Self::Off,
    ];

    /// The same, where denizen serves.
    pub const SERVED: [Self; 3] = [
        Self::By(Backend::Nftables),
        Self::By(Backend::IptablesLegacy),
        Self::By(Backend::IptablesNft),
    ];

    fn flags(self) -> Vec<String> {
        match self {
            Self::By(backend) => backend.flags(),
            Self::Off => vec!["--services=off".to_owned()],
        }
    }
}

/// The usual fixture, with an agent that serves host ports.
pub struct Context {
    /// The agent. It ends before its node does.
    pub agent: Agent,
    /// The node, its pods and the other hosts.
    pub fixture: Fixture,
    label: String,
    services: Services,
}

/// A pod with host ports, which answers at [`PORT`] over every protocol.
pub struct HostPortPod {
    /// The pod.
    pub pod: Pod,
    _server: Server,
}

impl HostPortPod {
    /// Its address of the same family as `other`.
    pub fn address_like(&self, other: IpAddr) -> Result<IpAddr> {
        self.pod.address_like(other).context("the pod has an address of the family")
    }
}

impl Context {
    /// With `--host-ports=on`, and without any service.
    pub fn new(label: &str, services: Services) -> Result<Self> {
        Self::with(label, services, &["--host-ports=on"], |_| Ok(Vec::new()))
    }

    /// With these flags, and with what `objects` gives.
    pub fn with(
        label: &str,
        services: Services,
        flags: &[&str],
        objects: impl FnOnce(&Fixture) -> Result<Vec<Value>>,
    ) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        fixture.cluster.manifests.put("services", &objects(&fixture)?)?;
        let agent = Agent::start(&fixture.cluster.world.node, settings(&fixture, services, flags))?;
        Ok(Self { agent, fixture, label: label.to_owned(), services })
    }

    /// Replaces the agent by one with these flags.
    pub fn restart_with(&mut self, flags: &[&str]) -> Result<()> {
        self.agent.stop_now();
        let settings = settings(&self.fixture, self.services, flags);
        self.agent = Agent::start(self.node(), settings)?;
        Ok(())
    }

    pub fn services(&self) -> Services {
        self.services
    }

    pub fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    /// Kills the agent and starts another one, without waiting until it has programmed anything.
    pub fn restart_agent(&mut self) -> Result<()> {
        let settings = self.agent.settings().clone();
        self.agent.stop_now();
        self.agent = Agent::spawn(self.node(), settings)?;
        Ok(())
    }

    /// The chain of `wiring` whose runtime passes these host ports, and which waits for the agent.
    pub fn chain(&self, wiring: Wiring, ports: &Value) -> Chain {
        let mut chain = self.fixture.cluster.chain(wiring).clone();
        let denizen = chain.plugins.last_mut().expect("denizen is the last plugin");
        denizen["hostPorts"] = json!({});
        denizen["runtimeConfig"] = json!({ "portMappings": ports });
        denizen["waitForAgent"] = json!({ "timeout": "60s", "onTimeout": "fail" });
        chain
    }

    /// A new pod that asks for these host ports. Its ADD has returned.
    pub fn add_pod(&self, name: &str, wiring: Wiring, ports: &Value) -> Result<HostPortPod> {
        self.attached(name, &self.chain(wiring, ports))
    }

    /// The same, and its ADD does not wait for the agent.
    pub fn add_pod_without_wait(
        &self,
        name: &str,
        wiring: Wiring,
        ports: &Value,
    ) -> Result<HostPortPod> {
        let mut chain = self.chain(wiring, ports);
        chain.wait_as(&Value::Null);
        self.attached(name, &chain)
    }

    fn attached(&self, name: &str, chain: &Chain) -> Result<HostPortPod> {
        let netns = Netns::new(&format!("{}-{name}", self.label))?;
        let pod = Pod::attach(self.node(), netns, name, chain)?;
        let all = PROTOCOLS.map(|protocol| (protocol, PORT));
        let server = serve(&pod.netns, &pod.addresses, &all)?;
        Ok(HostPortPod { pod, _server: server })
    }

    /// Runs the DELs of these pods, after which nothing of them is programmed.
    pub fn end(&self, pods: impl IntoIterator<Item = HostPortPod>) -> Result<()> {
        pods.into_iter().try_for_each(|pod| {
            self.is_removed(&pod.pod.forget_last(self.node())?)?;
            pod.pod.detach(self.node())
        })
    }

    /// Waits until nothing is programmed of a pod whose DEL printed `output`. A DEL waits at most
    /// half a second for the agent, which may get no processor for longer: then the DEL prints
    /// that.
    pub fn is_removed(&self, output: &str) -> Result<()> {
        if output.is_empty() {
            return Ok(());
        }
        let state = RunDir::open(self.agent.run_dir())?.read()?.context("a state file")?;
        eventually("the agent has programmed the removal", TIMEOUT, || {
            Ok(self.agent.status()?["generation"].as_u64() >= Some(state.generation.0))
        })
    }

    /// The node's addresses: its first and second one of IPv4, then those of IPv6.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.fixture.cluster.world.addresses().node
    }

    /// The node's addresses at a port.
    pub fn at(&self, port: u16) -> impl Iterator<Item = SocketAddr> {
        self.addresses().iter().map(move |ip| SocketAddr::new(*ip, port))
    }

    /// What `explain` says of a connection of `who`, from its own address.
    pub fn explain(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<Explanation> {
        self.fixture.explain(&self.agent, who, to, protocol)
    }

    /// `who` asks the pod's host port, and is answered by the pod as `explain` says.
    pub fn is_answered(
        &self,
        who: Host,
        to: SocketAddr,
        protocol: Protocol,
        by: &HostPortPod,
    ) -> Result<Outcome> {
        let outcome = self.fixture.probe(who, to, protocol)?;
        let endpoint = SocketAddr::new(by.address_like(to.ip())?, PORT);
        let what = format!("{who:?} to {to}/{protocol}");
        ensure!(outcome.endpoint() == Some(endpoint), "{what}: {outcome:?}, not by {endpoint}");
        let explained = self.explain(who, to, protocol)?;
        let output = (explained.verdict.as_str(), &explained.endpoints[..]);
        ensure!(output == ("forward", &[endpoint]), "{what}: {explained:?}");
        let masqueraded = outcome.seen() != Some(self.fixture.address(who, to.ip())?);
        ensure!(explained.masquerade == masqueraded, "{what}: {outcome:?}, {explained:?}");
        Ok(outcome)
    }

    /// `who` does not reach any pod there, as `explain` says.
    pub fn is_left_alone(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<()> {
        let outcome = self.fixture.probe(who, to, protocol)?;
        ensure!(outcome == Outcome::Refused, "{who:?} to {to}/{protocol}: {outcome:?}");
        let explained = self.explain(who, to, protocol)?;
        ensure!(explained.verdict == "untouched", "{who:?} to {to}/{protocol}: {explained:?}");
        Ok(())
    }

    /// Whether the node has any table for host ports.
    pub fn has_tables(&self) -> Result<bool> {
        Ok(self.node().output("nft", &["list", "tables"])?.contains("denizen-host-ports"))
    }

    /// Waits until the node has no table for host ports.
    pub fn has_no_tables_soon(&self) -> Result<()> {
        eventually("the tables are gone", TIMEOUT, || Ok(!self.has_tables()?))
    }

    /// The host ports that `status` says are not served as asked for.
    pub fn conflicts(&self) -> Result<Vec<String>> {
        let status = self.agent.status()?;
        Ok(serde_json::from_value(status["hostPorts"]["conflicts"].clone())?)
    }
}

/// A probe from the node itself, with the usual timeout.
pub fn of_node(protocol: Protocol, from: IpAddr, to: SocketAddr) -> Probe {
    Probe { protocol, ..Probe::tcp(to) }.from(from)
}

/// One host port of a pod at [`PORT`], as containerd writes it.
pub fn port(number: u16) -> Value {
    port_at(number, "tcp", "")
}

/// The same over a protocol, and with a hostIP.
pub fn port_at(number: u16, protocol: &str, ip: &str) -> Value {
    json!({ "HostPort": number, "ContainerPort": PORT, "Protocol": protocol, "HostIP": ip })
}

/// `ports` over every protocol.
pub fn every_protocol(number: u16) -> Value {
    json!(["tcp", "udp", "sctp"].map(|protocol| port_at(number, protocol, "")))
}

fn settings(fixture: &Fixture, services: Services, flags: &[&str]) -> Settings {
    let flags = flags.iter().map(|&flag| flag.to_owned());
    fixture.cluster.settings_with(services.flags().into_iter().chain(flags))
}
