//! A node as an installation has it: real CNI chains with `denizen` behind them, a folder of
//! manifests instead of the API, and the real agent. No single CIDR contains the pods' addresses.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use crate::agent::{Agent, CNI_CACHE, Objects, Settings};
use crate::node::cni::Chain;
use crate::node::manifest::{self, Manifests, Port};
use crate::node::netns::Netns;
use crate::node::pod::{BRIDGE, Pod, Wiring};
use crate::node::world::{Addresses, World, ip};
use crate::packets::probe::Protocol;
use crate::packets::server::{Listen, Server};

/// The node's name in the manifests.
pub const NODE: &str = "node-1";

/// Another node's name in the manifests.
pub const OTHER_NODE: &str = "node-2";

/// The ranges of bridged pods, and the bridge's addresses in them.
const BRIDGED: [(&str, &str); 2] =
    [("10.10.0.0/16", "10.10.0.1"), ("fd00:10:10::/64", "fd00:10:10::1")];

/// The ranges of routed pods, and their gateways.
const ROUTED: [(&str, &str); 2] =
    [("172.20.0.0/16", "172.20.0.1"), ("fd00:172:20::/64", "fd00:172:20::1")];

/// A node, its surroundings and its chains.
#[derive(Debug)]
pub struct Cluster {
    /// The hosts.
    pub world: World,
    /// The manifests that the agent follows.
    pub manifests: Manifests,
    run_dir: PathBuf,
    bridged: Chain,
    routed: Chain,
    label: Label,
}

/// How the namespaces are named.
#[derive(Debug, Clone)]
enum Label {
    Unique(String),
    Exact(String),
}

impl Cluster {
    /// A cluster of its own for one test. The plugin waits for the agent as `wait` says: the value
    /// of `waitForAgent` in its configuration; null for not at all.
    pub fn new(label: &str, wait: &Value) -> Result<Self> {
        Self::around(
            World::new(label, Addresses::default())?,
            Label::Unique(label.to_owned()),
            wait,
        )
    }

    /// A cluster whose namespaces are called `<name>-…` and can be kept. Its files are in `folder`.
    pub fn named(name: &str, folder: &Path, wait: &Value) -> Result<Self> {
        let world = World::named(name, Addresses::default(), folder)?;
        Self::around(world, Label::Exact(name.to_owned()), wait)
    }

    fn around(world: World, label: Label, wait: &Value) -> Result<Self> {
        let (data, run_dir) = (world.subfolder("cni")?, world.subfolder("run")?);
        let manifests = Manifests::in_folder(&world.folder().join("manifests"))?;
        let addresses: Vec<_> = ["192.168.0.2", "2001:db8::1"].map(ip).into();
        manifests.put("node", &[manifest::node(NODE, &addresses, "")])?;
        let options = if wait.is_null() { Value::Null } else { json!({ "waitForAgent": wait }) };
        let parsed =
            |ranges: [(&'static str, &str); 2]| ranges.map(|(range, gateway)| (range, ip(gateway)));
        let bridged =
            Chain::bridged(BRIDGE, &parsed(BRIDGED), &data).then_denizen(&run_dir, &options);
        let routed = Chain::routed(&parsed(ROUTED), &data).then_denizen(&run_dir, &options);
        Ok(Self { world, manifests, run_dir, bridged, routed, label })
    }

    /// From now on the plugin waits for the agent as `wait` says.
    pub fn wait_as(&mut self, wait: &Value) {
        self.bridged.wait_as(wait);
        self.routed.wait_as(wait);
    }

    /// A new pod, attached through the real chain.
    pub fn add_pod(&self, name: &str, wiring: Wiring) -> Result<Pod> {
        let netns = match &self.label {
            Label::Unique(label) => Netns::new(&format!("{label}-{name}"))?,
            Label::Exact(label) => Netns::named(&format!("{label}-{name}"))?,
        };
        Pod::attach(&self.world.node, netns, name, self.chain(wiring))
    }

    /// A new pod, attached through the chain without denizen, as before it was installed on this
    /// node.
    pub fn add_pod_without_denizen(&self, name: &str, wiring: Wiring) -> Result<Pod> {
        let Label::Unique(label) = &self.label else {
            anyhow::bail!("only in a test's own cluster");
        };
        let netns = Netns::new(&format!("{label}-{name}"))?;
        let chain = self.chain(wiring).clone().without_denizen();
        Pod::attach(&self.world.node, netns, name, &chain)
    }

    /// Writes what a runtime caches of the ADD that `pod` was attached by.
    pub fn remember(&self, pod: &Pod) -> Result<()> {
        self.remember_with(pod, &Value::Null)
    }

    /// The same with capability arguments, which the runtime caches too.
    pub fn remember_with(&self, pod: &Pod, capabilities: &Value) -> Result<()> {
        let (file, mut cached) = pod.cached(pod.netns.path().to_str());
        cached["capabilityArgs"] = capabilities.clone();
        let results = self.run_dir.join(CNI_CACHE).join("results");
        fs::create_dir_all(&results)?;
        fs::write(results.join(file), cached.to_string())?;
        Ok(())
    }

    /// The chain that pods of this wiring are attached through.
    pub fn chain(&self, wiring: Wiring) -> &Chain {
        match wiring {
            Wiring::Bridged => &self.bridged,
            Wiring::Routed => &self.routed,
        }
    }

    /// The settings of an agent for this node.
    pub fn settings(&self) -> Settings {
        Settings {
            program: None,
            objects: Objects::Manifests(self.manifests.folder().to_owned()),
            run_dir: self.run_dir.clone(),
            node_name: NODE.to_owned(),
            flags: Vec::new(),
        }
    }

    /// The same with flags.
    pub fn settings_with<F: Into<String>>(&self, flags: impl IntoIterator<Item = F>) -> Settings {
        let flags = flags.into_iter().map(Into::into).collect();
        Settings { flags, ..self.settings() }
    }

    /// Starts the agent and waits until it has programmed the kernel.
    pub fn start_agent(&self) -> Result<Agent> {
        Agent::start(&self.world.node, self.settings())
    }

    /// The same with flags.
    pub fn start_agent_with<F: Into<String>>(
        &self,
        flags: impl IntoIterator<Item = F>,
    ) -> Result<Agent> {
        Agent::start(&self.world.node, self.settings_with(flags))
    }

    /// Where the state file and the agent's socket are.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// A dual-stack service `web` at `cluster_ips` whose only endpoint is another node's pod, at
    /// `port` of its address of each family, as long as the value lives.
    pub fn remote_web(&self, cluster_ips: &[IpAddr], port: Port) -> Result<Server> {
        let remote = &self.world.addresses().remote;
        let mut objects = vec![manifest::service("web", cluster_ips, &[port])];
        objects.extend(
            remote.iter().map(|address| manifest::slice("web", &[port], &[(*address, OTHER_NODE)])),
        );
        self.manifests.put("web", &objects)?;
        serve(&self.world.remote, remote, &[(port.protocol, port.target)])
    }

    /// Whether this source address is one of the node's: then the packet was masqueraded.
    pub fn is_nodes(&self, seen: IpAddr) -> Result<bool> {
        Ok(self.world.node_addresses()?.contains(&seen))
    }
}

/// Answers at these ports of every one of these addresses, which `netns` has.
pub fn serve(netns: &Netns, addresses: &[IpAddr], ports: &[(Protocol, u16)]) -> Result<Server> {
    let at = |address: &IpAddr| {
        let listen = |(protocol, port): &(Protocol, u16)| Listen {
            protocol: *protocol,
            address: SocketAddr::new(*address, *port),
        };
        ports.iter().map(listen).collect::<Vec<_>>()
    };
    Server::start(netns, &addresses.iter().flat_map(at).collect::<Vec<_>>())
}
