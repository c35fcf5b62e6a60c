//! Changes while the agent runs: of manifests, of pods. Each reaches the kernel by itself, and as a
//! small transaction.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::kernel::ruleset::Monitor;
use denizen_tests::node::cluster::{Cluster, OTHER_NODE};
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use serde_json::json;

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// A change that has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connects as `who` until `now` holds of what came of it.
fn until(
    fixture: &Fixture,
    who: Host,
    to: SocketAddr,
    now: impl Fn(&Outcome) -> bool,
) -> Result<Duration> {
    let started = Instant::now();
    observed("as expected", TIMEOUT, || fixture.probe(who, to, Protocol::Tcp), now)?;
    Ok(started.elapsed())
}

#[test]
fn manifests_take_effect_as_they_change() -> Result<()> {
    let fixture = Fixture::new("live-man")?;
    let agent = fixture.cluster.start_agent()?;
    let manifests = &fixture.cluster.manifests;
    let answers = |who: Host, like| {
        let address = fixture.address(who, like);
        move |outcome: &Outcome| {
            outcome.endpoint().map(|endpoint| endpoint.ip()) == address.as_ref().ok().copied()
        }
    };
    for ip in service_ips(10) {
        let to = SocketAddr::new(ip, 80);
        // No service yet, or none any more: the families are programmed one after the other.
        until(&fixture, Host::Bridged, to, |outcome| *outcome == Outcome::Unreachable)?;
        let mut took = Vec::new();
        manifests.put("web", &fixture.service("web", 10, &HTTP, &[])?)?;
        took.push(until(&fixture, Host::Bridged, to, |outcome| *outcome == Outcome::Refused)?);
        for endpoint in [Host::Routed, Host::Remote] {
            manifests.put("web", &fixture.service("web", 10, &HTTP, &[endpoint])?)?;
            took.push(until(&fixture, Host::Bridged, to, answers(endpoint, ip))?);
        }
        manifests.remove("web")?;
        took.push(until(&fixture, Host::Bridged, to, |outcome| *outcome == Outcome::Unreachable)?);
        eprintln!("service, endpoint, another endpoint, nothing again: {took:?}");
    }
    drop(agent);
    Ok(())
}

#[test]
fn a_broken_manifest_harms_nothing_else() -> Result<()> {
    let fixture = Fixture::new("live-bad")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Routed])?)?;
    manifests.put_text("broken", "kind: Service\nspec: [this is\n")?;
    let agent = fixture.cluster.start_agent()?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    assert!(fixture.probe(Host::Bridged, to, Protocol::Tcp)?.endpoint().is_some());
    assert!(agent.log().contains("broken"), "the broken file is named in the log");
    // A file that breaks later: what it held is gone, what others hold stays and goes on changing.
    manifests.put_text("broken", "{}")?;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Remote])?)?;
    let remote = fixture.address(Host::Remote, to.ip())?;
    until(&fixture, Host::Bridged, to, |outcome| {
        outcome.endpoint().is_some_and(|endpoint| endpoint.ip() == remote)
    })?;
    Ok(())
}

#[test]
fn a_pod_is_local_from_add_to_del() -> Result<()> {
    let cluster = Cluster::new("live-pod", &json!({ "timeout": "5s", "onTimeout": "fail" }))?;
    let _server = cluster.remote_web(&service_ips(10), HTTP[0])?;
    let _agent = cluster.start_agent()?;
    let node = &cluster.world.node;
    for (name, wiring) in [("b", Wiring::Bridged), ("r", Wiring::Routed)] {
        let pod = cluster.add_pod(name, wiring)?;
        for ip in service_ips(10) {
            let first = Probe::tcp(SocketAddr::new(ip, 80)).send_in(&pod.netns);
            assert_eq!(
                first.seen(),
                pod.address_like(ip),
                "{wiring:?}, its first packet: {first:?}"
            );
        }
        let addresses = pod.addresses.clone();
        pod.detach(node)?;
        // Somebody else gets the address and is not recorded: nobody vouches for it any more.
        let netns = Netns::new(&format!("live-pod-{name}2"))?;
        let stranger = Pod::wire(node, netns, &format!("{name}2"), wiring, &addresses)?;
        for ip in service_ips(10) {
            let probe = Probe::tcp(SocketAddr::new(ip, 80));
            eventually("no local pod any more", TIMEOUT, || {
                Ok(probe.send_in(&stranger.netns).seen() != stranger.address_like(ip))
            })
            .with_context(|| format!("{wiring:?}"))?;
        }
    }
    Ok(())
}

/// One endpoint of one service among many changes: the kernel is sent no more than that.
#[test]
fn one_change_is_a_small_transaction() -> Result<()> {
    let fixture = Fixture::new("live-small")?;
    let manifests = &fixture.cluster.manifests;
    let mut objects = Vec::new();
    for number in 0..500_u16 {
        let [high, low] = number.to_be_bytes();
        let name = format!("many-{number}");
        objects.push(service(&name, &[ip(&format!("172.31.{high}.{low}"))], &HTTP));
        let endpoints =
            [1, 2].map(|last| (ip(&format!("192.168.{last}.{}", low.max(1))), OTHER_NODE));
        objects.push(slice(&name, &HTTP, &endpoints));
    }
    manifests.put("many", &objects)?;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Routed])?)?;
    let agent = fixture.cluster.start_agent()?;
    let node = &fixture.cluster.world.node;
    let monitor = Monitor::start(node)?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Remote])?)?;
    let remote = fixture.address(Host::Remote, to.ip())?;
    let took = until(&fixture, Host::Bridged, to, |outcome| {
        outcome.endpoint().is_some_and(|endpoint| endpoint.ip() == remote)
    })?;
    let changes = settled(&monitor, node)?;
    eprintln!(
        "took effect after {took:?}, as {} changes in the kernel:\n{}",
        changes.len(),
        changes.join("\n")
    );
    assert!(!changes.is_empty(), "the monitor must have seen the change");
    assert!(changes.len() <= 12, "one endpoint in each family");
    assert!(
        changes.iter().all(|change| change.contains("element")),
        "data alone, no rule and no chain"
    );
    let before = pods_of(&agent)?;
    let pod = fixture.cluster.add_pod("late", Wiring::Routed)?;
    observed("one pod more", TIMEOUT, || pods_of(&agent), |pods| *pods == before + 1)?;
    let changes = settled(&monitor, node)?;
    eprintln!("a pod, as {} changes:\n{}", changes.len(), changes.join("\n"));
    assert!((1..=8).contains(&changes.len()), "one pod in each family");
    pod.detach(node)?;
    Ok(())
}

/// The changes so far, once no more come: both families are separate transactions.
fn settled(monitor: &Monitor, node: &Netns) -> Result<Vec<String>> {
    let mut changes = monitor.changes(node)?;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let more = monitor.changes(node)?;
        if more.is_empty() {
            return Ok(changes);
        }
        changes.extend(more);
    }
}

fn pods_of(agent: &Agent) -> Result<u64> {
    Ok(agent.status()?["pods"].as_u64().unwrap_or_default())
}
