//! Many pods at once on a node whose processors are busy.

use anyhow::{Result, ensure};
use denizen_tests::bench::timing::{Samples, text};
use denizen_tests::node::busy_node::{AddedPods, BusyNode, Programs};
use denizen_tests::node::cgroup::requested;
use serde_json::json;

/// Pods that come at once.
const PODS: usize = 300;
/// Ten times what an ADD waits. The agent of the tests is not optimized.
const WAIT_TIMEOUT: &str = "10s";

/// The agent gets no more of the processors than its DaemonSet requests.
#[test]
fn no_add_gives_up_beside_busy_loops() -> Result<()> {
    let millis = requested()?;
    let node = BusyNode::start(Programs::default(), PODS, millis)?;
    let added = node.add_all(&json!({ "timeout": WAIT_TIMEOUT, "onTimeout": "isolate" }))?;
    let AddedPods { took, complaints, used, delayed } = added;
    let samples = Samples::from_iter(took);
    println!(
        "{PODS} ADDs, {millis}m: median {}, slowest {}; the agent ran for {}, and waited {} for a \
         processor",
        text(samples.median()),
        text(samples.quantile(100)),
        text(used),
        text(delayed),
    );
    let first = complaints.first().map(String::as_str).unwrap_or_default();
    ensure!(complaints.is_empty(), "{} ADDs gave up: {first}{}", complaints.len(), node.log());
    for series in ["denizen_plugin_request_delay_seconds", "denizen_plugin_wait_duration_seconds"] {
        let count = node.metric(&format!("{series}_count"))?;
        ensure!(count == PODS as f64, "{series}: {count}");
    }
    ensure!(node.metric("process_cpu_delay_seconds_total")? > 0.0, "it always had a processor");
    Ok(())
}
