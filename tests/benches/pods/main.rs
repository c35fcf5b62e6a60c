//! What the objects of a large cluster cost: `cargo bench -p denizen-tests --bench pods`, as root.
//!
//! A process that follows 10,000 and 150,000 pods, as the agent does for the pod firewall, or
//! 10,000 Services and their EndpointSlices, from a server without protobuf and from one with it;
//! and the whole agent of a node with 250 of these pods, without the pod firewall and with it. The
//! server is in the parent process, and makes the pods as it sends them.
//!
//! It prints, and asserts nothing. Words behind `--` choose parts, and numbers among the sizes.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, and processes' memory")]

mod agent;
mod server;
mod source;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use denizen_tests::bench::{Bench, Sizes};

use crate::server::ServedCluster;

/// Clusters: a usual one, and the largest that Kubernetes documents.
const CLUSTERS: [ServedCluster; 2] = [
    ServedCluster { pods: 10_000, policies: 100, namespaces: 25, ..NONE },
    ServedCluster { pods: 150_000, policies: 10_000, namespaces: 499, ..NONE },
];

const NONE: ServedCluster = ServedCluster {
    pods: 0,
    policies: 0,
    namespaces: 1,
    updates: 0,
    services: 0,
    only_json: false,
    gzip: false,
};

type Part = (&'static str, fn(ServedCluster) -> Result<()>);

/// The parts, by the words that choose them.
const PARTS: [Part; 3] = [
    ("source", source::measure),
    ("services", source::measure_services),
    ("agent", agent::measure),
];

fn main() -> ExitCode {
    Bench {
        processes: &[
            (&["follow"], |words| source::follow(Path::new(&words[1]), words[2] == "services")),
            (&["run", "status"], |_| denizen_agent::cli::run()),
        ],
        parts: &PARTS.map(|(part, _)| part),
        sizes: Sizes::Of(&CLUSTERS.map(|cluster| cluster.pods)),
    }
    .run(|chosen| {
        for (_, measure) in PARTS.into_iter().filter(|(part, _)| chosen.has(part)) {
            let is_chosen = |cluster: &ServedCluster| chosen.sizes.contains(&cluster.pods);
            CLUSTERS.into_iter().filter(is_chosen).try_for_each(measure)?;
        }
        Ok(())
    })
}
