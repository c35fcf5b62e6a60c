//! Pods on two real nodes with real agents.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::workstation::CommandOutput;
use serde_json::{Value, json};

use super::nodes::ClusterOfTwo;
use super::{PREFIX, TIMEOUT};

/// The nodes' ranges of pods, services and nodes, as texts begin with them, and a pod itself.
const CLUSTER: [&str; 8] = [
    "10.10.",
    "10.11.",
    "fd00:10:",
    "fd00:11:",
    "172.30.1.",
    "fd00:172::1:",
    "192.168.0.",
    "127.0.0.1",
];

/// Every kind that needs nothing outside of the cluster.
const KINDS: [&str; 5] = ["pod", "cluster-ip", "node-port", "hairpin", "policy"];

/// Of another program, on the second node, for connections from the first.
const STRICT: &str = "table ip strict {
    chain forward {
        type filter hook forward priority 10
        iifname eth0 ip saddr 10.11.1.0/24 tcp dport 8080 drop comment \"no web\"
    }
}";

fn nothing_is_left(cluster: &ClusterOfTwo) -> Result<()> {
    for plural in ["namespaces", "pods", "services", "networkpolicies"] {
        for object in cluster.workstation.api.objects(plural) {
            let metadata = &object["metadata"];
            let text = format!("{}/{}", metadata["namespace"], metadata["name"]);
            ensure!(!text.contains(PREFIX), "{plural}: {text}");
        }
    }
    for host in &cluster.nodes.hosts {
        let agent = host.agent()?;
        let pods = || Ok(agent.ask_directly(&json!({ "status": {} }))?["pods"] == 0);
        eventually("no pod is left on the node", TIMEOUT, pods)?;
    }
    Ok(())
}

fn failures(output: &CommandOutput) -> Result<Vec<Value>> {
    Ok(output.json()?["failures"].as_array().context("no failures")?.clone())
}

#[test]
fn all_that_works_is_tested_and_gone_and_what_is_broken_is_named() -> Result<()> {
    let cluster = ClusterOfTwo::new("verb-test")?;
    let output = cluster.workstation.json(&["test"], 0)?;
    let json = output.json()?;
    ensure!(json["failures"] == json!([]) && json["unanswered"] == json!([]), "{json:#}");
    ensure!(json["notes"] == json!([]) && json["deleted"] == true, "{json:#}");
    let checks = json["checks"].as_array().context("no checks")?;
    let passed: Vec<&str> = checks.iter().filter_map(|check| check["kind"].as_str()).collect();
    ensure!(passed == KINDS, "{json:#}");
    // Two nodes, two protocols, two families.
    let count = |kind: usize| checks[kind]["passed"].as_u64().unwrap_or_default();
    ensure!([0, 1, 2, 3].map(count) == [8, 8, 16, 8], "{json:#}");
    // A newcomer asks both servers at three ports in both families, and both connect back; later
    // both ask it. One server proves that the other is there.
    ensure!(count(4) == 2 * (12 + 4 + 4) + 2, "{json:#}");
    nothing_is_left(&cluster)?;
    nothing_leaves_the_cluster(&cluster)?;
    what_another_program_drops_is_named(&cluster)?;
    nothing_is_left(&cluster)
}

/// Not from the workstation, and not from the pods.
fn nothing_leaves_the_cluster(cluster: &ClusterOfTwo) -> Result<()> {
    ensure!(cluster.elsewhere()? == 0, "the workstation asked somebody else than the API server");
    let commands = cluster.commands.lock().expect("nobody panics with it");
    let words: BTreeSet<&str> = commands.iter().flatten().map(String::as_str).collect();
    let targets = words.iter().map(|word| word.trim_start_matches("--first="));
    let targets: BTreeSet<&str> = targets.filter(|word| word.contains('/')).collect();
    ensure!(targets.len() > 20, "{words:?}");
    for target in targets {
        let (end, protocol) = target.rsplit_once('/').context("no protocol")?;
        let address: IpAddr = end.parse::<SocketAddr>().context(target.to_owned())?.ip();
        let is_nodes =
            cluster.nodes.hosts.iter().any(|host| host.node.addresses.contains(&address));
        let is_inside = CLUSTER.iter().any(|range| address.to_string().starts_with(range));
        ensure!(["tcp", "udp"].contains(&protocol) && (is_nodes || is_inside), "{target}");
    }
    Ok(())
}

fn what_another_program_drops_is_named(cluster: &ClusterOfTwo) -> Result<()> {
    let node = &cluster.nodes.hosts[1].netns;
    node.nft(STRICT)?;
    let output = cluster.workstation.json(&["test", "--skip=policy,node-port", "--timeout=24s"], 1);
    node.output("nft", &["delete table ip strict"])?;
    let output = output?;
    let failures = failures(&output)?;
    ensure!(!failures.is_empty(), "{output:#?}");
    for failure in &failures {
        let is_pair = failure["from"] == "server-0" && failure["node"] == "node-1";
        ensure!(is_pair && failure["outcome"] == "timedOut", "{failure:#}");
    }
    let pair = failures.iter().find(|failure| failure["kind"] == "pod").context("no pair")?;
    ensure!(pair["what"] == "pod server-1 on node-2", "{pair:#}");
    ensure!(pair["to"].as_str().is_some_and(|to| to.ends_with(":8080/tcp")), "{pair:#}");
    // The agents know nothing of it; the packets do.
    ensure!(pair["explained"]["verdict"] == "permitted", "{pair:#}");
    let why = pair["traced"]["packets"][0]["why"].as_str().context("no reason")?;
    ensure!(why.starts_with("dropped on node-2 by table ip strict"), "{why}");
    Ok(())
}
