//! Standard output and standard error that cannot be written: their reader has gone, or the disk is
//! full.

use std::fs::File;
use std::io::pipe;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Result;
use denizen_state::firewall;
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::service_ips;
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use serde_json::Value;

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Always full.
fn full() -> Result<Stdio> {
    Ok(File::options().write(true).open("/dev/full")?.into())
}

/// A pipe whose reader has gone, as after `| head -1`.
fn closed() -> Result<Stdio> {
    let (_reader, writer) = pipe()?;
    Ok(writer.into())
}

fn tables(node: &Netns) -> Result<String> {
    node.output("nft", &["list", "tables"])
}

/// A line of the log is lost. What it tells of is not.
#[test]
fn an_agent_whose_log_cannot_be_written_goes_on() -> Result<()> {
    for (label, log, format) in [
        ("lost-full", full()?, "text"),
        ("lost-pipe", closed()?, "text"),
        ("lost-json", full()?, "json"),
    ] {
        let cluster = Cluster::new(label, &Value::Null)?;
        let ports = [Port::tcp("http", 80, 8080)];
        cluster.manifests.put("web", &[manifest::service("web", &service_ips(10), &ports)])?;
        let mut program = Command::new("env");
        program.stderr(log);
        let flags = [format!("--log-format={format}")];
        let agent = WrappedAgent::start_with(&cluster, program, &flags)?;
        agent.until("programmed", |status| status["synced"] == true)?;
        let node = &cluster.world.node;
        // It repairs this, and logs it.
        node.nft("flush table ip denizen; flush table ip6 denizen")?;
        for (family, address) in [("ip", "172.30.0.10"), ("ip6", "fd00:172:30::10")] {
            let is_there = |table: &String| table.contains(address);
            let list = || node.output("nft", &["list", "table", family, "denizen"]);
            observed("repaired", TIMEOUT, list, is_there)?;
        }
        assert_eq!(agent.status()?["synced"], true, "{label}");
    }
    Ok(())
}

fn cleaned_up(cluster: &Cluster, stdout: Stdio, stderr: Stdio) -> Result<ExitStatus> {
    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    cleanup.args(["cleanup", "--run-dir"]).arg(cluster.run_dir());
    cleanup.stdout(stdout).stderr(stderr);
    Ok(cluster.world.node.run(move || cleanup.status())??)
}

/// It would leave the plugin waiting for a firewall that is gone.
#[test]
fn cleanup_does_all_of_its_work_without_a_reader() -> Result<()> {
    for (label, stdout, stderr) in [
        ("lost-rest", closed()?, Stdio::inherit()),
        ("lost-both", closed()?, closed()?),
        ("lost-disk", full()?, full()?),
    ] {
        let cluster = Cluster::new(label, &Value::Null)?;
        cluster.start_agent_with(["--network-policy=on"])?.terminate()?;
        let node = &cluster.world.node;
        assert!(tables(node)?.contains("denizen-firewall"), "{label}");
        node.ip("route add 10.66.0.0/24 dev eth0 proto 213 metric 1190\n\
                 route add fd00:66::/64 dev eth0 proto 213 metric 1190")?;
        let status = cleaned_up(&cluster, stdout, stderr)?;
        assert!(status.success(), "{label}: {status}");
        assert_eq!(tables(node)?, "", "{label}");
        for family in ["-4", "-6"] {
            assert_eq!(
                node.output("ip", &[family, "route", "show", "proto", "213"])?,
                "",
                "{label}"
            );
        }
        assert!(firewall::is_off(cluster.run_dir()), "{label}: the plugin waits for nobody");
    }
    Ok(())
}
