//! Records follow their link: its new name is recorded, and where it is gone the record is removed,
//! since after a crash of the runtime nobody calls DEL.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_state::{Attachment, AttachmentId, RunDir};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, is_local, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

/// Longer than a record without a link stays on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn cluster(label: &str) -> Result<(Cluster, Server)> {
    let cluster = Cluster::new(label, &Value::Null)?;
    let server = cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT))?;
    Ok((cluster, server))
}

fn records(run_dir: &Path) -> Result<BTreeSet<String>> {
    let state = RunDir::open(run_dir)?.read()?;
    let attachments = state.map(|state| state.attachments).unwrap_or_default();
    Ok(attachments.into_keys().map(|id| id.0).collect())
}

/// Waits until exactly these attachments are recorded, and the agent has programmed as many.
fn only(cluster: &Cluster, agent: &Agent, expected: &[&str]) -> Result<()> {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    let state = || Ok((records(cluster.run_dir())?, agent.status()?["pods"].as_u64()));
    let wanted = (expected.clone(), Some(expected.len() as u64));
    observed("recorded and programmed alone", TIMEOUT, state, |found| *found == wanted)
        .with_context(|| format!("expected {expected:?}"))?;
    Ok(())
}

/// Ends the pod as a crash of everything around it does: its links go with its namespace, and
/// nobody calls DEL.
fn crash(node: &Netns, pod: &Pod) -> Result<()> {
    node.ip(&format!("link del {}", pod.host_interface()))
}

#[test]
fn a_pod_that_nobody_deleted_is_forgotten_and_no_other() -> Result<()> {
    let (cluster, _server) = cluster("prune")?;
    let node = &cluster.world.node;
    let agent = cluster.start_agent()?;
    let crashed = cluster.add_pod("crashed", Wiring::Bridged)?;
    let plain = cluster.add_pod("plain", Wiring::Bridged)?;
    let renamed = cluster.add_pod("renamed", Wiring::Routed)?;
    let readdressed = cluster.add_pod("mac", Wiring::Bridged)?;
    let moved = cluster.add_pod("moved", Wiring::Bridged)?;
    let without = without_interface(&cluster)?;
    node.ip(&format!(
        "link set {} name other\nlink set {} address 0a:00:00:00:00:99\nlink set {} nomaster",
        renamed.host_interface(),
        readdressed.host_interface(),
        moved.host_interface()
    ))?;
    crash(node, &crashed)?;
    let left = [&plain, &renamed, &readdressed, &moved].map(Pod::attachment);
    let mut left: Vec<&str> = left.iter().map(String::as_str).collect();
    left.push(&without);
    let all = || records(cluster.run_dir());
    observed("forgotten", TIMEOUT, all, |all| !all.contains(&crashed.attachment()))?;
    assert_eq!(records(cluster.run_dir())?, left.iter().map(|id| (*id).to_owned()).collect());
    assert!(is_local(&plain));
    let log = agent.log();
    assert!(log.contains(&crashed.attachment()), "the log names what was removed: {log}");
    Ok(())
}

#[test]
fn a_renamed_veth_and_a_moved_port_are_followed() -> Result<()> {
    let (cluster, _server) = cluster("follow")?;
    let node = &cluster.world.node;
    let agent = cluster.start_agent()?;
    let routed = cluster.add_pod("routed", Wiring::Routed)?;
    let bridged = cluster.add_pod("bridged", Wiring::Bridged)?;
    only(&cluster, &agent, &[&routed.attachment(), &bridged.attachment()])?;
    let rename = |from: &str, to: &str| node.ip(&format!("link set {from} name {to}"));
    let placed = |pod: &Pod, link: &str, input: &str| -> Result<()> {
        let id = AttachmentId(pod.attachment());
        let record = || -> Result<Option<Attachment>> {
            let state = RunDir::open(cluster.run_dir())?.read()?;
            Ok(state.and_then(|mut state| state.attachments.remove(&id)))
        };
        let is_placed = |record: &Option<Attachment>| {
            let at = |record: &Attachment| {
                let name = record.host_interface.as_ref().map(|interface| interface.name.as_str());
                name == Some(link) && record.input_interface() == Some(input)
            };
            record.as_ref().is_some_and(at) && is_local(pod)
        };
        observed(&format!("at {link}"), TIMEOUT, record, is_placed).map(drop)
    };
    rename(routed.host_interface(), "new-name")?;
    placed(&routed, "new-name", "new-name")?;
    rename(bridged.host_interface(), "new-port")?;
    placed(&bridged, "new-port", "cni0")?;
    // A name that changes while no agent runs is followed at the start, and back as well.
    agent.terminate()?;
    rename("new-name", routed.host_interface())?;
    let agent = cluster.start_agent()?;
    placed(&routed, routed.host_interface(), routed.host_interface())?;
    // The bridge itself.
    rename("cni0", "cni9")?;
    placed(&bridged, "new-port", "cni9")?;
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// A record of a pod that has no interface on this node's stack, as macvlan makes them.
fn without_interface(cluster: &Cluster) -> Result<String> {
    let record: Attachment = serde_json::from_value(json!({
        "containerId": "macvlan", "ifName": "eth0", "network": "lan", "pod": null, "netns": null,
        "hostInterface": null, "bridge": null, "ips": ["192.0.2.7"], "addedAt": "2026-11-20T12:00:00Z",
    }))?;
    RunDir::open(cluster.run_dir())?.put(Duration::from_secs(5), &record)?;
    Ok(record.id().0)
}

#[test]
fn what_died_while_no_agent_ran_is_forgotten_at_the_start() -> Result<()> {
    let (cluster, _server) = cluster("prune-start")?;
    let crashed = cluster.add_pod("crashed", Wiring::Routed)?;
    let plain = cluster.add_pod("plain", Wiring::Routed)?;
    crash(&cluster.world.node, &crashed)?;
    let agent = cluster.start_agent()?;
    only(&cluster, &agent, &[&plain.attachment()])?;
    assert!(is_local(&plain));
    Ok(())
}

/// The record of a pod that nobody deleted, from before the node's clock was set back. Calico gives
/// the veths of a StatefulSet's pods one name and one MAC address, and often the same index.
#[test]
fn a_clock_that_was_set_back_costs_no_living_pod_its_record() -> Result<()> {
    let (cluster, _server) = cluster("prune-clock")?;
    let run_dir = RunDir::open(cluster.run_dir())?;
    let put = |record: &Attachment| run_dir.put(Duration::from_secs(5), record).map(drop);
    let mut living = Vec::new();
    for (wiring, is_reachable) in [
        (Wiring::Routed, true),
        (Wiring::Routed, false),
        (Wiring::Bridged, true),
        (Wiring::Bridged, false),
    ] {
        let pod = cluster.add_pod(&format!("clock{}", living.len()), wiring)?;
        let state = run_dir.read()?.context("a state")?;
        let mut record = state.attachments[&AttachmentId(pod.attachment())].clone();
        let mut former = record.clone();
        former.container_id = format!("former{}", living.len());
        former.added_at = "2099-01-01T00:00:00Z".to_owned();
        former.ips = vec![ip("192.0.2.9"), ip("2001:db8:99::9")];
        if is_reachable {
            // The MAC address settles nothing, as if the pod had a fixed one.
            let here = pod.netns.path().with_file_name("gone");
            former.netns = Some(here.display().to_string());
        } else {
            // As in a container that has no access to the namespaces.
            record.netns = None;
            former.netns = None;
            former.mac = Some("0a:00:00:00:00:01".to_owned());
        }
        put(&record)?;
        put(&former)?;
        living.push(pod);
    }
    let agent = cluster.start_agent()?;
    let ids: Vec<_> = living.iter().map(Pod::attachment).collect();
    only(&cluster, &agent, &ids.iter().map(String::as_str).collect::<Vec<_>>())?;
    assert!(living.iter().all(is_local));
    Ok(())
}

/// Runtimes DEL a container twice, the second time when its address may long be another's.
#[test]
fn a_late_second_del_takes_nothing_from_who_uses_it_now() -> Result<()> {
    let (cluster, _server) = cluster("prune-late")?;
    let node = &cluster.world.node;
    let agent = cluster.start_agent()?;
    let addresses = [ip("10.99.0.7"), ip("fd00:99::7")];
    let wire = |name: &str| -> Result<Pod> {
        let netns = Netns::new(&format!("prune-late-{name}"))?;
        let mut pod = Pod::wire(node, netns, name, Wiring::Bridged, &addresses)?;
        pod.record(node, cluster.run_dir(), &Value::Null)?;
        Ok(pod)
    };
    let first = wire("first")?;
    crash(node, &first)?;
    node.ip("route del 10.99.0.7 dev cni0\nroute del fd00:99::7 dev cni0")?;
    let second = wire("second")?;
    first.forget(node)?;
    only(&cluster, &agent, &[&second.attachment()])?;
    assert!(is_local(&second), "its predecessor's DEL came late");
    Ok(())
}
