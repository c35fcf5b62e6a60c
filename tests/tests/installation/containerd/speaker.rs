//! BIRD's DaemonSet beside the agent's, as an operator who wants BGP installs it, and a router.

use std::fs;

use anyhow::{Context, Result, ensure};
use denizen_tests::conf::{built_with, containers_of, texts};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::world::World;
use denizen_tests::peers::bird::Bird;
use denizen_tests::peers::containerd::kubelet::{DaemonPod, Kubelet};
use serde_json::Value;

use super::TIMEOUT;

/// What the node announces.
pub(super) const POD_CIDR: &str = "10.77.0.0/24";
/// A host outside the cluster.
const ROUTER: &str = "203.0.113.2";
const CONFIGURATION: &str = "log stderr all;\nrouter id 203.0.113.2;\nprotocol device {}\n\
    protocol bgp node { local as 65001; neighbor 192.168.0.2 as 64512; multihop; \
    connect delay time 1; connect retry time 1; error wait time 1, 2; \
    ipv4 { import all; export none; }; }\n";

/// The router, and BIRD's pod.
pub(super) struct Speaker {
    pod: DaemonPod,
    container: Value,
    router: Bird,
}

/// `conf/kubernetes` with the component `bird`, told of the router.
pub(super) fn objects() -> Result<Vec<Value>> {
    let mut objects = built_with("bird")?;
    let is_routing = |object: &&mut Value| object["metadata"]["name"] == "denizen-routing";
    let map = objects.iter_mut().find(is_routing).context("no denizen-routing")?;
    let file = &mut map["data"]["config.yaml"];
    let text = file.as_str().context("a file")?;
    let mesh = "    mesh: true\n";
    ensure!(text.contains(mesh), "{text}");
    let peers =
        format!("    peers: [{{name: tor-a, address: {ROUTER}, asn: 65001, multihop: 3}}]\n");
    *file = text.replace(mesh, &format!("{mesh}{peers}")).into();
    Ok(objects)
}

impl Speaker {
    /// Starts both.
    pub(super) fn start(world: &World, kubelet: &Kubelet<'_>) -> Result<Self> {
        let named = |object: &&Value| object["metadata"]["name"] == "denizen-bird";
        let daemon_set = kubelet.objects.iter().find(named).context("no denizen-bird")?;
        let [container] = containers_of(daemon_set).try_into().ok().context("one container")?;
        let folder = world.subfolder("router")?;
        let router = Bird::start(&world.client, &folder, "router", CONFIGURATION)?;
        Ok(Self { pod: kubelet.run("denizen-bird")?, container, router })
    }

    /// It has what it is granted, is ready, and the router hears of the node's pods.
    pub(super) fn speaks(&self) -> Result<()> {
        const NET_BIND_SERVICE: u64 = 1 << 10;
        const NET_ADMIN: u64 = 1 << 12;
        const NET_RAW: u64 = 1 << 13;
        let capabilities = super::effective(&self.pod, "bird")?;
        assert_eq!(capabilities, NET_BIND_SERVICE | NET_ADMIN | NET_RAW);
        let program = fs::read_link(self.pod.process("bird")?.join("exe"))?;
        assert_eq!(program.to_string_lossy(), "/usr/sbin/bird");
        let output = self.exec(&self.container["readinessProbe"])?;
        ensure!(output.contains("Daemon is up and running"), "{output}");
        let heard = || self.router.ask("show route all");
        let is_heard = |routes: &String| routes.contains(POD_CIDR);
        observed("heard", TIMEOUT, heard, is_heard).with_context(|| self.pod.log("bird"))?;
        Ok(())
    }

    /// Before it stops, it ends without a word to the router, which keeps what it has heard.
    pub(super) fn end(self) -> Result<()> {
        // BIRD is its container's first process: its end can kill `birdcl` before that has printed
        // the answer, and the exec fails. A kubelet goes on all the same.
        let output = self.exec(&self.container["lifecycle"]["preStop"]);
        eventually("the session is over", TIMEOUT, || Ok(self.router.established()? == 0))
            .with_context(|| format!("what preStop said: {output:?}"))?;
        let shown = self.router.ask("show protocols all node")?;
        ensure!(!shown.contains("Received:"), "BIRD said goodbye: {shown}");
        let routes = self.router.ask("show route")?;
        ensure!(routes.contains(POD_CIDR), "forgotten: {routes}\n{shown}");
        self.pod.end()
    }

    /// What kubelet executes.
    fn exec(&self, handler: &Value) -> Result<String> {
        let words = texts(&handler["exec"]["command"])?;
        self.pod.exec("bird", &words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
