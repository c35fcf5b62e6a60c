//! The agent ends and starts again, politely and not, while clients connect.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset::{self, Monitor};
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, every_way, service_ips};
use denizen_tests::node::manifest::service;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, LongConnection};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::test_length;
use serde_json::json;

/// The usual services, and one that nobody serves.
fn fixture(label: &str) -> Result<Fixture> {
    let fixture = long_connection::fixture(label)?;
    let lonely = fixture.service("lonely", 12, &every_protocol(), &[])?;
    fixture.cluster.manifests.put("lonely", &lonely)?;
    Ok(fixture)
}

/// A connection through the echo service that must outlive every restart.
fn long_lived(fixture: &Fixture, who: Host) -> Result<LongConnection> {
    LongConnection::open(fixture.place(who).0, SocketAddr::new(service_ips(11)[0], 7))
}

fn load(fixture: &Fixture) -> Result<Load> {
    let mut load = long_connection::load(fixture)?;
    let refused = every_way(12).filter(|(_, protocol)| *protocol == Protocol::Tcp).collect();
    load.client(fixture.place(Host::Bridged).0, refused, |outcome| *outcome == Outcome::Refused)?;
    Ok(load)
}

#[test]
fn sigterm_leaves_the_rules_and_a_restart_changes_none() -> Result<()> {
    let fixture = fixture("restart-term")?;
    let agent = fixture.cluster.start_agent()?;
    let node = &fixture.cluster.world.node;
    let before = ruleset::dump(node)?;
    let mut streams = [long_lived(&fixture, Host::Bridged)?, long_lived(&fixture, Host::Outside)?];
    let load = load(&fixture)?;
    let monitor = Monitor::start(node)?;
    let status = agent.terminate()?;
    ensure!(status.success(), "SIGTERM ended it with {status}");
    assert_eq!(ruleset::dump(node)?, before, "after SIGTERM");
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    let _agent = fixture.cluster.start_agent()?;
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    let tally = load.stop()?;
    assert_eq!(tally.failed, 0, "{tally:?}");
    assert_eq!(ruleset::dump(node)?, before, "after the restart");
    let changes = monitor.changes(node)?;
    assert_eq!(
        changes,
        Vec::<String>::new(),
        "a restart commits the difference, and there is none"
    );
    Ok(())
}

#[test]
fn crashes_under_load_harm_no_connection() -> Result<()> {
    let fixture = fixture("restart-kill")?;
    let node = &fixture.cluster.world.node;
    let fresh = fixture.cluster.start_agent()?;
    let expected = ruleset::dump(node)?;
    let mut streams = [long_lived(&fixture, Host::Bridged)?, long_lived(&fixture, Host::Outside)?];
    let load = load(&fixture)?;
    fresh.kill()?;
    let rounds = test_length::times(50, 8);
    let seed = u64::from(std::process::id());
    let started = Instant::now();
    for round in 0..rounds {
        let agent = Agent::spawn(node, fixture.cluster.settings())?;
        // From before it has read anything to long after it is done.
        thread::sleep(Duration::from_micros(random(seed, round) % 60_000));
        agent.kill()?;
        streams
            .iter_mut()
            .try_for_each(LongConnection::still_alive)
            .with_context(|| format!("round {round}, seed {seed}"))?;
    }
    let _agent = fixture.cluster.start_agent()?;
    let tally = load.stop()?;
    eprintln!("{rounds} crashes in {:?}, seed {seed}: {tally:?}", started.elapsed());
    assert_eq!(tally.failed, 0, "seed {seed}: {tally:?}");
    assert_eq!(ruleset::dump(node)?, expected, "as after the first start, seed {seed}");
    assert_eq!(ruleset::missed(node)?, 0, "lookups that missed");
    Ok(())
}

/// The same from a seed, for whoever wants to see a failure again.
fn random(seed: u64, round: usize) -> u64 {
    let mut state = seed ^ (round as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}

#[test]
fn a_second_agent_is_refused_and_told_who_is_there() -> Result<()> {
    let fixture = fixture("restart-two")?;
    let first = fixture.cluster.start_agent()?;
    let mut settings = fixture.cluster.settings();
    let error = Agent::start(&fixture.cluster.world.node, settings.clone())
        .expect_err("the same run directory");
    let output = format!("{error:#}");
    assert!(
        output.contains(&first.pid().to_string()),
        "it should name process {}: {output}",
        first.pid()
    );
    settings.run_dir = fixture.cluster.world.subfolder("run-2")?;
    let error =
        Agent::start(&fixture.cluster.world.node, settings).expect_err("the same namespace");
    eprintln!("{error:#}");
    let to = SocketAddr::new(service_ips(10)[0], 80);
    assert!(
        fixture.probe(Host::Bridged, to, Protocol::Tcp)?.endpoint().is_some(),
        "the first one is unharmed"
    );
    Ok(())
}

/// Pods do not wait for the API: they are programmed, and the plugin is answered, from the state
/// file alone.
#[test]
fn pods_are_programmed_while_the_services_are_unknown() -> Result<()> {
    let blind = without_manifests("restart-blind")?;
    let added =
        blind.cluster.add_pod("after", Wiring::Routed).context("waitFor was not answered")?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    assert_eq!(
        Probe::tcp(to).send_in(&added.netns),
        Outcome::Refused,
        "the old rules are still there"
    );
    let status = blind.agent.status()?;
    assert_eq!((&status["synced"], &status["pods"]), (&json!(false), &json!(2)), "{status}");
    Ok(())
}

#[test]
fn manifests_that_come_back_are_read() -> Result<()> {
    let mut blind = without_manifests("restart-back")?;
    std::fs::rename(&blind.aside, blind.cluster.manifests.folder())?;
    blind.agent.wait_programmed(START_TIMEOUT)
}

/// An agent that programmed a service, ended, and was started again without its manifests.
struct Blind {
    agent: Agent,
    _before: Pod,
    cluster: Cluster,
    /// Where the manifests are meanwhile.
    aside: PathBuf,
}

/// Services alone: while policies are unknown, ADD waits for them.
fn without_manifests(label: &str) -> Result<Blind> {
    let services = |cluster: &Cluster| cluster.settings_with(["--network-policy=off"]);
    let cluster = Cluster::new(label, &json!({ "timeout": "5s", "onTimeout": "fail" }))?;
    cluster.manifests.put("web", &[service("web", &service_ips(10), &every_protocol())])?;
    let agent = Agent::start(&cluster.world.node, services(&cluster))?;
    let before = cluster.add_pod("before", Wiring::Routed)?;
    agent.terminate()?;
    let aside = cluster.world.folder().join("manifests-aside");
    std::fs::rename(cluster.manifests.folder(), &aside)?;
    let agent = Agent::spawn(&cluster.world.node, services(&cluster))?;
    eventually("answering", START_TIMEOUT, || Ok(agent.status().is_ok()))?;
    Ok(Blind { agent, _before: before, cluster, aside })
}
