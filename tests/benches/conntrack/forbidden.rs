//! What the agent's memory is when a policy forbids every connection of a node.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_conntrack::Conntrack;
use denizen_model::Family;
use denizen_packet::FlowSelection;
use denizen_plan::MarkBit;
use denizen_state::{Attachment, HostInterface, PodRef, RunDir};
use denizen_tests::binary;
use denizen_tests::cni::Namespace;
use denizen_tests::ctnetlink::{self, Flow};
use serde_json::{Value, json};

const FLOWS: u32 = 200_000;
const NODE: &str = "node-1";
const POD: &str = "10.1.2.3";
const LINK: &str = "veth1";
const INDEX: u32 = 1001;
const MAC: &str = "02:00:00:00:00:01";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What comes right after a change belongs to it.
const AFTER: Duration = Duration::from_secs(3);

/// Measures and prints it. `DENIZEN_BENCH_AGENT` is another agent's program.
pub fn report() -> Result<()> {
    println!("\n## {FLOWS} connections of one pod, which a policy forbids\n");
    let (node, folder) = (Namespace::new(), tempfile::tempdir()?);
    let [run_dir, manifests] = ["run", "manifests"].map(|name| folder.path().join(name));
    std::fs::create_dir(&manifests)?;
    write(&manifests, "facts", &facts())?;
    record(&node, &run_dir)?;
    let program = std::env::var_os("DENIZEN_BENCH_AGENT").map(Into::into);
    let program = program.map_or_else(|| binary::ours("denizen-agent"), Ok)?;
    let mut command = Command::new(&program);
    command.arg("run").arg("--run-dir").arg(&run_dir).arg("--manifests").arg(&manifests);
    command.args(["--node-name", NODE, "--cni-cache-dir", "", "--network-policy", "on"]);
    let mut agent = Running(node.spawn(command));
    until("the agent has started", || is_synced(&program, &run_dir))?;
    node.run(|| ctnetlink::fill(FLOWS, flow))?;
    sleep(AFTER);
    agent.show("before")?;
    write(&manifests, "policy", &policy())?;
    let begun = Instant::now();
    until("all are forbidden", || Ok(node.run(forbidden)? == FLOWS as usize))?;
    println!("all forbidden within {:.1?}", begun.elapsed());
    sleep(AFTER);
    agent.show("while they are forbidden")?;
    std::fs::remove_file(manifests.join("policy.json"))?;
    until("none is forbidden", || Ok(node.run(forbidden)? == 0))?;
    sleep(AFTER);
    agent.show("when they are permitted again")
}

fn write(folder: &Path, name: &str, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    Ok(std::fs::write(folder.join(format!("{name}.json")), list.to_string())?)
}

fn facts() -> [Value; 3] {
    [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "uid": "u-1"},
            "spec": {"nodeName": NODE},
            "status": {"phase": "Running", "podIP": POD, "podIPs": [{"ip": POD}]},
        }),
    ]
}

fn policy() -> [Value; 1] {
    [json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "deny", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    })]
}

fn record(node: &Namespace, run_dir: &Path) -> Result<()> {
    node.ip(&format!("link add {LINK} index {INDEX} address {MAC} type veth peer name {LINK}p"));
    let record = Attachment {
        container_id: "c1".to_owned(),
        if_name: "eth0".to_owned(),
        network: "pods".to_owned(),
        pod: Some(PodRef {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: Some("u-1".to_owned()),
            unknown: Default::default(),
        }),
        netns: None,
        host_interface: Some(HostInterface {
            name: LINK.to_owned(),
            index: INDEX,
            mac: MAC.to_owned(),
            unknown: Default::default(),
        }),
        l3_interface: None,
        bridge: None,
        mac: None,
        ips: vec![POD.parse()?],
        added_at: "2026-11-20T12:00:00Z".to_owned(),
        adopted: false,
        redirect: None,
        obsolete_redirects: Vec::new(),
        unknown: Default::default(),
    };
    RunDir::create(run_dir)?.update(PATIENCE, |state| {
        state.attachments.insert(record.id(), record);
    })?;
    Ok(())
}

fn flow(n: u32) -> Flow {
    let client = format!("10.8.{}.{}:{}", n / 50_000, n % 50, 10_000 + n % 50_000 / 50);
    let server = format!("{POD}:80").parse().expect("an address");
    Flow { client: client.parse().expect("an address"), frontend: server, endpoint: server }
}

fn forbidden() -> Result<usize> {
    let mut count = 0;
    let all = FlowSelection { family: Family::V4, protocol: None, unanswered_syns: false };
    Conntrack::open(MarkBit::FORBIDDEN.mask())?
        .read(all, |entry| count += usize::from(entry.is_marked))?;
    Ok(count)
}

fn is_synced(program: &Path, run_dir: &Path) -> Result<bool> {
    let mut command = Command::new(program);
    command.args(["status", "--output", "json"]).arg("--run-dir").arg(run_dir);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(status["synced"] == true && status["pods"] == 1)
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// The agent. It ends with this value.
struct Running(Child);

impl Running {
    /// What it holds, and the most that it held since the last call.
    fn show(&mut self, when: &str) -> Result<()> {
        let folder = format!("/proc/{}", self.0.id());
        let text = std::fs::read_to_string(format!("{folder}/status"))?;
        let of = |name: &str| -> Result<f64> {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
            let kibibytes = line.split_whitespace().next().context("no number")?;
            Ok(kibibytes.parse::<f64>()? * 1024.0 / 1e6)
        };
        let (now, most) = (of("VmRSS:")?, of("VmHWM:")?);
        println!("{when:<32}{now:>7.1} MB resident, {most:.1} MB at most");
        Ok(std::fs::write(format!("{folder}/clear_refs"), "5")?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
