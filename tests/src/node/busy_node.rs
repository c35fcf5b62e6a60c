//! A node with busy processors: the agent has the weight of its CPU request, and hundreds of pods
//! are added at once.
//!
//! ```text
//!   all ─ system          the plugins, as what the container runtime starts
//!       ─ pods ─ agent    what its container requests
//!              ─ loop     a busy loop, in a pod that requests a processor; one for each processor
//!       ─ elsewhere       the API server, which is in this process
//! ```

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::{Agent, Objects, Settings};
use crate::node::cgroup::{self, CpuGroup};
use crate::node::cni::{Call, denizen};
use crate::node::manifest;
use crate::node::netns::{self, Netns};
use crate::peers::api::{Api, ApiServer};

/// The node's name.
const NODE: &str = "node-1";
/// The node's address, and the API server's.
const ADDRESS: &str = "192.168.0.2";
const API: &str = "192.168.0.1:6443";
/// The agent must make its first rules beside the busy loops.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The node. No pod is attached yet.
#[derive(Debug)]
pub struct BusyNode {
    loops: Vec<BusyLoop>,
    agent: Agent,
    groups: Option<Groups>,
    node: Netns,
    pods: Netns,
    _api: ApiServer,
    folder: TempDir,
    plugin: PathBuf,
    count: usize,
}

/// The programs that are used.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The agent's; `None`: this workspace's.
    pub agent: Option<PathBuf>,
    /// The plugin's.
    pub plugin: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { agent: None, plugin: denizen() }
    }
}

/// The results of the ADDs.
#[derive(Debug)]
pub struct AddedPods {
    /// How long each plugin ran.
    pub took: Vec<Duration>,
    /// What plugins wrote to standard error.
    pub complaints: Vec<String>,
    /// The processor time that all threads of the agent used meanwhile.
    pub used: Duration,
    /// How long the agent's main thread was runnable meanwhile without getting a processor.
    pub delayed: Duration,
}

impl BusyNode {
    /// A node with the API objects and the interfaces of `count` pods. The agent requests `millis`
    /// thousandths of a processor.
    pub fn start(programs: Programs, count: usize, millis: u64) -> Result<Self> {
        let folder = netns::folder()?;
        let (node, pods) = (Netns::new("busy-node")?, Netns::new("busy-pods")?);
        let api = Self::prepare(&node, &pods, folder.path(), count)?;
        let run_dir = folder.path().join("run");
        fs::create_dir_all(&run_dir)?;
        let settings = Settings {
            program: programs.agent,
            objects: Objects::Kubeconfig(api.kubeconfig().to_owned()),
            run_dir,
            node_name: NODE.to_owned(),
            flags: vec!["--network-policy=on".to_owned()],
        };
        let mut agent = Agent::spawn(&node, settings)?;
        agent.quiet();
        agent.wait_programmed(START_TIMEOUT)?;
        let groups = Groups::new(millis)?;
        groups.agent.take(agent.pid())?;
        groups.elsewhere.take(std::process::id())?;
        let loops = groups.loops.iter().map(BusyLoop::start).collect::<Result<_>>()?;
        Ok(Self {
            loops,
            agent,
            groups: Some(groups),
            node,
            pods,
            _api: api,
            folder,
            plugin: programs.plugin,
            count,
        })
    }

    /// Makes the links, and an API server with the cluster's objects.
    fn prepare(node: &Netns, pods: &Netns, folder: &Path, count: usize) -> Result<ApiServer> {
        let mut links = format!(
            "link add eth0 type veth peer name up0 netns {pods}\n\
             addr add {ADDRESS}/24 dev eth0\nlink set eth0 up\n\
             link add cni0 type bridge\naddr add 10.10.0.1/16 dev cni0\nlink set cni0 up\n",
            pods = pods.name()
        );
        for number in 0..count {
            links += &format!(
                "link add veth{number} master cni0 type veth peer name p{number} netns {}\n\
                 link set veth{number} up\n",
                pods.name()
            );
        }
        node.ip(&links)?;
        let api: SocketAddr = API.parse()?;
        pods.ip(&format!("addr add {}/24 dev up0\nlink set up0 up", api.ip()))?;
        let server = ApiServer::start(pods, api, &Self::subfolder(folder, "api")?)?;
        server.put(&manifest::node(NODE, &[ADDRESS.parse()?], ""))?;
        server.put(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "shop", "labels": { "kubernetes.io/metadata.name": "shop" } },
        }))?;
        server.put(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": "shop", "name": "friends" },
            "spec": {
                "podSelector": { "matchLabels": { "role": "0" } },
                "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "role": "1" } } }] }],
            },
        }))?;
        for number in 0..count {
            server.put(&json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "namespace": "shop", "name": format!("p{number}"),
                    "uid": format!("uid-p{number}"), "labels": { "role": (number % 3).to_string() },
                },
                "spec": { "nodeName": NODE, "containers": [] },
                "status": { "phase": "Pending" },
            }))?;
        }
        Ok(server)
    }

    fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
        let path = folder.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// What its agent has logged.
    pub fn log(&self) -> String {
        self.agent.log()
    }

    /// A value of its agent's metrics.
    pub fn metric(&self, series: &str) -> Result<f64> {
        crate::packets::http::metric(&self.node, series)
    }

    /// Attaches all pods at once, each by a process of the plugin's own, which waits for the agent
    /// as `wait` says.
    pub fn add_all(&self, wait: &Value) -> Result<AddedPods> {
        let inputs = Self::subfolder(self.folder.path(), "inputs")?;
        for number in 0..self.count {
            let input = self.configuration(number, wait).to_string();
            fs::write(inputs.join(format!("{number}")), input)?;
        }
        let before = Usage::of(self.agent.pid())?;
        let took = self.node.run(|| {
            thread::scope(|scope| {
                let add = |number| {
                    let inputs = &inputs;
                    scope.spawn(move || self.add(inputs, number))
                };
                let adding: Vec<_> = (0..self.count).map(add).collect();
                let took = adding.into_iter().map(|add| add.join().expect("nobody panics"));
                took.collect::<Result<Vec<_>>>()
            })
        })??;
        let after = Usage::of(self.agent.pid())?;
        let complaint = |number| fs::read_to_string(inputs.join(format!("{number}.err")));
        let complaints = (0..self.count).map(complaint).collect::<Result<Vec<_>, _>>()?;
        Ok(AddedPods {
            took,
            complaints: complaints.into_iter().filter(|text| !text.is_empty()).collect(),
            used: after.used - before.used,
            delayed: after.delayed - before.delayed,
        })
    }

    fn add(&self, inputs: &Path, number: usize) -> Result<Duration> {
        // As a runtime's ids, they differ in their first digits.
        let container =
            format!("{:016x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4);
        let mut call = Call::of_pod(&container, &format!("shop/p{number}"), &self.pods.path());
        call.interface = format!("p{number}");
        call.args = call.args.replace(&format!("uid-{container}"), &format!("uid-p{number}"));
        let system = &self.groups.as_ref().context("they end with the value")?.system;
        let mut plugin = Command::new("/bin/sh");
        plugin.args(["-c", "echo 0 > \"$0\" && exec \"$1\""]).arg(system.procs()).arg(&self.plugin);
        plugin.env_clear().envs(call.environment("ADD"));
        plugin.stdin(File::open(inputs.join(number.to_string()))?).stdout(Stdio::null());
        plugin.stderr(File::create(inputs.join(format!("{number}.err")))?);
        let begun = Instant::now();
        let status = plugin.status()?;
        ensure!(status.success(), "pod {number}: {status}");
        Ok(begun.elapsed())
    }

    fn configuration(&self, number: usize, wait: &Value) -> Value {
        let address = format!("10.10.{}.{}/16", 1 + number / 200, 1 + number % 200);
        json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "denizen",
            "runDir": self.agent.run_dir(), "waitForAgent": wait,
            "prevResult": {
                "cniVersion": "1.0.0",
                "interfaces": [
                    { "name": format!("veth{number}") },
                    { "name": format!("p{number}"), "sandbox": self.pods.path() },
                ],
                "ips": [{ "address": address, "interface": 1 }],
            },
        })
    }
}

impl Drop for BusyNode {
    fn drop(&mut self) {
        // A cgroup with processes cannot be removed.
        self.loops.clear();
        self.agent.stop_now();
    }
}

/// The cgroups that compete for the processors.
#[derive(Debug)]
struct Groups {
    agent: CpuGroup,
    loops: Vec<CpuGroup>,
    _pods: CpuGroup,
    system: CpuGroup,
    elsewhere: CpuGroup,
    _all: CpuGroup,
}

impl Groups {
    fn new(millis: u64) -> Result<Self> {
        let processors = thread::available_parallelism()?.get() as u64;
        // A heavy group around all of it, so that other work on the machine does not matter.
        let all = CpuGroup::new("busy", 100 * 1000)?;
        let pods = all.child("pods", 1000 * processors)?;
        let busy = |number| pods.child(&format!("loop-{number}"), 1000);
        Ok(Self {
            agent: pods.child("agent", millis)?,
            loops: (0..processors).map(busy).collect::<Result<_>>()?,
            _pods: pods,
            system: all.child("system", 1000)?,
            elsewhere: all.child("elsewhere", 1000 * processors)?,
            _all: all,
        })
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = cgroup::leave();
    }
}

/// A process that always runs.
#[derive(Debug)]
struct BusyLoop(Child);

impl BusyLoop {
    fn start(group: &CpuGroup) -> Result<Self> {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let busy = Self(child.context("cannot run sh")?);
        group.take(busy.0.id())?;
        Ok(busy)
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a process used, and waited for, the processors.
#[derive(Debug, Clone, Copy)]
struct Usage {
    used: Duration,
    /// How long its main thread was runnable without getting a processor.
    delayed: Duration,
}

impl Usage {
    fn of(process: u32) -> Result<Self> {
        let (_, delayed) = Self::of_thread(&format!("/proc/{process}"))?;
        let mut used = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            used += Self::of_thread(&thread?.path().to_string_lossy())?.0;
        }
        Ok(Self { used, delayed })
    }

    fn of_thread(folder: &str) -> Result<(Duration, Duration)> {
        let text = fs::read_to_string(format!("{folder}/schedstat"))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let mut next = || -> Result<Duration> {
            Ok(Duration::from_nanos(numbers.next().context("a number is missing")??))
        };
        Ok((next()?, next()?))
    }
}
