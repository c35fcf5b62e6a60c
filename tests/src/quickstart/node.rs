//! The quick start's node: a bridged pod, a routed pod, another node's pod and a client outside, in
//! address ranges that no CIDR covers.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::page::Page;
use super::serve;
use crate::agent::Agent;
use crate::agent::check::CheckReport;
use crate::node::cluster::Cluster;
use crate::node::fixture::{Fixture, Host};
use crate::node::manifest::Manifests;
use crate::node::netns;
use crate::node::pod::{BRIDGE, Wiring};
use crate::packets::probe::Protocol;
use crate::packets::server::Listen;

/// The prefix of the namespaces of a node that is left up.
const KEPT: &str = "denizen-quickstart";

/// The folder of its files.
const KEPT_FOLDER: &str = "/run/denizen-quickstart";

/// The node, up and programmed.
pub(super) struct QuickstartNode {
    pub(super) agent: Agent,
    pub(super) fixture: Fixture,
}

impl QuickstartNode {
    pub(super) fn up(keep: bool) -> Result<Self> {
        let cluster = cluster(keep)?;
        apply_examples(&cluster.manifests)?;
        let mut agent = cluster.start_agent()?;
        agent.quiet();
        let fixture = Fixture::on(cluster)?;
        for pod in [&fixture.bridged, &fixture.routed] {
            serve::start(&pod.netns, &listens(&pod.addresses))?;
        }
        let world = &fixture.cluster.world;
        serve::start(&world.remote, &listens(&world.addresses().remote))?;
        Ok(Self { agent, fixture })
    }

    pub(super) fn introduce(&self, page: &mut Page) -> Result<()> {
        let both =
            |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        page.say(format_args!(
            "this node    {}",
            both(&self.fixture.cluster.world.addresses().node)
        ));
        for (who, pod) in
            [("bridged pod", &self.fixture.bridged), ("routed pod ", &self.fixture.routed)]
        {
            let name = &pod.input_interface;
            page.say(format_args!(
                "{who}  {}, whose packets come in through {name}",
                both(&pod.addresses)
            ));
        }
        page.say(format_args!(
            "remote pod   {}, on another node",
            both(&self.fixture.cluster.world.addresses().remote)
        ));
        page.say(format_args!(
            "outside      {}, not in the cluster",
            both(&self.fixture.cluster.world.addresses().client)
        ));
        let status = self.agent.status()?;
        let word = |key: &str| status[key].as_str().unwrap_or("?");
        page.say(format_args!(
            "the agent    backend {}, local traffic by {}, {} pods, {} services, no cluster CIDR configured",
            word("backend"),
            word("detectLocal"),
            status["pods"],
            status["services"]
        ));
        let known = status["pods"].as_u64();
        page.check((known != Some(2)).then_some("the agent should know two pods"));
        Ok(())
    }

    /// The flags to check this node: its CNI configuration has a folder of its own.
    fn check_flags(&self) -> Result<Vec<String>> {
        let cluster = &self.fixture.cluster;
        let conflists = cluster.world.subfolder("net.d")?;
        fs::write(conflists.join("10-pods.conflist"), cluster.chain(Wiring::Bridged).conflist())?;
        let plugin = crate::binary::ours("denizen")?;
        let plugins = plugin.parent().context("a program lies in a folder")?;
        let flags = [
            ("manifests", cluster.manifests.folder()),
            ("run-dir", cluster.run_dir()),
            ("cni-conf-dir", &conflists),
            ("cni-bin-dir", plugins),
        ];
        let flags = flags.map(|(flag, folder)| format!("--{flag}={}", folder.display()));
        let node = format!("--node-name={}", crate::node::cluster::NODE);
        Ok(flags.into_iter().chain([node]).collect())
    }

    /// Runs `denizen-agent check` on the node and shows the result.
    pub(super) fn check(&self, page: &mut Page) -> Result<()> {
        let checked = CheckReport::on(&self.fixture.cluster.world.node, self.check_flags()?)?;
        let [ok, warnings, failures] =
            ["ok", "warning", "failure"].map(|verdict| checked.count(verdict));
        page.say(format_args!(
            "check        {ok} ok, {warnings} warnings, {failures} failures: `denizen-agent check`{checked}"
        ));
        page.check((failures > 0).then_some("no check should fail"));
        Ok(())
    }

    /// The name of an address's owner, for people.
    pub(super) fn owner(&self, address: IpAddr) -> &'static str {
        match self.fixture.owner(address) {
            Some(Host::Bridged) => "bridged pod",
            Some(Host::Routed) => "routed pod",
            Some(Host::Remote) => "remote pod",
            Some(Host::Outside) => "outside",
            Some(Host::ThisNode) => "this node",
            None => "?",
        }
    }

    /// Leaves everything up, and says how to use it and how to remove it.
    pub(super) fn leave(mut self, page: &mut Page) -> Result<()> {
        page.title("The node is left up");
        let check = self.check_flags()?.join(" ");
        for netns in [&mut self.fixture.bridged.netns, &mut self.fixture.routed.netns] {
            netns.keep();
        }
        self.fixture.cluster.world.keep();
        let (agent, run, manifests) = (
            "denizen-agent",
            self.fixture.cluster.run_dir().display(),
            self.fixture.cluster.manifests.folder().display(),
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
        page.say(
            "Look at the rules, at the recorded pods, at what the agent knows, and ask it why:",
        );
        page.say(format_args!("    ip netns exec {KEPT}-node nft list table ip denizen"));
        page.say(format_args!("    cat {run}/pods.json"));
        page.say(format_args!("    {agent} status --run-dir {run}"));
        page.say(format_args!(
            "    {agent} explain --run-dir {run} --from 10.10.0.2@{BRIDGE} --to 172.30.0.10:80/TCP"
        ));
        page.say("Check that it is set up as it should be:");
        page.say(format_args!("    ip netns exec {KEPT}-node {agent} check {check}"));
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

fn cluster(keep: bool) -> Result<Cluster> {
    let wait = json!({ "timeout": "2s", "onTimeout": "fail" });
    if !keep {
        return Cluster::new("quick", &wait);
    }
    let there = netns::names_with(KEPT);
    ensure!(there.is_empty(), "a node is still up: `tests/quickstart --cleanup` takes it away");
    // Files of a run that failed half way: an old state file would bring its pods back.
    let _ = fs::remove_dir_all(KEPT_FOLDER);
    fs::create_dir_all(KEPT_FOLDER)?;
    Cluster::named(KEPT, Path::new(KEPT_FOLDER), &wait)
}

/// The folder of example manifests, as it lies in the source tree.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/examples")
}

fn apply_examples(manifests: &Manifests) -> Result<()> {
    let folder = examples();
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).context("a manifest's name")?;
        manifests.put_text(name, &fs::read_to_string(&path)?)?;
    }
    Ok(())
}

/// Every port that is a target port in an example.
pub(super) fn listens(addresses: &[IpAddr]) -> Vec<Listen> {
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353), (Protocol::Tcp, 5354)];
    let at = |address: &IpAddr| {
        ports.map(|(protocol, port)| Listen { protocol, address: (*address, port).into() })
    };
    addresses.iter().flat_map(at).collect()
}
