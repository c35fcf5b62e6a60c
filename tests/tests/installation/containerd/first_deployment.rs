//! Pods that come while denizen is being put on a node.

use std::fs;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::wrapped::{SETTINGS, WrappedAgent, container};
use denizen_tests::conf::{DAEMON_SET, capabilities};
use denizen_tests::eventually::eventually;
use denizen_tests::node::pod::Wiring;
use denizen_tests::peers::containerd::Containerd;
use serde_json::{Value, json};

use super::{ContainerdNode, TIMEOUT};

/// A first deployment, as Kubernetes makes it: the agent starts with exactly the DaemonSet's
/// capabilities, and pods come before it, while it runs, and while containerd goes by the list of
/// plugins without denizen.
#[test]
fn pods_that_come_while_denizen_is_being_installed_are_all_known() -> Result<()> {
    const EACH: usize = 3;
    let node = ContainerdNode::new("ctr-first")?;
    let cri = node.containerd.cri()?;
    let make = |when: &str| {
        (0..EACH).map(|n| cri.run_sandbox(&format!("{when}-{n}"))).collect::<Result<Vec<_>>>()
    };
    let mut sandboxes = make("before")?;
    let granted = capabilities(DAEMON_SET, "agent")?;
    let agent =
        WrappedAgent::start_with(&node.cluster, container(&granted), &[SETTINGS.to_owned()])?;
    agent.until("programmed", |status| status["synced"] == true)?;
    sandboxes.extend(make("while")?);
    let known = |number: usize| move |status: &Value| status["pods"] == number;
    agent.until("found", known(2 * EACH))?;
    node.install()?;
    sandboxes.extend(make("after")?);
    // Somebody else writes the list anew, and takes the entry out with it.
    let conf = Containerd::conf_dir(&node.folder)?.join("10-pods.conflist");
    fs::write(&conf, node.cluster.chain(Wiring::Bridged).clone().without_denizen().conflist())?;
    eventually("containerd goes by the list without denizen", TIMEOUT, || {
        let probe = cri.run_sandbox("is-it-gone")?;
        let is_gone = node.records()?.get(&probe).is_none_or(|record| record.adopted);
        cri.stop_sandbox(&probe)?;
        cri.remove_sandbox(&probe)?;
        Ok(is_gone)
    })?;
    sandboxes.extend(make("rewritten")?);
    let records = || node.records();
    agent.until("found", |_| {
        records().is_ok_and(|records| sandboxes.iter().all(|sandbox| records.contains_key(sandbox)))
    })?;
    agent.until("only those, and clean", |status| {
        let clean = status["errors"] == json!([]) && status["warnings"] == json!([]);
        status["pods"] == sandboxes.len() && status["unrecordedInterfaces"] == 0 && clean
    })?;
    let records = node.records()?;
    for sandbox in &sandboxes {
        let record = &records[sandbox];
        for outcome in node.first_packets(record)? {
            let seen = outcome.seen().with_context(|| format!("{outcome:?}"))?;
            ensure!(record.ips.contains(&seen), "{record:?}: {outcome:?}");
        }
    }
    for sandbox in &sandboxes {
        cri.stop_sandbox(sandbox)?;
        cri.remove_sandbox(sandbox)?;
    }
    eventually("all are forgotten", TIMEOUT, || Ok(node.records()?.is_empty()))?;
    agent.until("none is left", known(0))?;
    Ok(())
}
