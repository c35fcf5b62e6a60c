//! Three nodes on one network, with a real agent each.
//!
//! ```text
//!   pod ─ node-1 ─ eth0 ─┐
//!   pod ─ node-2 ─ eth0 ─┼─ switch
//!   pod ─ node-3 ─ eth0 ─┘
//! ```

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::{Agent, Objects, START_TIMEOUT, Settings};
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::cni::Chain;
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::manifest::{self, Manifests};
use denizen_tests::node::netns::{self, Netns, checked};
use denizen_tests::node::pod::Pod;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::packets::server::Server;
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use super::TIMEOUT;

/// How many nodes there are. They are numbered from 1.
pub(super) const NODES: u8 = 3;

/// All nodes, and what connects them.
pub(super) struct Segment {
    /// By number, from 1 on.
    pub(super) nodes: Vec<Node>,
    pub(super) manifests: Manifests,
    switch: Netns,
    pub(super) folder: TempDir,
}

/// One of them. What runs in it ends before it does.
pub(super) struct Node {
    pub(super) agent: Option<Agent>,
    pod: Option<(Server, Pod)>,
    pub(super) netns: Netns,
    pub(super) run_dir: PathBuf,
    /// Where its CNI configuration is.
    folder: PathBuf,
    number: u8,
    /// Where its agent's objects come from.
    pub(super) objects: Objects,
}

/// A node's addresses.
pub(super) fn addresses(number: u8) -> Vec<IpAddr> {
    vec![ip(&format!("192.0.2.{number}")), ip(&format!("2001:db8::{number}"))]
}

/// A node's podCIDRs.
pub(super) fn ranges(number: u8) -> [String; 2] {
    [format!("10.1.{number}.0/24"), format!("fd01:{number}::/64")]
}

/// A Node object, made on this day of a month.
pub(super) fn object(name: &str, day: u8, addresses: &[IpAddr], ranges: &[String]) -> Value {
    let mut node = manifest::node(name, addresses, "");
    node["metadata"]["creationTimestamp"] = format!("2026-11-{day:02}T00:00:00Z").into();
    node["spec"] = json!({ "podCIDRs": ranges });
    node
}

/// The objects of these nodes.
pub(super) fn objects(numbers: impl IntoIterator<Item = u8>) -> Vec<Value> {
    let object =
        |number| object(&format!("node-{number}"), number, &addresses(number), &ranges(number));
    numbers.into_iter().map(object).collect()
}

/// The routes to these nodes' pods, as `ip` shows those with our protocol number.
pub(super) fn routes_to(numbers: &[u8]) -> Vec<String> {
    let route = |number: &u8, family: usize, more: &str| {
        let (to, by) = (&ranges(*number)[family], addresses(*number)[family]);
        format!("{to} via {by} dev eth0 metric 1190{more}")
    };
    let v4 = numbers.iter().map(|number| route(number, 0, ""));
    v4.chain(numbers.iter().map(|number| route(number, 1, " pref medium"))).collect()
}

/// A host with these addresses that forwards.
fn host(label: &str, number: u8, switch: &Netns) -> Result<Netns> {
    let netns = Netns::new(label)?;
    let forwarding = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    for key in forwarding.iter().chain(&["net.ipv6.conf.all.keep_addr_on_down"]) {
        netns.sysctl(key, "1")?;
    }
    switch.ip(&format!(
        "link add port{number} type veth peer name eth0 netns {}\n\
         link set port{number} master switch up",
        netns.name()
    ))?;
    let [v4, v6] = [0, 1].map(|family| addresses(number)[family]);
    netns.ip(&format!(
        "addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up"
    ))?;
    Ok(netns)
}

impl Segment {
    /// Nobody routes yet.
    pub(super) fn new(label: &str) -> Result<Self> {
        let folder = netns::folder()?;
        let manifests = Manifests::in_folder(&folder.path().join("manifests"))?;
        manifests.put("nodes", &objects(1..=NODES))?;
        let switch = Netns::new(&format!("{label}-switch"))?;
        switch.ip("link add switch type bridge\nlink set switch up")?;
        let node = |number| Node::new(label, number, &switch, &folder, &manifests);
        let nodes = (1..=NODES).map(node).collect::<Result<_>>()?;
        Ok(Self { nodes, manifests, switch, folder })
    }

    /// One more host on the network: a router.
    pub(super) fn join(&self, label: &str, number: u8) -> Result<Netns> {
        host(label, number, &self.switch)
    }

    /// A node's power is off: the network has it no more.
    pub(super) fn unplug(&self, number: u8) -> Result<()> {
        self.switch.ip(&format!("link set port{number} down"))
    }

    /// A node loses its power and starts with nothing that it had, not even files.
    pub(super) fn reboot(&mut self, label: &str, number: u8) -> Result<()> {
        self.switch.ip(&format!("link delete port{number}"))?;
        let node = &mut self.nodes[usize::from(number) - 1];
        node.agent.take().context("an agent")?.kill()?;
        node.pod = None;
        node.netns = host(label, number, &self.switch)?;
        [&node.run_dir, &node.folder].into_iter().try_for_each(fs::remove_dir_all)?;
        Ok(fs::create_dir_all(&node.run_dir)?)
    }

    /// Starts all agents, waits until each has its routes, and attaches a pod on each node.
    pub(super) fn start_agents(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.start_agent("direct")?;
        }
        for node in &self.nodes {
            node.until_routed(&node.others())?;
        }
        self.nodes.iter_mut().try_for_each(Node::attach)?;
        Ok(())
    }
}

impl Node {
    fn new(
        label: &str,
        number: u8,
        switch: &Netns,
        folder: &TempDir,
        manifests: &Manifests,
    ) -> Result<Self> {
        let netns = host(&format!("{label}-node{number}"), number, switch)?;
        let run_dir = folder.path().join(format!("run-{number}"));
        fs::create_dir_all(&run_dir)?;
        let folder = folder.path().join(format!("node-{number}"));
        let objects = Objects::Manifests(manifests.folder().to_owned());
        Ok(Self { agent: None, pod: None, netns, run_dir, folder, number, objects })
    }

    /// The numbers of the others.
    pub(super) fn others(&self) -> Vec<u8> {
        (1..=NODES).filter(|number| *number != self.number).collect()
    }

    /// Starts the agent with a mode, and waits until it has programmed the services.
    pub(super) fn start_agent(&mut self, mode: &str) -> Result<&Agent> {
        self.start_with(&[&format!("--routing-mode={mode}")])
    }

    /// The same with these flags.
    pub(super) fn start_with(&mut self, flags: &[&str]) -> Result<&Agent> {
        self.start_program(None, flags)
    }

    /// The agent is killed, and the next one is the previous release's, if
    /// `DENIZEN_PREVIOUS_RELEASE` names it, and else a copy of this one.
    pub(super) fn start_other(&mut self, flags: &[&str]) -> Result<&Agent> {
        let other = match binary::previous("denizen-agent") {
            Some(previous) => previous,
            None => {
                let copy = self.run_dir.join("other");
                fs::copy(binary::ours("denizen-agent")?, &copy)?;
                copy
            }
        };
        self.agent.take().context("an agent")?.kill()?;
        self.start_program(Some(other), flags)
    }

    fn start_program(&mut self, program: Option<PathBuf>, flags: &[&str]) -> Result<&Agent> {
        let flags = [flags, &["--network-policy=off"]].concat();
        let settings = Settings {
            program,
            objects: self.objects.clone(),
            run_dir: self.run_dir.clone(),
            node_name: format!("node-{}", self.number),
            flags: flags.into_iter().map(str::to_owned).collect(),
        };
        let mut agent = Agent::spawn(&self.netns, settings)?;
        agent.wait_programmed(START_TIMEOUT)?;
        Ok(self.agent.insert(agent))
    }

    /// Attaches a pod, which serves, through what `install-cni --with-bridge` writes.
    pub(super) fn attach(&mut self) -> Result<()> {
        let conf = self.folder.join("net.d");
        let bin = self.folder.join("bin");
        fs::create_dir_all(&conf)?;
        fs::create_dir_all(&bin)?;
        for plugin in ["bridge", "host-local"] {
            symlink(binary::cni_plugins().join(plugin), bin.join(plugin))?;
        }
        let wait = r#"{"waitForAgent":{"timeout":"10s","onTimeout":"fail"}}"#;
        let flags = ["install-cni", "--once", "--with-bridge", "--plugin-config", wait];
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.args(flags).arg("--cni-conf-dir").arg(&conf).arg("--cni-bin-dir").arg(&bin);
        command.arg("--run-dir").arg(&self.run_dir);
        self.netns.run(|| checked(&mut command))??;
        let text = fs::read_to_string(conf.join("10-denizen-bridge.conflist"))?;
        let list: Value = serde_json::from_str(&text)?;
        let mut plugins = list["plugins"].as_array().context("plugins")?.clone();
        // The machine's own addresses are nobody's business here.
        plugins[0]["ipam"]["dataDir"] = self.folder.join("addresses").to_string_lossy().into();
        let chain = Chain::new(list["name"].as_str().context("a name")?, plugins);
        let sandbox = Netns::new("direct-pod")?;
        let name = format!("default/pod-{}", self.number);
        let pod = Pod::attach(&self.netns, sandbox, &name, &chain)?;
        let server = serve(&pod.netns, &pod.addresses, &[(Protocol::Tcp, PORT)])?;
        self.pod = Some((server, pod));
        Ok(())
    }

    /// Attaches a pod, which serves, through this chain.
    pub(super) fn attach_by(&self, chain: &Chain) -> Result<(Server, Pod)> {
        let name = format!("default/{}-{}", chain.name, self.number);
        let pod = Pod::attach(&self.netns, Netns::new("direct-pod")?, &name, chain)?;
        let server = serve(&pod.netns, &pod.addresses, &[(Protocol::Tcp, PORT)])?;
        Ok((server, pod))
    }

    /// The plugin has recorded all pods at another time, as `date` understands it.
    pub(super) fn recorded(&self, when: &str) -> Result<()> {
        let (path, next) = (self.run_dir.join("pods.json"), self.run_dir.join("next"));
        let date = self.netns.output("date", &["-u", "-d", when, "+%FT%TZ"])?;
        let mut state: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let attachments = state["attachments"].as_object_mut().context("attachments")?;
        attachments.values_mut().for_each(|attachment| attachment["addedAt"] = date.trim().into());
        fs::write(&next, state.to_string())?;
        fs::set_permissions(&next, fs::metadata(&path)?.permissions())?;
        Ok(fs::rename(next, path)?)
    }

    pub(super) fn pod(&self) -> Result<&Pod> {
        self.pod.as_ref().map(|(_, pod)| pod).context("no pod was attached")
    }

    /// Starts its BIRD.
    pub(super) fn speaker(&self) -> Result<Bird> {
        Bird::of_node(&self.netns, &self.run_dir)
    }

    pub(super) fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("no agent was started")
    }

    /// The routes with our protocol number, as `ip` shows them.
    pub(super) fn routes(&self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for family in ["-4", "-6"] {
            let shown =
                self.netns.output("ip", &[family, "-N", "route", "show", "proto", "213"])?;
            lines.extend(shown.lines().map(|line| line.trim_end().to_owned()));
        }
        Ok(lines)
    }

    /// All routes of all tables but those of the links' state: those with our protocol number, and
    /// all others.
    pub(super) fn all_routes(&self) -> Result<[Vec<String>; 2]> {
        let mut lines = Vec::new();
        for family in ["-4", "-6"] {
            let shown =
                self.netns.output("ip", &[family, "-N", "route", "show", "table", "all"])?;
            lines.extend(shown.lines().map(str::to_owned));
        }
        let (ours, others) = lines.into_iter().partition(|line| line.contains("proto 213"));
        Ok([ours, others])
    }

    /// Waits until the routes are those to these nodes' pods, and no others.
    pub(super) fn until_routed(&self, numbers: &[u8]) -> Result<()> {
        let wanted = routes_to(numbers);
        observed("routed", TIMEOUT, || self.routes(), |routes| *routes == wanted)
            .map(drop)
            .with_context(|| format!("on node {}: {wanted:#?}", self.number))
    }
}

/// Sends one echo request, as any user's `ping` does, and waits a moment for what comes of it.
pub(super) fn ping(from: &Netns, to: IpAddr) -> Result<io::Result<usize>> {
    const REPLY_TIMEOUT: Duration = Duration::from_millis(100);
    from.sysctl("net.ipv4.ping_group_range", "0 2147483647")?;
    let (protocol, request) = match to {
        IpAddr::V4(_) => (socket2::Protocol::ICMPV4, 8),
        IpAddr::V6(_) => (socket2::Protocol::ICMPV6, 128),
    };
    from.run(|| {
        let to = SocketAddr::new(to, 0);
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(protocol))?;
        socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        socket.connect(&to.into())?;
        // The kernel fills in its identifier and its checksum.
        socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
        (&socket).read(&mut [0; 64])
    })
}
