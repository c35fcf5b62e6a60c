//! Three hundred pods at once beside busy loops, with the agent in a cgroup of the weight that its
//! DaemonSet requests: `cargo build-plugin`, then `cargo bench --bench busy_node`, as root.
//!
//! Numbers behind `--` are other CPU requests to try, in thousandths of a processor.
//! `DENIZEN_AGENT` names another agent. Goal: each ADD is answered within 250 ms. It prints, and
//! asserts nothing.

use std::process::ExitCode;

use anyhow::Result;
use denizen_tests::bench::timing::{Samples, text};
use denizen_tests::bench::{Bench, Sizes};
use denizen_tests::node::busy_node::{AddedPods, BusyNode, Programs};
use denizen_tests::node::cgroup::requested;
use denizen_tests::node::cni::installed;
use serde_json::json;

/// Pods that come at once.
const PODS: usize = 300;
/// How often each request is measured.
const ROUNDS: usize = 3;

fn main() -> ExitCode {
    Bench {
        processes: &[(&["run"], |_| denizen_agent::cli::run())],
        sizes: Sizes::Any,
        ..Bench::default()
    }
    .run(|chosen| {
        let mut requests: Vec<u64> = chosen.sizes.iter().map(|request| *request as u64).collect();
        if requests.is_empty() {
            requests.push(requested()?);
        }
        println!("{PODS} ADDs at once: from the plugin's request to the agent's answer\n");
        requests.into_iter().try_for_each(|millis| (0..ROUNDS).try_for_each(|_| measure(millis)))
    })
}

fn measure(millis: u64) -> Result<()> {
    let agent = std::env::var_os("DENIZEN_AGENT")
        .map_or_else(std::env::current_exe, |given| Ok(given.into()));
    let programs = Programs { agent: Some(agent?), plugin: installed() };
    let node = BusyNode::start(programs, PODS, millis)?;
    let added = node.add_all(&json!({ "timeout": "1s", "onTimeout": "isolate" }))?;
    let AddedPods { took, complaints, used, delayed } = added;
    let samples = Samples::from_iter(took);
    let within = |seconds| {
        node.metric(&format!("denizen_plugin_wait_duration_seconds_bucket{{le=\"{seconds}\"}}"))
    };
    println!(
        "{millis}m: {} within 64 ms, {} within 128 ms, {} within 256 ms, {} within 512 ms; {} gave \
         up. The whole ADD: median {}, slowest {}. The agent ran for {}, and waited {} for a \
         processor",
        within("0.064")?,
        within("0.128")?,
        within("0.256")?,
        within("0.512")?,
        complaints.len(),
        text(samples.median()),
        text(samples.quantile(100)),
        text(used),
        text(delayed),
    );
    Ok(())
}
