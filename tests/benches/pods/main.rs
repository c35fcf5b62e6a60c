//! What the pods of a large cluster cost: `cargo bench -p denizen-tests --bench pods`, as root.
//!
//! A process that follows 10,000 and 150,000 pods, as the agent does for the pod firewall; and the
//! whole agent of a node with 250 of them, without the pod firewall and with it. The server is in
//! the parent process, and makes the pods as it sends them.
//!
//! It prints, and asserts nothing. Words behind `--` choose parts, and numbers among the sizes.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, and processes' memory")]

mod agent;
mod memory;
mod server;
mod source;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use denizen_tests::bench::{Chosen, Sizes};

use crate::server::Cluster;

/// Clusters: a usual one, and the largest that Kubernetes documents.
const CLUSTERS: [Cluster; 2] = [
    Cluster { pods: 10_000, policies: 100, namespaces: 25, updates: 0 },
    Cluster { pods: 150_000, policies: 10_000, namespaces: 499, updates: 0 },
];

type Part = (&'static str, fn(Cluster) -> Result<()>);

/// The parts, by the words that choose them.
const PARTS: [Part; 2] = [("source", source::measure), ("agent", agent::measure)];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        // The bench starts itself anew to be the process that is measured.
        Some("follow") => source::follow(Path::new(&words[1])),
        Some("run" | "status") => denizen_agent::cli::run().map(drop),
        _ if words.iter().any(|word| word == "--bench") => all(&words),
        _ => {
            println!("not run: this is a bench, and `cargo test` builds it only");
            return ExitCode::SUCCESS;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn all(words: &[String]) -> Result<()> {
    let sizes = CLUSTERS.map(|cluster| cluster.pods);
    let chosen = Chosen::of(words, &PARTS.map(|(part, _)| part), Sizes::Of(&sizes))?;
    for (_, measure) in PARTS.into_iter().filter(|(part, _)| chosen.has(part)) {
        for cluster in CLUSTERS.into_iter().filter(|it| chosen.sizes.contains(&it.pods)) {
            measure(cluster)?;
        }
    }
    Ok(())
}
