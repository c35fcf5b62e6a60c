//! Real agents, each in a network namespace of its own, and real processes in their containers.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::node::manifest::{self, Manifests};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::workstation::{Workstation, agent_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// A node with an agent.
pub struct AgentNode {
    pub agent: Agent,
    pub netns: Netns,
}

pub fn hosts(workstation: &Workstation, number: usize) -> Result<Vec<AgentNode>> {
    let manifests = Manifests::in_folder(&workstation.folder.path().join("manifests"))?;
    let ips = [ip("172.30.0.10")];
    manifests
        .put("web", &[manifest::service("web", &ips, &[manifest::Port::tcp("http", 80, 8080)])])?;
    let host = |at: usize| {
        let (node, address) = (format!("n{at}"), format!("192.168.0.{}", at + 1));
        let netns = Netns::new(&format!("fleet{at}"))?;
        netns.ip(&format!(
            "link add eth0 type veth peer name eth1\nlink set eth1 up\nlink set eth0 up\n\
             addr add {address}/24 dev eth0\n"
        ))?;
        let run_dir = workstation.folder.path().join(format!("run-{at}"));
        fs::create_dir_all(&run_dir)?;
        workstation.node(&node, &address)?;
        let flags = [format!("--run-dir={}", run_dir.display())];
        workstation.agent(&node, &json!({ "running": {} }), &flags)?;
        let settings = Settings {
            program: None,
            objects: Objects::Manifests(manifests.folder().to_owned()),
            run_dir,
            node_name: node,
            flags: Vec::new(),
        };
        Ok(AgentNode { agent: Agent::start(&netns, settings)?, netns })
    };
    let hosts: Vec<AgentNode> = (0..number).map(host).collect::<Result<_>>()?;
    let named = hosts.iter().enumerate();
    let named = named.map(|(at, host)| (format!("n{at}"), host.netns.path()));
    workstation.execute_on_nodes(agent_program()?, named);
    Ok(hosts)
}

/// Five agents answer; then one is stopped, one crashes, and a node has none.
#[test]
fn five_real_agents_answer_and_then_three() -> Result<()> {
    let workstation = Workstation::new("fleet")?;
    let mut hosts = hosts(&workstation, 5)?;
    let output = workstation.json(&["status"], 0)?.json()?;
    let all = output["statuses"].as_array().context("no statuses")?;
    ensure!(all.len() == 5, "{output:#}");
    for of in all {
        let is_programmed = of["status"]["synced"] == true && of["status"]["services"] == 1;
        ensure!(is_programmed && of["release"] == env!("CARGO_PKG_VERSION"), "{of:#}");
    }
    every_verb_is_answered(&workstation)?;

    let stopped = Pid::from_raw(i32::try_from(hosts[3].agent.pid())?);
    kill(stopped, Signal::SIGSTOP)?;
    hosts[4].agent.stop_now();
    hosts[4].agent.quiet();
    workstation.agent("n4", &json!({ "waiting": { "reason": "CrashLoopBackOff" } }), &[])?;
    workstation.node("n5", "192.168.0.77")?;
    let began = Instant::now();
    let output = workstation.json(&["status"], 3)?;
    eprintln!("one agent is stopped, one crashes: {:?}", began.elapsed());
    ensure!(output.json()?["statuses"].as_array().map(Vec::len) == Some(3), "{output:#?}");
    let expected = [
        ("n3", "failed", "it is stopped, or hangs"),
        ("n4", "not-running", "CrashLoopBackOff"),
        ("n5", "no-agent", "no pod of denizen"),
    ];
    for (node, code, words) in expected {
        let (found, reason) = output.unanswered(node)?;
        ensure!(found == code && reason.contains(words), "{node}: {found}: {reason}");
    }
    kill(stopped, Signal::SIGCONT)?;
    Ok(())
}

fn every_verb_is_answered(workstation: &Workstation) -> Result<()> {
    // The machine's own CNI configuration is not ours, so there may be failures.
    let check = workstation.run(&["check", "-o", "json"])?;
    ensure!(matches!(check.code, 0 | 1) && check.json()?["unanswered"] == json!([]), "{check:#?}");
    ensure!(check.json()?["passed"].as_u64() > Some(20), "{check:#?}");
    let drops = workstation.json(&["drops"], 0)?.json()?;
    ensure!(drops["drops"].is_array() && drops["nodes"] == 5, "{drops:#}");
    let connections = workstation.json(&["connections"], 0)?.json()?;
    ensure!(connections["connections"].is_array() && connections["nodes"] == 5, "{connections:#}");
    let web = workstation.json(&["services", "web"], 0)?.json()?;
    ensure!(web["services"].as_array().map(Vec::len) == Some(1), "{web:#}");
    ensure!(web["services"][0]["nodes"].as_array().map(Vec::len) == Some(5), "{web:#}");
    ensure!(web["services"][0]["frontends"][0]["inside"] == "reject", "{web:#}");
    let all = workstation.json(&["services"], 0)?.json()?;
    ensure!(all["services"][0]["name"] == "default/web", "{all:#}");

    let folder = workstation.folder.path().join("bundle");
    let folder = folder.to_str().context("a path")?;
    let bundle = workstation.json(&["bundle", folder], 0)?.json()?;
    ensure!(bundle["missing"] == json!({}), "{bundle:#}");
    for file in ["status.json", "check.json", "drops.json", "view.json", "agent.log"] {
        let name = format!("node-n4/{file}");
        let bytes = fs::metadata(format!("{folder}/{name}"))?.len();
        ensure!(bytes > 0 && bundle["files"][&name] == bytes, "{name}: {bundle:#}");
    }
    // Nothing that could hold a secret was asked for.
    for request in workstation.api.requests() {
        let is_secret = ["secrets", "configmaps"].iter().any(|word| request.path.contains(word));
        ensure!(!is_secret, "{request:?}");
    }
    let again = workstation.run(&["bundle", folder])?;
    ensure!(again.code == 2 && again.stderr.contains("cannot make"), "{again:#?}");
    Ok(())
}
