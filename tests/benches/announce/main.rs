//! How soon others hear of this node: `cargo bench -p denizen-tests --bench announce`, as root,
//! after `tests/run` has unpacked BIRD.
//!
//! | part | what |
//! | --- | --- |
//! | `bird` | 5,000 load balancer IPs in a router's kernel: all, and one whose endpoint changes |
//! | `direct` | 1,000 nodes: the routes to all pods, and those of one node whose podCIDR changes |
//!
//! The agent's objects come from the tests' own API server over TLS. For one change, the times
//! until the node's rules, its table of announcements and the router's kernel have it are taken in
//! the same run, from the kernels' notifications. It prints, and asserts no time. A word behind
//! `--` chooses one part.
//!
//! All that it makes in the kernel is in network namespaces, which end with it.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and files, and runs the agent"
)]

mod agent;
mod bird;
mod direct;
mod heard;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::bench::Bench;
use denizen_tests::bench::timing::{Samples, text};

/// What has not come about by then never will.
const TIMEOUT: Duration = Duration::from_secs(120);

type Part = (&'static str, fn() -> Result<()>);

/// The parts, by the words that choose them.
const PARTS: [Part; 2] = [("bird", bird::measure), ("direct", direct::measure)];

fn main() -> ExitCode {
    Bench {
        processes: &[(&["run"], |_| denizen_agent::cli::run())],
        parts: &PARTS.map(|(part, _)| part),
        ..Bench::default()
    }
    .run(|chosen| {
        PARTS.iter().filter(|(part, _)| chosen.has(part)).try_for_each(|(_, measure)| measure())
    })
}

/// Median, 90 % and the most of these times.
fn quantiles(times: impl IntoIterator<Item = Duration>) -> String {
    let samples = Samples::from_iter(times);
    let [median, most_of, all] = [50, 90, 100].map(|part| text(samples.quantile(part)));
    format!("median {median}, 90 % {most_of}, at most {all}")
}
