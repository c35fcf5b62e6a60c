//! No window: the first packets of a new pod, and the first ones to it, are judged like any other.

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::cni::Chain;
use denizen_tests::eventually::eventually;
use denizen_tests::netns::Netns;
use denizen_tests::pod::{Pod, Wiring};
use denizen_tests::world::ip;
use serde_json::{Value, json};

use crate::newcomers::{Newcomer, Newcomers, next, nothing_wrong};

/// Pods of one test; by hand, 1,000.
const PODS: &str = "DENIZEN_TEST_PODS";

/// How many pods are judged at a time while the next ones are added.
const AT_ONCE: usize = 8;

/// What has not come about by then never will.
const BOUND: Duration = Duration::from_secs(20);

fn pods() -> usize {
    std::env::var(PODS).ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

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
    newcomer.end().detach(&newcomers.nodes.hosts[0].netns)?;
    newcomers.nodes.manifests.remove(&format!("pod-{name}"))
}

/// Peers send to each new pod since before it had its address.
#[test]
fn of_a_new_pod() -> Result<()> {
    let newcomers = Newcomers::new("first", &isolate("10s"))?;
    let wrong = Mutex::new(Vec::new());
    let count = pods();
    thread::scope(|scope| -> Result<()> {
        let (ticket, tickets) = sync_channel(AT_ONCE);
        let tickets = std::sync::Arc::new(Mutex::new(tickets));
        let mut last = [None, None];
        for number in 0..count {
            let name = format!("p{number}");
            let kind = number % 2;
            let awaited = last[kind].as_deref().map(next).transpose()?.unwrap_or_default();
            newcomers.aim(|targets| targets.extend(&awaited));
            ticket.send(())?;
            let pod = add(&newcomers, &name, "new", wiring(number)).context(name.clone())?;
            last[kind] = Some(pod.addresses.clone());
            let newcomer = Newcomer::start(pod)?;
            let (newcomers, wrong, tickets) = (&newcomers, &wrong, tickets.clone());
            scope.spawn(move || {
                let found = newcomers.first_packets(&newcomer);
                newcomers.aim(|targets| {
                    newcomer.pod.addresses.iter().for_each(|it| _ = targets.remove(it));
                });
                let removed = remove(newcomers, &name, newcomer);
                let lines = match (found, removed) {
                    (Ok(lines), Ok(())) => lines,
                    (Err(error), _) | (_, Err(error)) => vec![format!("{error:#}")],
                };
                wrong.lock().expect("nobody panicked").extend(lines);
                tickets.lock().expect("nobody panicked").recv().expect("one was bought");
            });
        }
        Ok(())
    })?;
    nothing_wrong(count, &wrong.into_inner()?)
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

/// Two kinds of pods take turns at one address. What the one before was permitted, the next is not.
#[test]
fn at_an_address_that_is_reused_at_once() -> Result<()> {
    let newcomers = Newcomers::new("first-reuse", &isolate("10s"))?;
    let host = &newcomers.nodes.hosts[0];
    let ranges = [("10.12.1.0/30", ip("10.12.1.1"))];
    let options = json!({ "waitForAgent": isolate("10s") });
    let chain = Chain::routed(&ranges, &host.run_dir.join("one-address"))
        .then_denizen(&host.run_dir, &options);
    newcomers.nodes.hosts[1]
        .netns
        .ip(&format!("route add 10.12.1.0/30 via {}", host.node.addresses[0]))?;
    newcomers.aim(|targets| targets.extend([ip("10.12.1.2")]));
    for number in 0..8 {
        let (name, role) = (format!("p{number}"), ["new", "other"][number % 2]);
        let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
        newcomers.announce(&name, netns.name(), role)?;
        let pod = attach(&newcomers, netns, &name, &chain)?;
        ensure!(pod.addresses == [ip("10.12.1.2")], "{:?}", pod.addresses);
        let newcomer = Newcomer::start(pod)?;
        newcomers.forget(&newcomer);
        let wrong = match role {
            "new" => newcomers.first_packets(&newcomer)?,
            // No policy selects it; but the friend here hears the others alone.
            _ => newcomers.reached(&newcomer, "friend-here")?,
        };
        nothing_wrong(1, &wrong).with_context(|| format!("{name}, of role {role}"))?;
        remove(&newcomers, &name, newcomer)?;
    }
    Ok(())
}
