//! The quick start's node: a bridged pod, a routed pod, another node's pod and a client outside, in address
//! ranges that no CIDR could hold together.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::page::Page;
use super::serve;
use crate::agent::{Agent, Settings};
use crate::manifest::Manifests;
use crate::netns::{self, Netns};
use crate::pod::{BRIDGE, Pod};
use crate::probe::Protocol;
use crate::runtime::Chain;
use crate::server::Listen;
use crate::world::{Addresses, World, ip};

/// What the namespaces of a node that was left up are called.
const KEPT: &str = "denizen-quickstart";

/// Where its files are.
const KEPT_FOLDER: &str = "/run/denizen-quickstart";

/// The ranges of the node's bridged pods, and the bridge's addresses in them.
pub(super) const BRIDGED: [(&str, &str); 2] = [
    ("10.10.0.0/24", "10.10.0.1"),
    ("fd00:10:10::/64", "fd00:10:10::1"),
];

/// The ranges of the node's routed pods, and their gateways.
pub(super) const ROUTED: [(&str, &str); 2] = [
    ("172.20.5.0/24", "172.20.5.1"),
    ("fd00:172:20::/64", "fd00:172:20::1"),
];

/// The node, up and programmed.
pub(super) struct Node {
    pub(super) agent: Agent,
    pub(super) bridged: Pod,
    pub(super) routed: Pod,
    pub(super) world: World,
    pub(super) manifests: Manifests,
    chains: [Chain; 2],
    kept: bool,
}

/// Who starts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Bridged,
    Routed,
    Remote,
    Outside,
    ThisNode,
}

impl Node {
    pub(super) fn up(keep: bool) -> Result<Self> {
        let world = world(keep)?;
        let run_dir = world.subfolder("run")?;
        let manifests = Manifests::in_folder(&world.folder().join("manifests"))?;
        apply_examples(&manifests)?;
        let settings = Settings {
            manifests: manifests.folder().to_owned(),
            run_dir: run_dir.clone(),
            node_name: "node-1".to_owned(),
            flags: Vec::new(),
        };
        let mut agent = Agent::start(&world.node, settings)?;
        agent.quiet();
        let chains = chains(&world, &run_dir)?;
        let attach =
            |name: &str, chain: &Chain| Pod::attach(&world.node, namespace(keep, name)?, name, chain);
        let bridged = attach("bridged", &chains[0])?;
        let routed = attach("routed", &chains[1])?;
        for pod in [&bridged, &routed] {
            serve::start(&pod.netns, &listens(&pod.addresses))?;
        }
        serve::start(&world.remote, &listens(&world.addresses().remote))?;
        Ok(Self {
            agent,
            bridged,
            routed,
            world,
            manifests,
            chains,
            kept: keep,
        })
    }

    /// Adds one more bridged pod through the real chain.
    pub(super) fn add_pod(&self, name: &str) -> Result<Pod> {
        Pod::attach(
            &self.world.node,
            namespace(self.kept, name)?,
            name,
            &self.chains[0],
        )
    }

    pub(super) fn introduce(&self, page: &mut Page) -> Result<()> {
        let both = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        page.say(format_args!(
            "this node    {}",
            both(&self.world.addresses().node)
        ));
        for (who, pod) in [("bridged pod", &self.bridged), ("routed pod ", &self.routed)] {
            let name = &pod.input_interface;
            page.say(format_args!(
                "{who}  {}, whose packets come in through {name}",
                both(&pod.addresses)
            ));
        }
        page.say(format_args!(
            "remote pod   {}, on another node",
            both(&self.world.addresses().remote)
        ));
        page.say(format_args!(
            "outside      {}, not in the cluster",
            both(&self.world.addresses().client)
        ));
        let status = self.agent.status()?;
        page.say(format_args!(
            "the agent    backend {}, local traffic by {}, {} pods, {} services, nowhere a cluster CIDR",
            status["backend"], status["detectLocal"], status["pods"], status["services"]
        ));
        let known = status["pods"].as_u64();
        page.check((known != Some(2)).then_some("the agent should know two pods"));
        Ok(())
    }

    /// The namespace that `who` is in, its address of `like`'s family, and the interface through which the
    /// node sees its packets come in.
    pub(super) fn place(&self, who: Who, like: IpAddr) -> Result<(&Netns, IpAddr, Option<&str>)> {
        let first = |addresses: &[IpAddr]| {
            let found = addresses
                .iter()
                .copied()
                .find(|address| address.is_ipv4() == like.is_ipv4());
            found.with_context(|| format!("{who:?} has no address of the family of {like}"))
        };
        let own = self.world.addresses();
        Ok(match who {
            Who::Bridged => (
                &self.bridged.netns,
                first(&self.bridged.addresses)?,
                Some(&self.bridged.input_interface),
            ),
            Who::Routed => (
                &self.routed.netns,
                first(&self.routed.addresses)?,
                Some(&self.routed.input_interface),
            ),
            Who::Remote => (&self.world.remote, first(&own.remote)?, Some("eth0")),
            Who::Outside => (&self.world.client, first(&own.client)?, Some("eth0")),
            Who::ThisNode => (&self.world.node, first(&own.node)?, None),
        })
    }

    /// Whose address that is, for a person.
    pub(super) fn owner(&self, address: IpAddr) -> &'static str {
        let own = self.world.addresses();
        let node = self.world.node_addresses().unwrap_or_default();
        match address {
            it if self.bridged.addresses.contains(&it) => "bridged pod",
            it if self.routed.addresses.contains(&it) => "routed pod",
            it if own.remote.contains(&it) => "remote pod",
            it if own.client.contains(&it) => "outside",
            it if node.contains(&it) => "this node",
            _ => "?",
        }
    }

    /// Leaves everything up, and says how to play with it and how to take it away.
    pub(super) fn leave(mut self, page: &mut Page) -> Result<()> {
        page.title("The node is left up");
        for netns in [&mut self.bridged.netns, &mut self.routed.netns] {
            netns.keep();
        }
        self.world.keep();
        let run_dir = self.world.subfolder("run")?;
        let (agent, run, manifests) = (
            "denizen-agent",
            run_dir.display(),
            self.manifests.folder().display(),
        );
        let agent = crate::binary::ours(agent)?;
        let agent = agent.display();
        page.say("Connect as the bridged pod; the answer is who answered and which source it saw:");
        page.say(format_args!(
            "    ip netns exec {KEPT}-bridged bash -c 'cat < /dev/tcp/172.30.0.10/80'"
        ));
        page.say(format_args!(
            "    ip netns exec {KEPT}-client  bash -c 'cat < /dev/tcp/192.168.0.2/30080'"
        ));
        page.say("Look at the rules, at the recorded pods, at what the agent knows, and ask it why:");
        page.say(format_args!(
            "    ip netns exec {KEPT}-node nft list table ip denizen"
        ));
        page.say(format_args!("    cat {run}/pods.json"));
        page.say(format_args!("    {agent} status --run-dir {run}"));
        page.say(format_args!(
            "    {agent} explain --run-dir {run} --from 10.10.0.2@{BRIDGE} --to 172.30.0.10:80/TCP"
        ));
        page.say("Edit a manifest and see it take effect at once:");
        page.say(format_args!("    $EDITOR {manifests}/web.yaml"));
        page.say("Take it all away:");
        page.say("    tests/quickstart --cleanup");
        self.agent.leave();
        Ok(())
    }
}

/// Removes a node that was left up: its namespaces, what runs in them, and its folder.
pub fn remove_kept() {
    for name in netns::names_with(KEPT) {
        netns::remove(&name);
    }
    let _ = fs::remove_dir_all(KEPT_FOLDER);
}

fn world(keep: bool) -> Result<World> {
    let addresses = Addresses {
        node: vec![ip("192.168.0.2"), ip("2001:db8::1")],
        client: vec![ip("203.0.113.2"), ip("2600:5200::1")],
        remote: vec![ip("192.168.77.10"), ip("fd00:77::10")],
    };
    if !keep {
        return World::new("quick", addresses);
    }
    let there = netns::names_with(KEPT);
    ensure!(
        there.is_empty(),
        "a node is still up: `tests/quickstart --cleanup` takes it away"
    );
    fs::create_dir_all(KEPT_FOLDER)?;
    World::named(KEPT, addresses, Path::new(KEPT_FOLDER))
}

fn namespace(keep: bool, name: &str) -> Result<Netns> {
    if keep {
        Netns::named(&format!("{KEPT}-{name}"))
    } else {
        Netns::new(&format!("quick-{name}"))
    }
}

/// The real CNI chains: Debian's plugins, and ours behind them, waiting for the agent.
fn chains(world: &World, run_dir: &Path) -> Result<[Chain; 2]> {
    let data = world.subfolder("cni")?;
    let options = json!({ "waitForAgent": { "timeout": "2s", "onTimeout": "fail" } });
    let parsed = |ranges: [(&'static str, &str); 2]| ranges.map(|(range, gateway)| (range, ip(gateway)));
    let bridged = Chain::bridged(BRIDGE, &parsed(BRIDGED), &data).then_denizen(run_dir, &options);
    let routed = Chain::routed(&parsed(ROUTED), &data).then_denizen(run_dir, &options);
    Ok([bridged, routed])
}

/// The folder of example manifests, as it lies in the source tree.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/examples")
}

fn apply_examples(manifests: &Manifests) -> Result<()> {
    let folder = examples();
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .context("a manifest's name")?;
        manifests.put_text(name, &fs::read_to_string(&path)?)?;
    }
    Ok(())
}

/// Every port that an example sends anybody to.
pub(super) fn listens(addresses: &[IpAddr]) -> Vec<Listen> {
    let ports = [
        (Protocol::Tcp, 8080),
        (Protocol::Udp, 5353),
        (Protocol::Tcp, 5354),
    ];
    let at = |address: &IpAddr| {
        ports.map(|(protocol, port)| Listen {
            protocol,
            address: (*address, port).into(),
        })
    };
    addresses.iter().flat_map(at).collect()
}
