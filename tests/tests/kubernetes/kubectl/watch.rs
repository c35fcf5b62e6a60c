//! `--watch`: answers that differ, until nobody reads them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

/// Ended with the test.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node that has dropped so many packets, and counts how often it is asked.
fn counts(workstation: &Workstation, packets: &Arc<AtomicU64>, requests: &Arc<AtomicU64>) {
    let (packets, requests) = (packets.clone(), requests.clone());
    workstation.execute(move |_, _| {
        let (packets, requests) = (packets.clone(), requests.clone());
        let answer = move |_: &Value| {
            requests.fetch_add(1, Ordering::SeqCst);
            let row = json!({ "table": "inet denizen", "verdict": "dropped", "reason": "no endpoint",
                              "packets": packets.load(Ordering::SeqCst) });
            json!({ "answer": { "drops": [row] } })
        };
        Execution::relays(answer)
    });
}

#[test]
fn a_watched_answer_is_printed_when_it_differs_until_nobody_reads() -> Result<()> {
    let workstation = Workstation::new("watch")?;
    workstation.node_with_agent("n1")?;
    let (packets, requests) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    counts(&workstation, &packets, &requests);
    let mut command = workstation.command(&["drops", "--watch=1s", "-o", "json"])?;
    command.stdout(Stdio::piped());
    let mut watcher = Watcher(workstation.netns().run(|| command.spawn())??);
    let mut lines = BufReader::new(watcher.0.stdout.take().context("no output")?).lines();
    let mut next =
        || -> Result<Value> { Ok(serde_json::from_str(&lines.next().context("it ended")??)?) };
    ensure!(next()?["drops"][0]["packets"] == 1);
    let bound = Duration::from_secs(30);
    let often = || Ok(requests.load(Ordering::SeqCst));
    observed("it asks again", bound, often, |times| *times >= 3)?;
    packets.store(5, Ordering::SeqCst);
    let second = next()?;
    ensure!(second["drops"][0]["packets"] == 5, "the first was printed again: {second}");
    drop(lines);
    packets.store(6, Ordering::SeqCst);
    let ended = || Ok(watcher.0.try_wait()?.map(|status| status.code()));
    let code = observed("it ends", bound, ended, Option::is_some)?;
    ensure!(code == Some(Some(0)), "{code:?}");
    Ok(())
}

/// What is wrong from the start is an error at once.
#[test]
fn a_cluster_that_cannot_be_asked_is_not_watched() -> Result<()> {
    let workstation = Workstation::new("unwatched")?;
    let mut command = workstation.command(&["status", "--watch", "--context", "nowhere"])?;
    command.stdin(Stdio::null());
    let output = workstation.output_of(command)?;
    ensure!(output.code == 2 && output.stderr.contains("kubeconfig"), "{output:#?}");
    Ok(())
}
