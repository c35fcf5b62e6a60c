//! No window: the first packets of a new pod, and the first ones to it, are judged like any other.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::cni::Chain;
use denizen_tests::eventually::eventually;
use denizen_tests::netns::Netns;
use denizen_tests::pod::{Pod, Wiring};
use serde_json::{Value, json};

use crate::newcomers::{Newcomer, Newcomers, nothing_wrong};

/// What has not come about by then never will.
const BOUND: Duration = Duration::from_secs(20);

fn wiring(number: usize) -> Wiring {
    if number.is_multiple_of(2) { Wiring::Bridged } else { Wiring::Routed }
}

fn isolate(timeout: &str) -> Value {
    json!({ "timeout": timeout, "onTimeout": "isolate" })
}

/// Announces a pod and adds it, on the first node.
fn add(newcomers: &Newcomers, name: &str, role: &str, wiring: Wiring) -> Result<Pod> {
    let name = name.to_owned();
    let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
    newcomers.announce(&name, netns.name(), role)?;
    attach(newcomers, netns, &name, newcomers.nodes.hosts[0].chain(wiring))
}

fn attach(newcomers: &Newcomers, netns: Netns, name: &str, chain: &Chain) -> Result<Pod> {
    let pod = Pod::attach(&newcomers.nodes.hosts[0].netns, netns, &format!("new/{name}"), chain)?;
    ensure!(!pod.addresses.is_empty(), "no addresses");
    Ok(pod)
}

fn remove(newcomers: &Newcomers, name: &str, newcomer: Newcomer) -> Result<()> {
    newcomer.pod.detach(&newcomers.nodes.hosts[0].netns)?;
    newcomers.nodes.manifests.remove(&format!("pod-{name}"))
}

/// No agent: what was programmed stays, a new pod is not open, and all is well once one runs again.
#[test]
fn while_the_agent_is_dead() -> Result<()> {
    let mut newcomers = Newcomers::new("first-dead", &isolate("1s"))?;
    let before = Newcomer::start(add(&newcomers, "before", "new", Wiring::Bridged)?)?;
    nothing_wrong(1, &newcomers.first_packets(&before)?)?;
    let agent = newcomers.nodes.hosts[0].agent.take().context("it was started")?;
    agent.kill()?;
    nothing_wrong(1, &newcomers.first_packets(&before)?).context("the table stays")?;
    let mut after = Vec::new();
    for number in 0..4 {
        let name = format!("after-{number}");
        // An ADD that fails leaves no pod that could leak.
        let Ok(pod) = add(&newcomers, &name, "new", wiring(number)) else { continue };
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        newcomers.first_packets(&newcomer)?;
        nothing_wrong(1, &newcomers.leaks(&newcomer)).context(name)?;
        after.push(newcomer);
    }
    let objects = Objects::Manifests(newcomers.nodes.manifests.folder().to_owned());
    newcomers.nodes.hosts[0].start_agent(objects, &[])?;
    for newcomer in after.iter().chain([&before]) {
        let all_is_well = || Ok(newcomers.first_packets(newcomer)?.is_empty());
        eventually("all is well again", BOUND, all_is_well)?;
    }
    Ok(())
}

/// A policy that comes while pods are added holds from when it is programmed on, also for what was
/// let through before.
#[test]
fn when_a_policy_comes_meanwhile() -> Result<()> {
    let newcomers = Newcomers::new("first-policy", &isolate("10s"))?;
    let folder = newcomers.nodes.manifests.folder();
    for number in 0..6 {
        let name = format!("p{number}");
        with_policies_away(folder, number, || {
            let pod = add(&newcomers, &name, "new", wiring(number))?;
            newcomers.aim(|targets| targets.extend(&pod.addresses));
            Ok(pod)
        })
        .and_then(|pod| {
            let newcomer = Newcomer::start(pod)?;
            newcomers.nodes.settled(|node, status| {
                let in_force = [2, 0][node];
                status["networkPolicy"]["policies"] == in_force
            })?;
            // Connections that are forbidden from now on have a second.
            thread::sleep(Duration::from_secs(1));
            newcomers.forget(&newcomer);
            nothing_wrong(1, &newcomers.first_packets(&newcomer)?)?;
            newcomers.aim(std::collections::BTreeSet::clear);
            remove(&newcomers, &name, newcomer)
        })
        .with_context(|| format!("pod {number}"))?;
    }
    Ok(())
}

/// Takes all policies away, and puts them back some milliseconds after `job` has begun.
fn with_policies_away<T: Send>(
    folder: &Path,
    delay: usize,
    job: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let (file, away) = (folder.join("policies.yaml"), folder.join(".policies.away"));
    std::fs::rename(&file, &away)?;
    thread::sleep(Duration::from_millis(100));
    thread::scope(|scope| {
        let job = scope.spawn(job);
        thread::sleep(Duration::from_millis(u64::try_from(delay * 30)?));
        std::fs::rename(&away, &file)?;
        job.join().expect("it does not panic")
    })
}
