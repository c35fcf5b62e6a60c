//! Pods, what they ask, and the agent that knows where they keep their address.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT, PROTOCOLS, every_protocol, service_ips};
use denizen_tests::node::manifest;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::Protocol;

/// The pods of this node and of the other: everything else is elsewhere.
const INSIDE: &str = "\
nonMasqueradeCIDRs:
  - 10.10.0.0/16
  - 172.20.0.0/16
  - 192.168.77.0/24
  - fd00::/16
";

/// What has not happened by then never will. (Without notifications the agent looks every ten
/// seconds.)
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The hosts: a service `web` inside the ranges (number 10), and `far`, whose endpoint is outside
/// them (20).
pub struct EgressContext {
    pub fixture: Fixture,
    /// The agent's file.
    pub config: PathBuf,
}

/// The hosts, and an agent.
pub struct Running {
    pub backend: Backend,
    pub context: EgressContext,
    pub agent: Agent,
}

impl EgressContext {
    pub fn new(label: &str) -> Result<Self> {
        let mut fixture = Fixture::new(label)?;
        let world = &fixture.cluster.world;
        let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
        let server = serve(&world.client, &world.addresses().client, &ports)?;
        fixture.servers.push(server);
        let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
        fixture.cluster.manifests.put("web", &web)?;
        let mut far = vec![manifest::service("far", &service_ips(20), &every_protocol())];
        let out = world.addresses().client.iter();
        far.extend(
            out.map(|address| {
                manifest::slice("far", &every_protocol(), &[(*address, "elsewhere")])
            }),
        );
        fixture.cluster.manifests.put("far", &far)?;
        let config = world.folder().join("egress.yaml");
        fs::write(&config, INSIDE)?;
        Ok(Self { fixture, config })
    }

    pub fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    /// The flags of an agent that masquerades so.
    pub fn flags(&self, backend: Backend) -> Vec<String> {
        let mut flags = backend.flags();
        flags.push(format!("--egress-masquerade-config={}", self.config.display()));
        flags
    }

    pub fn start(&self, flags: Vec<String>) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(flags)
    }

    /// Whether `who` is seen by the node's address at `to`.
    pub fn is_masqueraded(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<bool> {
        let outcome = self.fixture.probe(who, to, protocol)?;
        self.fixture.was_masqueraded(who, &outcome)
    }

    /// Whether any of it is in the kernel.
    pub fn is_programmed(&self, backend: Backend) -> Result<bool> {
        let (rules, what) = match backend {
            Backend::Nftables | Backend::Ipvs => {
                (self.node().output("nft", &["list", "table", "ip", "denizen"])?, "hook forward")
            }
            Backend::IptablesLegacy => (Variant::Legacy.dump(self.node())?, ":DENIZEN-EGRESS"),
            Backend::IptablesNft => (Variant::Nft.dump(self.node())?, ":DENIZEN-EGRESS"),
        };
        Ok(rules.contains(what))
    }
}

impl Running {
    pub fn new(backend: Backend, label: &str, detect_local: &str) -> Result<Self> {
        let context = EgressContext::new(&format!("{label}-{backend:?}"))?;
        let mut flags = context.flags(backend);
        flags.push(format!("--detect-local={detect_local}"));
        let agent = context.start(flags)?;
        Ok(Self { backend, context, agent })
    }

    pub fn address(&self, of: Host, like: IpAddr) -> Result<IpAddr> {
        self.context.fixture.address(of, like)
    }

    /// [`EgressContext::is_masqueraded`]; `explain` must say the same.
    pub fn is_masqueraded(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<bool> {
        let masqueraded = self.context.is_masqueraded(who, to, protocol)?;
        let explained = self.context.fixture.explain(&self.agent, who, to, protocol)?;
        ensure!(
            explained.masquerade == masqueraded,
            "{who:?} to {to}/{protocol}: {masqueraded}, {explained:?}"
        );
        Ok(masqueraded)
    }

    pub fn wait_masqueraded(&self, who: Host, to: SocketAddr, expected: bool) -> Result<()> {
        let what = format!("masqueraded, {who:?} to {to}: {expected}");
        eventually(&what, TIMEOUT, || {
            Ok(self.context.is_masqueraded(who, to, Protocol::Tcp)? == expected)
        })
    }
}

/// Where the host outside listens, which is outside the ranges.
pub fn outside() -> [SocketAddr; 2] {
    ["203.0.113.2", "2600:5200::1"].map(|text| SocketAddr::new(ip(text), PORT))
}
