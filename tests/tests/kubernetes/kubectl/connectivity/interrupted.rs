//! Whatever ends a test, and whenever, nothing is left of it; and nothing of others goes.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::peers::api::Api;
use denizen_tests::test_length;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::pretended::{Faults, PretendedCluster};

/// In full length, and else.
const MOMENTS: [usize; 2] = [50, 12];

/// One of them cannot be handled.
const SIGNALS: [Signal; 4] = [Signal::SIGKILL, Signal::SIGINT, Signal::SIGKILL, Signal::SIGTERM];

fn namespace(name: &str, manager: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": manager } },
    })
}

/// They look like a test's, but for the label or for the name.
fn others() -> [Value; 3] {
    [
        namespace("denizen-test-of-mine", "Helm"),
        namespace("shop", "kubectl-denizen"),
        namespace("default", "nobody"),
    ]
}

/// Names of all namespaces but those of [`others`].
fn left(cluster: &PretendedCluster) -> Vec<String> {
    let others = others().map(|other| other["metadata"]["name"].clone());
    let all = cluster.workstation.api.objects("namespaces").into_iter();
    let names = all.map(|object| object["metadata"]["name"].clone());
    names.filter(|name| !others.contains(name)).map(|name| name.to_string()).collect()
}

/// Starts a test, and sends the signal once the API server has got so many requests of it.
fn interrupt(cluster: &PretendedCluster, requests: usize, signal: Signal) -> Result<Option<i32>> {
    let api = &cluster.workstation.api;
    let before = api.requests().len();
    let mut command = cluster.workstation.command(&["test"])?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = cluster.workstation.netns().run(|| command.spawn())??;
    while api.requests().len() < before + requests && child.try_wait()?.is_none() {
        thread::sleep(Duration::from_micros(200));
    }
    kill(Pid::from_raw(i32::try_from(child.id())?), signal)?;
    Ok(child.wait()?.code())
}

#[test]
fn an_interrupted_test_leaves_nothing_after_a_cleanup() -> Result<()> {
    let cluster = PretendedCluster::new("verb-signals", 2, Faults::default())?;
    cluster.workstation.api.put_all(&others())?;
    let whole = cluster.workstation.json(&["test"], 0)?;
    ensure!(left(&cluster).is_empty(), "{whole:#?}");
    let requests = cluster.workstation.api.requests().len();
    let moments = test_length::times(MOMENTS[0], MOMENTS[1]);
    let mut cleaned = 0;
    for moment in 0..moments {
        let (after, signal) = (1 + moment * requests / moments, SIGNALS[moment % SIGNALS.len()]);
        let what = format!("{signal} after {after} of {requests} requests");
        let code = interrupt(&cluster, after, signal).with_context(|| what.clone())?;
        let found = left(&cluster);
        ensure!(found.is_empty() || signal == Signal::SIGKILL, "{what}, code {code:?}: {found:?}");
        // It may have been over already, and else is not.
        ensure!(code != Some(1) && code != Some(2), "{what}: code {code:?}");
        cleaned += found.len();
        let output = cluster.workstation.json(&["test", "--cleanup"], 0)?;
        let left = left(&cluster);
        ensure!(left.is_empty(), "{what}: {left:?} is left: {output:#?}");
        let named = output.json()?["namespaces"].as_array().context("no list")?.len();
        ensure!(named == found.len(), "{what}: {output:#?}, but there were {found:?}");
    }
    ensure!(cleaned > 0, "no killed test left anything: it was not killed while it ran");
    let names = cluster.workstation.api.objects("namespaces").len();
    ensure!(names == others().len(), "namespaces of others are gone");
    Ok(())
}

/// It is said whose run may have been going on, and a test says what others left.
#[test]
fn what_is_deleted_and_what_is_left_is_said() -> Result<()> {
    let cluster = PretendedCluster::new("verb-left", 1, Faults::default())?;
    let of = |name: &str, deadline: &str| {
        let mut object = namespace(name, "kubectl-denizen");
        object["metadata"]["annotations"] = json!({ "denizen.io/test-deadline": deadline });
        object
    };
    let old = of("denizen-test-old", "2020-01-01T00:00:00Z");
    cluster.workstation.api.put_all(&[old, of("denizen-test-new", "2999-01-01T00:00:00Z")])?;
    let output = cluster.workstation.json(&["test"], 0)?;
    let notes = output.json()?["notes"].to_string();
    ensure!(notes.contains("left denizen-test-old:") && !notes.contains("test-new"), "{notes}");
    let output = cluster.workstation.run(&["test", "--cleanup"])?;
    let expected = "\
deleted denizen-test-new, whose run may have been going on
deleted denizen-test-old
";
    ensure!(output.code == 0 && output.stdout == expected, "{output:#?}");
    let again = cluster.workstation.run(&["test", "--cleanup"])?;
    ensure!(again.stdout == "no namespace of a test is there\n", "{again:#?}");
    Ok(())
}
