//! New pods while the agent is stopped, as on a node that gives it no processor.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::packets::http::metric;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{TIMEOUT, add, isolate, wiring};
use crate::newcomers::{Newcomer, Newcomers};

const PODS: usize = 2;

/// The plugin isolates it meanwhile, which is no drift: it is ours. The agent finds that before it
/// has read the pod's record, and the pod stays isolated until it is decided about.
#[test]
fn what_the_plugin_isolates_is_no_drift() -> Result<()> {
    let newcomers = Newcomers::new("first-stopped", &isolate("1s"))?;
    let agent = newcomers.nodes.hosts[0].agent.as_ref().context("it was started")?;
    let process = Pid::from_raw(i32::try_from(agent.pid())?);
    kill(process, Signal::SIGSTOP)?;
    let pods = (0..PODS).map(|number| {
        let pod = add(&newcomers, &format!("p{number}"), "new", wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        Newcomer::start(pod)
    });
    let pods = pods.collect::<Result<Vec<_>>>()?;
    sleep(Duration::from_secs(5));
    kill(process, Signal::SIGCONT)?;
    for pod in &pods {
        let is_well = || Ok(newcomers.first_packets(pod)?.is_empty());
        eventually("it is judged by its policies", TIMEOUT, is_well)?;
        let leaks = newcomers.leaks(pod);
        ensure!(leaks.is_empty(), "{leaks:?}");
    }
    let repaired = metric(&newcomers.nodes.hosts[0].netns, "denizen_drift_repaired_total")?;
    ensure!(repaired == 0.0, "{repaired} repairs: {}", agent.log());
    ensure!(!agent.log().contains("drift repaired"), "{}", agent.log());
    Ok(())
}
