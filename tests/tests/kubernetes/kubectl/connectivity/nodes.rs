//! A cluster of two real nodes whose agents follow the API server. Pods are attached by the real
//! chain, and their programs run in them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::node::manifest;
use denizen_tests::node::netns::{Netns, folder};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::two_nodes::TwoNodes;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::{ExecRequest, Execution};
use denizen_tests::workstation::{Workstation, agent_program, in_image, no_such_program};
use serde_json::{Value, json};

use super::PREFIX;
use super::controllers::{Controllers, Kubelets};

/// The workstation's address, and that of the first node towards it.
const WORKSTATION: &str = "203.0.113.2";
const UPLINK: &str = "203.0.113.1";

/// Nobody: what runs in a pod of the test has no privilege.
const NOBODY: u32 = 65534;

/// Network namespaces of pods, by name.
type PodNamespaces = Arc<Mutex<BTreeMap<String, PathBuf>>>;

/// The cluster, and the workstation that has the API server.
pub struct ClusterOfTwo {
    /// It ends first: pods end before their nodes.
    controllers: Option<Controllers>,
    pub nodes: Arc<TwoNodes>,
    pub workstation: Arc<Workstation>,
    /// The words of every command that was executed in a pod, or that a pod's program has.
    pub commands: Arc<Mutex<Vec<Vec<String>>>>,
}

/// The workstation knows no other network than the API server's, and counts what leaves it.
const WATCHED: &str = "table inet watched {
    counter elsewhere {}
    chain output {
        type filter hook output priority 0
        oifname lo accept
        tcp sport 6443 accept
        meta l4proto { icmp, ipv6-icmp, igmp } accept
        counter name elsewhere
    }
}";

impl ClusterOfTwo {
    pub fn new(label: &str) -> Result<Self> {
        let mut nodes = TwoNodes::new(label, &json!({ "timeout": "20s" }))?;
        let (netns, folder) = (Netns::new(&format!("{label}-desk"))?, folder()?);
        let [first, second] = &nodes.hosts;
        let peer = first.netns.name();
        netns.ip(&format!("link add uplink type veth peer name desk0 netns {peer}"))?;
        first.netns.ip(&format!("addr add {UPLINK}/30 dev desk0\nlink set desk0 up\n"))?;
        netns.ip(&format!("addr add {WORKSTATION}/30 dev uplink\nlink set uplink up\n"))?;
        netns.ip(&format!("route add 192.168.0.0/24 via {UPLINK}"))?;
        second.netns.ip(&format!("route add {WORKSTATION}/32 via 192.168.0.1"))?;
        netns.nft(WATCHED)?;
        let workstation =
            Arc::new(Workstation::at(netns, folder, format!("{WORKSTATION}:6443").parse()?)?);
        let objects = Objects::Kubeconfig(workstation.api.kubeconfig().to_owned());
        for host in &mut nodes.hosts {
            let name = host.node.name.clone();
            let mut node = manifest::node(&name, &host.node.addresses, "");
            node["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
            workstation.api.put(&node)?;
            let flags = [format!("--run-dir={}", host.run_dir.display())];
            workstation.agent(&name, &json!({ "running": {} }), &flags)?;
            host.start_agent(objects.clone(), &[])?;
        }
        let (commands, pods) = (Arc::default(), PodNamespaces::default());
        let mut cluster = Self { controllers: None, nodes: Arc::new(nodes), workstation, commands };
        cluster.execute(pods.clone())?;
        let kubelets = RealKubelets {
            nodes: cluster.nodes.clone(),
            program: agent_program()?,
            pods,
            running: BTreeMap::new(),
            commands: cluster.commands.clone(),
        };
        cluster.controllers = Some(Controllers::start(cluster.workstation.clone(), kubelets));
        Ok(cluster)
    }

    /// Commands are executed where their containers are.
    fn execute(&self, pods: PodNamespaces) -> Result<()> {
        let hosts = self.nodes.hosts.iter();
        let hosts: BTreeMap<String, PathBuf> =
            hosts.map(|host| (format!("denizen-{}", host.node.name), host.netns.path())).collect();
        let (program, commands) = (agent_program()?, self.commands.clone());
        self.workstation.api.execute(Arc::new(move |request: &ExecRequest| {
            let Some(mut command) = in_image(&program, request) else {
                return no_such_program();
            };
            if !request.namespace.starts_with(PREFIX) {
                return match hosts.get(&request.pod) {
                    Some(netns) => Execution::Runs(command, netns.clone()),
                    None => Execution::Hangs,
                };
            }
            commands.lock().expect("nobody panics with it").push(request.command.clone());
            command.uid(NOBODY).gid(NOBODY);
            let pods = pods.lock().expect("nobody panics with it");
            match pods.get(&format!("{}/{}", request.namespace, request.pod)) {
                Some(netns) => Execution::Runs(command, netns.clone()),
                None => Execution::Hangs,
            }
        }));
        Ok(())
    }

    /// How many packets have left the workstation that are no answers of the API server.
    pub fn elsewhere(&self) -> Result<u64> {
        let text = self
            .workstation
            .netns()
            .output("nft", &["-j", "list", "counters", "table", "inet", "watched"])?;
        let json: Value = serde_json::from_str(&text)?;
        let all = json["nftables"].as_array().context("no list")?;
        let counter = all.iter().find_map(|object| object["counter"]["packets"].as_u64());
        counter.with_context(|| format!("no counter: {json}"))
    }
}

struct RealKubelets {
    nodes: Arc<TwoNodes>,
    program: PathBuf,
    pods: PodNamespaces,
    /// By UID.
    running: BTreeMap<String, RunningPod>,
    commands: Arc<Mutex<Vec<Vec<String>>>>,
}

struct RunningPod {
    name: String,
    /// Which of the nodes it is on.
    node: usize,
    program: Child,
    pod: Pod,
}

impl Kubelets for RealKubelets {
    fn start(&mut self, object: &Value) -> Result<Vec<IpAddr>> {
        let text = |key: &str| object["metadata"][key].as_str().context("no text");
        let (name, uid) = (format!("{}/{}", text("namespace")?, text("name")?), text("uid")?);
        let container = &object["spec"]["containers"][0];
        ensure!(container["image"] == "denizen", "{container}");
        let mut hosts = self.nodes.hosts.iter();
        let node = hosts.position(|host| object["spec"]["nodeName"] == *host.node.name);
        let node = node.context("no such node")?;
        // On one node servers are routed to, and newcomers behind a bridge; on the other not so.
        let is_routed = name.contains("/server") == (node == 0);
        let wiring = if is_routed { Wiring::Routed } else { Wiring::Bridged };
        let pod = self.nodes.attach_with_uid(node, (&name, uid), wiring)?;
        let args = container["args"].as_array().into_iter().flatten();
        let args: Vec<String> = args.filter_map(|word| word.as_str().map(str::to_owned)).collect();
        self.commands.lock().expect("nobody panics with it").push(args.clone());
        let mut command = Command::new(&self.program);
        command.args(args).uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
        let program = pod.netns.run(|| command.spawn())??;
        let ips = pod.addresses.clone();
        let mut pods = self.pods.lock().expect("nobody panics with it");
        pods.insert(name.clone(), pod.netns.path());
        self.running.insert(uid.to_owned(), RunningPod { name, node, program, pod });
        Ok(ips)
    }

    fn end(&mut self, uid: &str) {
        let Some(RunningPod { name, node, mut program, pod }) = self.running.remove(uid) else {
            return;
        };
        self.pods.lock().expect("nobody panics with it").remove(&name);
        let _ = program.kill();
        let _ = program.wait();
        if let Err(error) = pod.detach(&self.nodes.hosts[node].netns) {
            eprintln!("{name}: {error:#}");
        }
    }
}
