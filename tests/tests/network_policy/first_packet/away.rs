//! New pods while the agent is dead, and while the API is away.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Wiring;
use denizen_tests::peers::api::Api;
use serde_json::Value;

use super::{TIMEOUT, add, attach, detach, each, isolate, pods, remove, wiring};
use crate::newcomers::{Exchange, Newcomer, Newcomers, next, nothing_wrong};

/// How many of the new pods are there again when all is well.
const LEFT: usize = 4;

/// No agent: what was programmed stays, a new pod is not open, and all is well once one runs again.
#[test]
fn while_the_agent_is_dead() -> Result<()> {
    let mut newcomers = Newcomers::new("first-dead", &isolate("1s"))?;
    let before = Newcomer::start(add(&newcomers, "before", "new", Wiring::Bridged)?)?;
    nothing_wrong(1, &newcomers.first_packets(&before)?)?;
    let agent = newcomers.nodes.hosts[0].agent.take().context("it was started")?;
    agent.kill()?;
    nothing_wrong(1, &newcomers.first_packets(&before)?).context("the table stays")?;
    let (count, left) = (pods(8), Mutex::new(Vec::new()));
    each(count, |number| {
        let name = format!("after-{number}");
        let pod = add(&newcomers, &name, "new", wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        let mut wrong = newcomers.verify(&newcomer, |_| false)?;
        wrong.extend(newcomers.leaks(&newcomer));
        if number < LEFT {
            left.lock().expect("nobody panicked").push(newcomer);
        } else {
            remove(&newcomers, &name, newcomer)?;
        }
        Ok(wrong)
    })?;
    let objects = Objects::Manifests(newcomers.nodes.manifests.folder().to_owned());
    newcomers.nodes.hosts[0].start_agent(objects, &[])?;
    let left = left.into_inner().expect("nobody panicked");
    all_is_well(&newcomers, left.iter().chain([&before]))
}

fn all_is_well<'a>(
    newcomers: &Newcomers,
    mut pods: impl Iterator<Item = &'a Newcomer>,
) -> Result<()> {
    pods.try_for_each(|newcomer| {
        let is_well = || Ok(newcomers.first_packets(newcomer)?.is_empty());
        eventually("all is well again", TIMEOUT, is_well)
    })
}

/// What is known of a new pod while the API is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownOfPod {
    /// Its object had come before.
    All,
    /// Policies of its namespace select by labels, and its own are not known.
    Nothing,
    /// Policies of its namespace select every pod.
    IsIsolated,
    /// Its namespace has no policies.
    IsOpen,
}

impl KnownOfPod {
    const ALL: [Self; 4] = [Self::All, Self::Nothing, Self::IsIsolated, Self::IsOpen];

    fn of(number: usize) -> Self {
        // Half of the pods are bridged.
        Self::ALL[number / 2 % Self::ALL.len()]
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::All | Self::Nothing => "new",
            Self::IsIsolated => "closed",
            Self::IsOpen => "open",
        }
    }

    fn passes(self, it: &Exchange<'_>) -> bool {
        match self {
            Self::All => it.peer.is_friend,
            Self::Nothing => false,
            Self::IsIsolated => it.peer.is_friend && it.is_heard(),
            Self::IsOpen => it.is_heard(),
        }
    }
}

/// A pod that is to be added while the API is away.
struct Planned {
    name: String,
    known: KnownOfPod,
    sandbox: Mutex<Option<Netns>>,
    sandbox_name: String,
}

impl Planned {
    fn new(newcomers: &Newcomers, number: usize) -> Result<Self> {
        let known = KnownOfPod::of(number);
        let name = format!("{}/after-{number}", known.namespace());
        let sandbox = newcomers.nodes.sandbox(&name)?;
        let sandbox_name = sandbox.name().to_owned();
        Ok(Self { name, known, sandbox: Mutex::new(Some(sandbox)), sandbox_name })
    }

    fn announce(&self, newcomers: &Newcomers) -> Result<()> {
        newcomers.announce(&self.name, &self.sandbox_name, "new")
    }

    fn add(&self, newcomers: &Newcomers, wiring: Wiring) -> Result<Newcomer> {
        let sandbox = self.sandbox.lock().expect("nobody panicked").take();
        let sandbox = sandbox.context("each is added once")?;
        let pod = attach(newcomers, sandbox, &self.name, newcomers.nodes.hosts[0].chain(wiring))?;
        // Many pods use an address up and again.
        newcomers.forget(&pod.addresses);
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        Newcomer::start(pod)
    }

    /// What passes of its packets while the API is away.
    fn verify(&self, newcomers: &Newcomers, newcomer: &Newcomer) -> Result<Vec<String>> {
        let verify = || newcomers.verify(newcomer, |exchange| self.known.passes(exchange));
        let mut wrong = match self.known {
            KnownOfPod::All | KnownOfPod::Nothing => verify()?,
            // The plugin isolates it when its time is over, and the agent decides then.
            KnownOfPod::IsIsolated | KnownOfPod::IsOpen => {
                observed("judged by its namespace", TIMEOUT, verify, Vec::is_empty)?
            }
        };
        if self.known != KnownOfPod::IsOpen {
            wrong.extend(newcomers.leaks(newcomer));
        }
        Ok(wrong)
    }
}

/// Waits until the agents know of all changes of pods: those of one more pod are seen.
fn until_followed(newcomers: &Newcomers, pod: &Newcomer) -> Result<()> {
    for (role, policies) in [("other", 1), ("new", 2)] {
        newcomers.announce("new/before", pod.pod.netns.name(), role)?;
        newcomers
            .nodes
            .settled(|node, status| node != 0 || status["networkPolicy"]["policies"] == policies)?;
    }
    Ok(())
}

/// No API: what is known stays, a new pod is judged by what is known of it and its namespace, and
/// all is well once it answers again.
#[test]
fn while_the_api_is_away() -> Result<()> {
    let mut newcomers = Newcomers::with_api("first-api", &isolate("1s"))?;
    let before = Newcomer::start(add(&newcomers, "before", "new", Wiring::Bridged)?)?;
    nothing_wrong(1, &newcomers.first_packets(&before)?)?;
    let count = pods(8);
    let planned = (0..count).map(|number| Planned::new(&newcomers, number));
    let planned = planned.collect::<Result<Vec<_>>>()?;
    let announce = |newcomers: &Newcomers, is_known: bool| {
        let these = planned.iter().filter(|pod| (pod.known == KnownOfPod::All) == is_known);
        these.into_iter().try_for_each(|pod| pod.announce(newcomers))
    };
    announce(&newcomers, true)?;
    until_followed(&newcomers, &before)?;
    newcomers.api.as_mut().context("there is one")?.stop();
    nothing_wrong(1, &newcomers.first_packets(&before)?).context("what is known stays")?;
    let left = Mutex::new(Vec::new());
    each(count, |number| {
        let pod = &planned[number];
        let newcomer = pod.add(&newcomers, wiring(number))?;
        let wrong = pod.verify(&newcomers, &newcomer)?;
        match number < LEFT {
            true => left.lock().expect("nobody panicked").push(newcomer),
            false => detach(&newcomers, newcomer)?,
        }
        Ok(wrong)
    })?;
    let Newcomers { api, nodes, .. } = &mut newcomers;
    api.as_mut().context("there is one")?.go_on(&nodes.hosts[1].netns)?;
    announce(&newcomers, false)?;
    let left = left.into_inner().expect("nobody panicked");
    all_is_well(&newcomers, left.iter().chain([&before]))
}

/// A node that boots while the API is away: no policy is known, and an ADD waits until they all
/// are.
#[test]
fn an_add_waits_for_the_first_lists() -> Result<()> {
    let mut newcomers = Newcomers::with_api("first-lists", &isolate("20s"))?;
    let before = Newcomer::start(add(&newcomers, "before", "new", Wiring::Bridged)?)?;
    let awaited = next(&before.pod.addresses)?;
    newcomers.aim(|targets| targets.extend(&awaited));
    let netns = newcomers.nodes.sandbox("new/late")?;
    newcomers.announce("new/late", netns.name(), "new")?;
    let mut api = newcomers.api.take().context("there is one")?;
    let host = &mut newcomers.nodes.hosts[0];
    host.agent.take().context("it was started")?.terminate()?;
    api.stop();
    host.spawn_agent(Objects::Kubeconfig(api.kubeconfig().to_owned()), &[])?;
    until_status(&newcomers, |status| status["pods"] != 0)?;
    let is_back = AtomicBool::new(false);
    let newcomer = thread::scope(|scope| -> Result<_> {
        let chain = newcomers.nodes.hosts[0].chain(Wiring::Bridged);
        let added = scope.spawn(|| -> Result<_> {
            let pod = attach(&newcomers, netns, "new/late", chain)?;
            ensure!(is_back.load(Ordering::SeqCst), "the ADD has not waited");
            Newcomer::start(pod)
        });
        until_status(&newcomers, |status| status["networkPolicy"]["pending"] == 1)?;
        // An ADD that does not wait has returned by then.
        thread::sleep(Duration::from_millis(500));
        is_back.store(true, Ordering::SeqCst);
        api.go_on(&newcomers.nodes.hosts[1].netns)?;
        added.join().expect("it does not panic")
    })?;
    assert_eq!(newcomer.pod.addresses, awaited);
    nothing_wrong(1, &newcomers.first_packets(&newcomer)?)
}

/// Waits until the first node's agent, which may not listen yet, has a status as wished.
fn until_status(newcomers: &Newcomers, so: impl Fn(&Value) -> bool) -> Result<()> {
    let agent = newcomers.nodes.hosts[0].agent()?;
    let status = || Ok(agent.status());
    observed("as wished", TIMEOUT, status, |status| status.as_ref().is_ok_and(&so)).map(drop)
}
