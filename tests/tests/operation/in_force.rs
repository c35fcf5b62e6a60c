//! What is in force, as other components of Kubernetes show it: `/configz`, `/flagz`, `/statusz`;
//! and the log's level, which changes while the agent runs.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{Reply, fetch, url};
use serde_json::{Value, json};

const METRICS: u16 = 10249;

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

fn page(node: &Netns, path: &str, more: &[&str]) -> Result<Reply> {
    fetch(node, &url(ip("127.0.0.1"), METRICS, path), more)
}

#[test]
fn flags_and_settings_are_shown_from_wherever_they_come() -> Result<()> {
    let cluster = Cluster::new("force-show", &Value::Null)?;
    let file = cluster.world.subfolder("config")?.join("config.yaml");
    let text = "apiVersion: denizen.io/v1alpha1\nkind: DenizenConfiguration\n\
                masqueradeAll: true\nconntrack:\n  min: \"70000\"\n";
    std::fs::write(&file, text)?;
    let config = format!("--config={}", file.display());
    let _agent =
        cluster.start_agent_with([config.as_str(), "--nodeport-addresses=192.168.0.0/16"])?;
    let node = &cluster.world.node;
    let flags = page(node, "/flagz", &[])?;
    ensure!(flags.status == 200, "{flags:?}");
    for line in [
        "masquerade-all=true",
        "conntrack-min=70000",
        "nodeport-addresses=192.168.0.0/16",
        "healthz-bind-address=0.0.0.0:10256",
        "backend=auto",
    ] {
        ensure!(flags.body.lines().any(|shown| shown == line), "{line}: {}", flags.body);
    }
    let settings = page(node, "/configz", &[])?.json()?;
    let settings = &settings["denizen.io"];
    assert_eq!(settings["kind"], "DenizenConfiguration");
    assert_eq!(settings["masqueradeAll"], true);
    assert_eq!(settings["conntrack"]["min"], "70000");
    assert_eq!(settings["nodePortAddresses"], json!(["192.168.0.0/16"]));
    assert_eq!(settings["backend"], "nftables", "in place of auto");
    let status = page(node, "/statusz", &[])?.body;
    for part in ["Started: 2", "Up: 0 hr", "Binary version: ", "Backend: nftables", "Log level: "] {
        ensure!(status.contains(part), "{part}: {status}");
    }
    // As the metrics: for this node alone, and nobody changes anything there.
    let rebound = page(node, "/configz", &["--header", "Host: example.org"])?;
    assert_eq!(rebound.status, 421);
    assert_eq!(page(node, "/flagz", &["--request", "PUT"])?.status, 405);
    Ok(())
}

/// `denizen-agent log-level` with these words.
fn log_level(cluster: &Cluster, agent: &Agent, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("log-level").arg("--run-dir").arg(agent.run_dir()).args(words);
    Ok(cluster.world.node.run(|| command.output())??)
}

fn service(port: u16) -> Value {
    let ports = [json!({ "name": "http", "port": port, "protocol": "TCP" })];
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "default", "name": "web" },
        "spec": { "clusterIP": "172.30.0.10", "clusterIPs": ["172.30.0.10"], "ports": ports },
    })
}

#[test]
fn the_log_level_is_changed_while_the_agent_runs() -> Result<()> {
    let cluster = Cluster::new("force-log", &Value::Null)?;
    let agent = cluster.start_agent()?;
    let printed = |words: &[&str]| -> Result<String> {
        let output = log_level(&cluster, &agent, words)?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let at_start = printed(&[])?;
    let debugs = || agent.log().matches("DEBUG").count();
    let changed = printed(&["trace"])?;
    ensure!(changed.starts_with("trace (at the start: "), "{changed}");
    let (before, mut port) = (debugs(), 1000);
    eventually("more is logged", TIMEOUT, || {
        // A change that is programmed.
        port += 1;
        cluster.manifests.put("web", &[service(port)])?;
        Ok(debugs() > before)
    })?;
    let json: Value = serde_json::from_str(&printed(&["--output", "json"])?)?;
    assert_eq!(json["level"], "trace");
    let wrong = log_level(&cluster, &agent, &["verbose"])?;
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure!(!wrong.status.success() && error.contains("\"verbose\" is no level"), "{error}");
    ensure!(printed(&[])?.starts_with("trace "), "a wrong level changes nothing");
    assert_eq!(printed(&["--reset"])?, at_start);
    let status = page(&cluster.world.node, "/statusz", &[])?.body;
    ensure!(status.contains(&format!("Log level: {}", at_start.trim())), "{status}");
    Ok(())
}
