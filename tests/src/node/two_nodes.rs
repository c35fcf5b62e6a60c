//! Two nodes on one link, with a real agent each that read one folder of manifests.
//!
//! ```text
//!   pods ─ node-1 ─ eth0 ──── eth0 ─ node-2 ─ pods
//! ```

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::{Agent, Objects, Settings};
use crate::eventually::observed;
use crate::node::cni::Chain;
use crate::node::manifest::{self, Manifests};
use crate::node::netns::{self, Netns};
use crate::node::pod::{BRIDGE, Pod, Wiring};
use crate::node::world::ip;
use crate::policy::NodeObject;

/// How long programming may take: an emulated processor has to load the kernel's modules first.
const PROGRAMMING_TIMEOUT: Duration = Duration::from_secs(90);

/// Both nodes.
#[derive(Debug)]
pub struct TwoNodes {
    /// The first and the second node.
    pub hosts: [NodeHost; 2],
    /// What both agents read.
    pub manifests: Manifests,
    label: String,
    folder: TempDir,
}

/// One of the nodes.
#[derive(Debug)]
pub struct NodeHost {
    /// `None` before [`TwoNodes::start_agents`]. The agent ends before its node does.
    pub agent: Option<Agent>,
    /// The node's network namespace.
    pub netns: Netns,
    /// Its name and its addresses.
    pub node: NodeObject,
    /// The run directory of its agent and its plugin.
    pub run_dir: PathBuf,
    /// The agent's program, if it is not this build's.
    pub program: Option<PathBuf>,
    bridged: Chain,
    routed: Chain,
}

/// A node's pod ranges, each with its gateway: for bridged pods, and for routed ones. The IPv4
/// ranges of all nodes lie in one block of 2^28 addresses, the IPv6 ranges in one of 2^124.
struct Ranges([[(String, IpAddr); 2]; 2]);

impl Ranges {
    fn of(number: usize) -> Self {
        Self(["10", "11"].map(|kind| {
            [
                (format!("10.{kind}.{number}.0/24"), ip(&format!("10.{kind}.{number}.1"))),
                (format!("fd00:{kind}:{number}::/64"), ip(&format!("fd00:{kind}:{number}::1"))),
            ]
        }))
    }

    fn refs(&self, kind: usize) -> [(&str, IpAddr); 2] {
        [0, 1].map(|family| (self.0[kind][family].0.as_str(), self.0[kind][family].1))
    }
}

impl TwoNodes {
    /// Both nodes without agents. The plugin waits for the agent as `wait` says.
    pub fn new(label: &str, wait: &Value) -> Result<Self> {
        let folder = netns::folder()?;
        let manifests = Manifests::in_folder(&folder.path().join("manifests"))?;
        let host = |number| NodeHost::new(label, number, &folder, wait);
        let hosts = [host(1)?, host(2)?];
        join(&hosts)?;
        let objects: Vec<_> = hosts
            .iter()
            .map(|host| manifest::node(&host.node.name, &host.node.addresses, ""))
            .collect();
        manifests.put("nodes", &objects)?;
        Ok(Self { hosts, manifests, label: label.to_owned(), folder })
    }

    /// Starts both agents with the firewall on, and with these flags.
    pub fn start_agents(&mut self, flags: &[&str]) -> Result<()> {
        for host in &mut self.hosts {
            host.start_agent(Objects::Manifests(self.manifests.folder().to_owned()), flags)?;
        }
        Ok(())
    }

    /// A pod `namespace/name` on a node, attached through the real chain.
    pub fn attach(&self, node: usize, name: &str, wiring: Wiring) -> Result<Pod> {
        let host = &self.hosts[node];
        Pod::attach(&host.netns, self.sandbox(name)?, name, host.chain(wiring))
    }

    /// The same with a given UID of the pod.
    pub fn attach_with_uid(
        &self,
        node: usize,
        (name, uid): (&str, &str),
        wiring: Wiring,
    ) -> Result<Pod> {
        let host = &self.hosts[node];
        Pod::attach_with_uid(&host.netns, self.sandbox(name)?, (name, uid), host.chain(wiring))
    }

    /// The same without waiting for an agent, since none runs.
    pub fn attach_without_agent(&self, node: usize, name: &str, wiring: Wiring) -> Result<Pod> {
        let host = &self.hosts[node];
        let mut chain = host.chain(wiring).clone();
        chain.wait_as(&Value::Null);
        Pod::attach(&host.netns, self.sandbox(name)?, name, &chain)
    }

    /// A third node without an agent, with a link to each of the other two, over IPv4 only.
    pub fn third(&self) -> Result<NodeHost> {
        let third = NodeHost::new(&self.label, 3, &self.folder, &Value::Null)?;
        third
            .netns
            .ip(&format!("link set lo up\naddr add {}/32 dev lo\n", third.node.addresses[0]))?;
        for (number, host) in (1..).zip(&self.hosts) {
            let (name, peer) = (&host.node.name, third.netns.name());
            host.netns.ip(&format!("link add third type veth peer name {name} netns {peer}\n"))?;
            host.reach(3, &third, "third")?;
            third.reach(number, host, name)?;
        }
        Ok(third)
    }

    /// Waits until no pod of either node is pending, and `so` accepts the status of each agent.
    pub fn settled(&self, so: impl Fn(usize, &Value) -> bool) -> Result<()> {
        let mut hosts = self.hosts.iter().enumerate();
        hosts.try_for_each(|(number, host)| host.settled(|status| so(number, status)))
    }

    /// A network namespace for a pod `namespace/name`.
    pub fn sandbox(&self, name: &str) -> Result<Netns> {
        Netns::new(&format!("{}-{}", self.label, name.replace('/', "-")))
    }
}

impl NodeHost {
    fn new(label: &str, number: usize, folder: &TempDir, wait: &Value) -> Result<Self> {
        let netns = Netns::new(&format!("{label}-node{number}"))?;
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            netns.sysctl(key, "1")?;
        }
        // Tests make tens of thousands of connections, each only once: forget them quickly.
        for key in ["udp_timeout", "udp_timeout_stream", "tcp_timeout_close"] {
            netns.sysctl(&format!("net.netfilter.nf_conntrack_{key}"), "1")?;
        }
        let run_dir = folder.path().join(format!("run-{number}"));
        let data = folder.path().join(format!("cni-{number}"));
        let ranges = Ranges::of(number);
        let options = if wait.is_null() { Value::Null } else { json!({ "waitForAgent": wait }) };
        let chain = |chain: Chain| chain.then_denizen(&run_dir, &options);
        let addresses =
            vec![ip(&format!("192.168.0.{number}")), ip(&format!("2001:db8::{number}"))];
        Ok(Self {
            agent: None,
            netns,
            node: NodeObject { name: format!("node-{number}"), addresses, ..NodeObject::default() },
            bridged: chain(Chain::bridged(BRIDGE, &ranges.refs(0), &data)),
            routed: chain(Chain::routed(&ranges.refs(1), &data)),
            run_dir,
            program: None,
        })
    }

    /// Starts the agent, the firewall on, and waits until it has programmed the kernel.
    pub fn start_agent(&mut self, objects: Objects, flags: &[&str]) -> Result<()> {
        self.spawn_agent(objects, flags)?.wait_programmed(PROGRAMMING_TIMEOUT)
    }

    /// The same, but waits for nothing.
    pub fn spawn_agent(&mut self, objects: Objects, flags: &[&str]) -> Result<&mut Agent> {
        std::fs::create_dir_all(&self.run_dir)?;
        let agent = Agent::spawn(&self.netns, self.settings(objects, flags))?;
        Ok(self.agent.insert(agent))
    }

    /// Brings a link to another node up, with routes to that node and to its pods.
    fn reach(&self, number: usize, other: &Self, link: &str) -> Result<()> {
        let [own, via] = [self, other].map(|host| host.node.addresses[0]);
        let mut commands = format!("link set {link} up\nroute add {via}/32 dev {link} src {own}\n");
        for [(range, _), _] in Ranges::of(number).0 {
            commands += &format!("route add {range} via {via}\n");
        }
        self.netns.ip(&commands)
    }

    fn settings(&self, objects: Objects, flags: &[&str]) -> Settings {
        let flags = ["--network-policy=on"].iter().chain(flags).map(|flag| (*flag).to_owned());
        Settings {
            objects,
            run_dir: self.run_dir.clone(),
            node_name: self.node.name.clone(),
            program: self.program.clone(),
            flags: flags.collect(),
        }
    }

    /// The same for this node alone.
    pub fn settled(&self, so: impl Fn(&Value) -> bool) -> Result<()> {
        let agent = self.agent()?;
        let status = || agent.ask_directly(&json!({ "status": {} }));
        let is_settled = |status: &Value| {
            let policy = &status["networkPolicy"];
            status["synced"] == true
                && policy["waitingFor"] == json!([])
                && policy["pending"] == 0
                && so(status)
        };
        observed("settled", PROGRAMMING_TIMEOUT, status, is_settled).map(drop)
    }

    /// The running agent.
    pub fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("no agent was started")
    }

    /// The chain that pods of this wiring are attached through.
    pub fn chain(&self, wiring: Wiring) -> &Chain {
        match wiring {
            Wiring::Bridged => &self.bridged,
            Wiring::Routed => &self.routed,
        }
    }
}

/// Joins the nodes by one link, with routes to each other's pods.
fn join(hosts: &[NodeHost; 2]) -> Result<()> {
    let [one, two] = hosts;
    one.netns.ip(&format!("link add eth0 type veth peer name eth0 netns {}", two.netns.name()))?;
    for (host, other) in [(one, two), (two, one)] {
        let mut commands = "link set eth0 up\n".to_owned();
        for (address, length) in host.node.addresses.iter().zip([24, 64]) {
            let nodad = if address.is_ipv6() { "nodad" } else { "" };
            commands += &format!("addr add {address}/{length} dev eth0 {nodad}\n");
        }
        host.netns.ip(&commands)?;
        let number = if std::ptr::eq(host, one) { 2 } else { 1 };
        let mut commands = String::new();
        for (range, _) in Ranges::of(number).0.iter().flatten() {
            let via = other.node.addresses[usize::from(range.contains(':'))];
            commands += &format!("route add {range} via {via}\n");
        }
        host.netns.ip(&commands)?;
    }
    Ok(())
}
