//! No window: the first packets of a new pod, and the first ones to it, are judged like any other.

mod at_once;
mod away;
mod containerd;
mod reuse;
mod stopped;
mod tiers;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::cni::Chain;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::test_length;
use serde_json::{Value, json};

use crate::newcomers::{Newcomer, Newcomers, next, nothing_wrong};

/// Pods of each test in full length.
const PODS: usize = 1000;

/// How many pods are judged at a time.
const AT_ONCE: usize = 8;

/// What has not come about by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

fn pods(quick: usize) -> usize {
    test_length::in_full(PODS, quick)
}

fn wiring(number: usize) -> Wiring {
    if number.is_multiple_of(2) { Wiring::Bridged } else { Wiring::Routed }
}

fn isolate(timeout: &str) -> Value {
    json!({ "timeout": timeout, "onTimeout": "isolate" })
}

/// Announces a pod and adds it, on the first node.
fn add(newcomers: &Newcomers, name: &str, role: &str, wiring: Wiring) -> Result<Pod> {
    let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
    newcomers.announce(&format!("new/{name}"), netns.name(), role)?;
    let chain = newcomers.nodes.hosts[0].chain(wiring);
    attach(newcomers, netns, &format!("new/{name}"), chain)
}

fn attach(newcomers: &Newcomers, netns: Netns, name: &str, chain: &Chain) -> Result<Pod> {
    let pod = Pod::attach(&newcomers.nodes.hosts[0].netns, netns, name, chain)?;
    ensure!(!pod.addresses.is_empty(), "no addresses");
    Ok(pod)
}

fn detach(newcomers: &Newcomers, newcomer: Newcomer) -> Result<()> {
    newcomer.end().detach(&newcomers.nodes.hosts[0].netns)
}

fn remove(newcomers: &Newcomers, name: &str, newcomer: Newcomer) -> Result<()> {
    detach(newcomers, newcomer)?;
    newcomers.revoke(name)
}

/// Plays pods 0 to `count`, some at a time. What was wrong with any is an error.
fn each(count: usize, play: impl Fn(usize) -> Result<Vec<String>> + Sync) -> Result<()> {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(count) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let played = play(number);
                    let lines = played.unwrap_or_else(|error| vec![format!("{error:#}")]);
                    let lines = lines.into_iter().map(|line| format!("pod {number}: {line}"));
                    wrong.lock().expect("nobody panicked").extend(lines);
                }
            });
        }
    });
    nothing_wrong(count, &wrong.into_inner()?)
}

/// Adds pods 0 to `count`, to which peers send since before they had their addresses, and judges
/// the first packets of some at a time. What was wrong with any is an error.
fn each_awaited(newcomers: &Newcomers, count: usize) -> Result<()> {
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| -> Result<()> {
        let (ticket, tickets) = sync_channel(AT_ONCE);
        let tickets = Arc::new(Mutex::new(tickets));
        let mut last = [None, None];
        for number in 0..count {
            let name = format!("p{number}");
            let kind = number % 2;
            let awaited = last[kind].as_deref().map(next).transpose()?.unwrap_or_default();
            newcomers.aim(|targets| targets.extend(&awaited));
            ticket.send(())?;
            let pod = add(newcomers, &name, "new", wiring(number)).context(name.clone())?;
            last[kind] = Some(pod.addresses.clone());
            let newcomer = Newcomer::start(pod)?;
            let (wrong, tickets) = (&wrong, tickets.clone());
            scope.spawn(move || {
                let found = newcomers.first_packets(&newcomer);
                newcomers.aim_no_more_at(&newcomer.pod.addresses);
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

/// Peers send to each new pod since before it had its address.
#[test]
fn of_a_new_pod() -> Result<()> {
    each_awaited(&Newcomers::new("first", &isolate("10s"))?, pods(40))
}

/// A policy that comes while pods are added holds from when it is programmed on, also for what was
/// let through before. Some pods come before it, some after it.
#[test]
fn when_a_policy_comes_meanwhile() -> Result<()> {
    let newcomers = Newcomers::new("first-policy", &isolate("10s"))?;
    let count = pods(12);
    for round in 0..count.div_ceil(AT_ONCE) {
        let in_round = (round * AT_ONCE..count.min((round + 1) * AT_ONCE)).collect::<Vec<_>>();
        let added = with_policies_away(newcomers.nodes.manifests.folder(), || {
            thread::scope(|scope| {
                let newcomers = &newcomers;
                let add = |number: &usize| {
                    let number = *number;
                    scope.spawn(move || -> Result<Newcomer> {
                        thread::sleep(Duration::from_millis(number as u64 % 8 * 30));
                        let pod = add(newcomers, &format!("p{number}"), "new", wiring(number))?;
                        newcomers.aim(|targets| targets.extend(&pod.addresses));
                        Newcomer::start(pod)
                    })
                };
                let all: Vec<_> = in_round.iter().map(add).collect();
                let all = all.into_iter().map(|thread| thread.join().expect("it does not panic"));
                all.collect::<Result<Vec<_>>>()
            })
        })?;
        newcomers.nodes.settled(|node, status| {
            let in_force = [2, 0][node];
            status["networkPolicy"]["policies"] == in_force
        })?;
        // Connections that are forbidden from now on have a second.
        thread::sleep(Duration::from_secs(1));
        for newcomer in &added {
            newcomers.forget(&newcomer.pod.addresses);
            newcomer.forget();
        }
        let added = added.into_iter().map(Some).map(Mutex::new).collect::<Vec<_>>();
        each(added.len(), |number| {
            let newcomer = added[number].lock().expect("nobody panicked").take();
            let newcomer = newcomer.context("each is played once")?;
            let wrong = newcomers.first_packets(&newcomer)?;
            remove(&newcomers, &format!("p{}", in_round[number]), newcomer)?;
            Ok(wrong)
        })
        .with_context(|| format!("round {round}"))?;
        newcomers.aim(BTreeSet::clear);
    }
    Ok(())
}

/// Takes all policies away, and puts them back some milliseconds after `job` has begun.
fn with_policies_away<T: Send>(folder: &Path, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let (file, away) = (folder.join("policies.yaml"), folder.join(".policies.away"));
    std::fs::rename(&file, &away)?;
    thread::sleep(Duration::from_millis(100));
    thread::scope(|scope| {
        let job = scope.spawn(job);
        thread::sleep(Duration::from_millis(150));
        std::fs::rename(&away, &file)?;
        job.join().expect("it does not panic")
    })
}
