//! How much memory the agent takes when a policy forbids every connection of a node.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use denizen_conntrack::Conntrack;
use denizen_model::Family;
use denizen_packet::FlowSelection;
use denizen_plan::MarkBit;
use denizen_state::{Attachment, HostInterface, PodRef, RunDir};
use denizen_tests::bench::{MeasuredAgent, Memory, megabytes};
use denizen_tests::binary;
use denizen_tests::kernel::ctnetlink::{self, FlowEntry};
use denizen_tests::node::cni::Namespace;
use serde_json::{Value, json};

const FLOWS: u32 = 200_000;
const NODE: &str = "node-1";
const POD: &str = "10.1.2.3";
const LINK: &str = "veth1";
const INDEX: u32 = 1001;
const MAC: &str = "02:00:00:00:00:01";
/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait after a change, so that memory taken right after it is counted too.
const AFTER: Duration = Duration::from_secs(3);

/// Measures and prints it. `DENIZEN_BENCH_AGENT` names another agent's program.
pub fn report() -> Result<()> {
    println!("\n## {FLOWS} connections of one pod, which a policy forbids\n");
    let (node, folder) = (Namespace::new(), tempfile::tempdir()?);
    let [run_dir, manifests] = ["run", "manifests"].map(|name| folder.path().join(name));
    std::fs::create_dir(&manifests)?;
    write(&manifests, "facts", &facts())?;
    record(&node, &run_dir)?;
    let program = std::env::var_os("DENIZEN_BENCH_AGENT").map(Into::into);
    let program = program.map_or_else(|| binary::ours("denizen-agent"), Ok)?;
    let (objects, flags) =
        (("--manifests", &*manifests), ["--node-name", NODE, "--network-policy=on"]);
    let mut agent = MeasuredAgent::start(&node, &program, &run_dir, objects, &flags)?;
    agent.programmed(TIMEOUT, |status| status["pods"] == 1)?;
    node.run(|| ctnetlink::fill(FLOWS, flow))?;
    sleep(AFTER);
    show(&agent, "before")?;
    write(&manifests, "policy", &policy())?;
    let begun = Instant::now();
    until("all are forbidden", || Ok(node.run(forbidden)? == FLOWS as usize))?;
    println!("all forbidden within {:.1?}", begun.elapsed());
    sleep(AFTER);
    show(&agent, "while they are forbidden")?;
    std::fs::remove_file(manifests.join("policy.json"))?;
    until("none is forbidden", || Ok(node.run(forbidden)? == 0))?;
    sleep(AFTER);
    show(&agent, "when they are permitted again")
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
        further_interfaces: Vec::new(),
        host_ports_adopted: false,
        host_ports: Vec::new(),
        unknown: Default::default(),
    };
    RunDir::create(run_dir)?.update(TIMEOUT, |state| {
        state.attachments.insert(record.id(), record);
    })?;
    Ok(())
}

fn flow(n: u32) -> FlowEntry {
    let client = format!("10.8.{}.{}:{}", n / 50_000, n % 50, 10_000 + n % 50_000 / 50);
    let server = format!("{POD}:80").parse().expect("an address");
    FlowEntry { client: client.parse().expect("an address"), frontend: server, endpoint: server }
}

fn forbidden() -> Result<usize> {
    let mut count = 0;
    let all = FlowSelection { family: Family::V4, protocol: None, unanswered_syns: false };
    Conntrack::open(MarkBit::FORBIDDEN.mask())?
        .read(all, |entry| count += usize::from(entry.is_marked))?;
    Ok(count)
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Prints the memory that the agent holds, and the most that it held since the last call.
fn show(agent: &MeasuredAgent, when: &str) -> Result<()> {
    let [now, most] = {
        let memory = Memory::of(agent.pid())?;
        [memory.resident, memory.most].map(megabytes)
    };
    println!("{when:<32}{now:>7.1} MB resident, {most:.1} MB at most");
    Ok(std::fs::write(format!("/proc/{}/clear_refs", agent.pid()), "5")?)
}
