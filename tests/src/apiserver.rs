//! The agent with a real kube-apiserver: what its lists and a change cost. `tests/apiserver` runs
//! this.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::agent::{Agent, Objects, Settings};
use crate::bench::Memory;
use crate::bench::timing::text;
use crate::compare::test_bed::{NODE, TestBed};
use crate::eventually::observed;
use crate::peers::api::release;

/// A busy machine's server takes its time for thousands of objects.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLICIES: usize = 10;
/// The kinds that every API server has.
const KINDS: [&str; 6] =
    ["Services", "EndpointSlices", "Nodes", "Namespaces", "Pods", "NetworkPolicies"];

/// Runs the agent with its documented role against this kube-apiserver, which has so many Services
/// and pods. Returns a table of what each kind cost, and what `status` says.
pub fn measure(program: &Path, services: usize, pods: usize) -> Result<String> {
    let test_bed = TestBed::new(services, Some(program))?;
    let (pods, policies) = (objects(pods, pod), objects(POLICIES, policy));
    test_bed.api.put_all(&pods)?;
    test_bed.api.put_all(&policies)?;

    let begun = Instant::now();
    let mut agent = Agent::spawn(&test_bed.node, settings(&test_bed)?)?;
    agent.quiet();
    // At first the agent has no socket to ask.
    let status = || Ok(agent.ask_directly(&json!({ "status": {} })).ok());
    let is_over = |status: &Option<Value>| status.as_ref().is_some_and(is_listed);
    let status = observed("each kind listed, or refused", TIMEOUT, status, is_over)?;
    let listed = begun.elapsed();
    let memory = Memory::of(agent.pid())?;
    let status = status.context("the status")?;

    let mut table = format!(
        "kube-apiserver {}, {services} Services, {} pods, {POLICIES} NetworkPolicies: listed after \
         {}; the agent had {} MiB of memory at most.\n\n\
         | kind | lists | answers | bytes | a change | until the agent has it |\n\
         | --- | --- | --- | ---: | ---: | ---: |\n",
        release(program)?,
        pods.len(),
        text(listed),
        memory.most / 1024,
    );
    let changed = [pods, policies, test_bed.last_objects()].concat();
    for kind in status["api"].as_array().context("no kinds")? {
        let name = kind["kind"].as_str().context("a kind's name")?;
        let cost = match changed.iter().rfind(|object| name == plural(object)) {
            // The kind is not watched, so the agent would get no event.
            Some(_) if !is_watched(kind) => None,
            Some(object) => Some(change(&test_bed, &agent, object, name)?),
            None => None,
        };
        let (bytes, took) = cost.map_or(("–".into(), "–".into()), |(bytes, took)| {
            (format!("{bytes} B"), text(took))
        });
        let (lists, answers) = (counts(&kind["lists"]), counts(&kind["answers"]));
        writeln!(table, "| {name} | {lists} | {answers} | {} | {bytes} | {took} |", kind["bytes"])?;
    }
    let status = agent.status()?;
    for key in ["waitingFor", "errors"] {
        for line in status[key].as_array().into_iter().flatten() {
            writeln!(table, "\n{key}: {}", line.as_str().unwrap_or_default())?;
        }
    }
    Ok(table)
}

fn settings(test_bed: &TestBed) -> Result<Settings> {
    let run_dir = test_bed.folder.path().join("run");
    std::fs::create_dir_all(&run_dir)?;
    Ok(Settings {
        program: None,
        objects: Objects::Kubeconfig(test_bed.kubeconfig().to_owned()),
        run_dir,
        node_name: NODE.to_owned(),
        flags: vec!["--network-policy=on".to_owned()],
    })
}

/// Whether each kind that every server has is either watched or named in an error of `status`.
fn is_listed(status: &Value) -> bool {
    let errors = status["errors"].to_string();
    KINDS.iter().all(|name| {
        let mut kinds = status["api"].as_array().into_iter().flatten();
        errors.contains(name) || kinds.any(|kind| kind["kind"] == *name && is_watched(kind))
    })
}

/// Whether a list and a watch of the kind were answered.
fn is_watched(kind: &Value) -> bool {
    let answers = kind["answers"].as_object().into_iter().flatten();
    answers.filter_map(|(_, count)| count.as_u64()).sum::<u64>() > 1
}

/// Changes an object, and waits until the agent has the event. Returns the bytes that the agent
/// received for the kind, and how long it took.
fn change(
    test_bed: &TestBed,
    agent: &Agent,
    object: &Value,
    kind: &str,
) -> Result<(u64, Duration)> {
    let cost = || -> Result<(u64, u64)> {
        let status = agent.ask_directly(&json!({ "status": {} }))?;
        let mut kinds = status["api"].as_array().into_iter().flatten();
        let of = kinds.find(|of| of["kind"] == kind).context("the kind")?;
        Ok((of["events"].as_u64().unwrap_or_default(), of["bytes"].as_u64().unwrap_or_default()))
    };
    let mut changed = object.clone();
    changed["metadata"]["labels"]["changed"] = "yes".into();
    let (events, before) = cost()?;
    let begun = Instant::now();
    test_bed.api.put(&changed)?;
    let (_, after) = observed("changed", TIMEOUT, cost, |(now, _)| *now > events)?;
    Ok((after - before, begun.elapsed()))
}

fn counts(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let counts = counts.map(|(name, count)| format!("{count} {name}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// The plural of the object's kind, as in `status`.
fn plural(object: &Value) -> String {
    match object["kind"].as_str().unwrap_or_default() {
        "NetworkPolicy" => "NetworkPolicies".to_owned(),
        kind => format!("{kind}s"),
    }
}

fn objects(count: usize, object: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(object).collect()
}

fn pod(number: usize) -> Value {
    let first = u32::from(Ipv4Addr::new(10, 192, 0, 1));
    let ip = Ipv4Addr::from(first + u32::try_from(number).expect("a few thousands"));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "default", "name": format!("pod-{number}"),
            "labels": { "app": format!("app-{}", number % POLICIES) },
        },
        "spec": {
            "nodeName": "node-2",
            "containers": [{ "name": "web", "image": "registry.example/web:1" }],
        },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
    })
}

fn policy(number: usize) -> Value {
    let labels = |number: usize| json!({ "matchLabels": { "app": format!("app-{number}") } });
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": format!("policy-{number}") },
        "spec": {
            "podSelector": labels(number),
            "ingress": [{ "from": [{ "podSelector": labels((number + 1) % POLICIES) }] }],
        },
    })
}
