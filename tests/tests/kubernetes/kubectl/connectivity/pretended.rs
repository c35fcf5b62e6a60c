//! A cluster of any size whose pods only seem to run: what their programs would say is made up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use anyhow::{Result, bail, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::peers::api::exec::{ExecRequest, Execution};
use denizen_tests::workstation::{CommandOutput, Workstation};
use serde_json::{Value, json};

use super::PREFIX;
use super::controllers::{Controllers, Kubelets};

/// What is wrong with the cluster.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// On these nodes no pod starts.
    pub broken_nodes: BTreeSet<String>,
    /// Nobody enforces policies.
    pub is_open: bool,
}

pub struct PretendedCluster {
    _controllers: Controllers,
    pub workstation: Arc<Workstation>,
    /// Of every probe: the pod that asks, and whom.
    pub probed: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl PretendedCluster {
    pub fn new(label: &str, nodes: usize, faults: Faults) -> Result<Self> {
        let workstation = Arc::new(Workstation::new(label)?);
        for node in 0..nodes {
            let name = format!("n{node:02}");
            workstation.node(&name, &format!("192.168.7.{}", node + 1))?;
            workstation.agent(&name, &json!({ "running": {} }), &[])?;
        }
        let probed = Arc::default();
        let (pods, is_open) = (Arc::new(Mutex::new(BTreeMap::new())), faults.is_open);
        let program =
            PretendedProgram { pods: Arc::clone(&pods), probed: Arc::clone(&probed), is_open };
        workstation.api.execute(Arc::new(move |request: &ExecRequest| {
            let (stdout, code) = match program.answer(request) {
                Some(answer) => (format!("{answer}\n").into_bytes(), 0),
                // The agents, who are asked for explanations.
                None => (Vec::new(), 1),
            };
            Execution::Prints { stdout, stderr: Vec::new(), code }
        }));
        let kubelets = PretendedKubelets { broken: faults.broken_nodes, pods, started: 0 };
        Ok(Self {
            _controllers: Controllers::start(workstation.clone(), kubelets),
            workstation,
            probed,
        })
    }

    /// Names of the namespaces that tests have made.
    pub fn namespaces(&self) -> Vec<String> {
        let all = self.workstation.api.objects("namespaces").into_iter();
        let names = all.filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned));
        names.filter(|name| name.starts_with(PREFIX)).collect()
    }

    /// Runs the test; nothing is left of it.
    pub fn tested(&self, words: &[&str]) -> Result<CommandOutput> {
        let output = self.workstation.run(&[&["test"], words].concat())?;
        ensure!(self.namespaces().is_empty(), "{:?} is left: {output:#?}", self.namespaces());
        let rest = || Ok(self.workstation.api.objects("pods").len());
        let agents = self.workstation.api.objects("nodes").len();
        observed("only agents are left", super::TIMEOUT, rest, |pods| *pods == agents)?;
        Ok(output)
    }
}

/// What is known of a pod that seems to run.
#[derive(Debug, Clone)]
struct PretendedPod {
    uid: String,
    name: String,
    ip: IpAddr,
    /// `permitted` or `other`; empty for a newcomer.
    class: String,
    args: Vec<String>,
}

type PretendedPods = Arc<Mutex<BTreeMap<String, PretendedPod>>>;

struct PretendedKubelets {
    broken: BTreeSet<String>,
    /// By name: one test runs at a time.
    pods: PretendedPods,
    started: u8,
}

impl Kubelets for PretendedKubelets {
    fn start(&mut self, pod: &Value) -> Result<Vec<IpAddr>> {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if self.broken.contains(node) {
            bail!("plugin denizen failed: no space left on device");
        }
        self.started = self.started.wrapping_add(1);
        let ip = IpAddr::from([10, 0, 0, self.started]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &pod["metadata"];
        let args = pod["spec"]["containers"][0]["args"].as_array().into_iter().flatten();
        let known = PretendedPod {
            uid: text(&metadata["uid"]),
            name: text(&metadata["name"]),
            ip,
            class: text(&metadata["labels"]["denizen.io/test-class"]),
            args: args.map(text).collect(),
        };
        let mut pods = self.pods.lock().expect("nobody panics with it");
        pods.insert(known.name.clone(), known);
        Ok(vec![ip])
    }

    fn end(&mut self, uid: &str) {
        self.pods.lock().expect("nobody panics with it").retain(|_, pod| pod.uid != uid);
    }
}

/// What `denizen-agent probe connect` would say in a cluster where all is well, but for the faults.
struct PretendedProgram {
    pods: PretendedPods,
    probed: Arc<Mutex<BTreeSet<(String, String)>>>,
    is_open: bool,
}

impl PretendedProgram {
    fn answer(&self, request: &ExecRequest) -> Option<Value> {
        let pods = self.pods.lock().expect("nobody panics with it");
        let client = pods.get(&request.pod).filter(|_| request.namespace.starts_with(PREFIX))?;
        let targets = request.command[3..].iter().filter(|word| !word.starts_with('-'));
        let one = |target: &String| {
            let mut probed = self.probed.lock().expect("nobody panics with it");
            probed.insert((client.name.clone(), target.clone()));
            self.probed(&pods, client, target)
        };
        Some(json!({ "probes": targets.map(one).collect::<Vec<_>>() }))
    }

    fn probed(
        &self,
        pods: &BTreeMap<String, PretendedPod>,
        client: &PretendedPod,
        target: &str,
    ) -> Value {
        let end: Option<SocketAddr> = target.split('/').next().and_then(|end| end.parse().ok());
        let Some(end) = end else { return json!({ "to": target, "outcome": "connected" }) };
        let server = pods.values().find(|pod| pod.ip == end.ip());
        let is_hidden = match server {
            _ if self.is_open => false,
            // Of the policy: newcomers may be reached by one class.
            Some(server) if server.class.is_empty() => client.class != "permitted",
            // And may reach one port.
            _ => client.class.is_empty() && end.port() == 8081,
        };
        if is_hidden && !end.ip().is_loopback() {
            return json!({ "to": target, "outcome": "timedOut", "attempts": 2 });
        }
        // Any server is behind a service; a pod itself is behind all of them.
        let name = server.map_or(&client.name, |server| &server.name);
        let mut answer = json!({
            "to": target, "outcome": "answered", "attempts": 1, "name": name, "client": client.ip,
        });
        if end.ip().is_loopback() {
            let first = client.args.iter().filter_map(|word| word.strip_prefix("--first="));
            answer["first"] = first
                .map(|target| {
                    let mut first = self.probed(pods, client, target);
                    let to = format!("{}:8080/tcp", client.ip);
                    let server = pods.values().find(|pod| first["name"] == *pod.name);
                    if let Some(server) = server.filter(|_| target.ends_with("/tcp")) {
                        first["back"] = self.probed(pods, server, &to);
                    }
                    first
                })
                .collect();
        }
        answer
    }
}
