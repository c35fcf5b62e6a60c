//! What services cost: `cargo bench -p denizen-tests --bench services`, as root.
//!
//! From parsed manifests to the kernel, and one change, for 1,000 to 100,000 services of four
//! endpoints, by the agent's own engine in network namespaces that are made here; next to `nft -f`
//! of the same services in kube-proxy's shape. Memory, and how long a connection takes to the last
//! of many services.
//!
//! It prints, and asserts nothing: times belong to the machine they were taken on. Only the ratios
//! hold on other machines, which is why all of one run is printed together. Words behind `--`
//! choose parts, and numbers among the sizes: `cargo bench -p denizen-tests --bench services --
//! cold 10000`. Another word or size is an error.
//!
//! All that it makes in the kernel is in nameless network namespaces, which end with it, however it
//! ends.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock, writes manifests, and runs the programs that it compares with"
)]

mod clock;
mod connect;
mod kube_proxy;
mod listening;
mod manifests;
mod memory;
mod programmed;

use std::process::ExitCode;

use denizen_tests::bench::{Bench, Chosen, Sizes};

use crate::kube_proxy::Other;
use crate::programmed::Programmed;

/// How many services; four endpoints each. The last two are too much for kube-proxy's shape.
const SIZES: [usize; 4] = [1_000, 10_000, 50_000, 100_000];

/// The parts, by the words that choose them.
const PARTS: [&str; 5] = ["cold", "kube-proxy", "listening", "memory", "connect"];

fn main() -> ExitCode {
    Bench {
        processes: &[(&["run", "status"], memory::agent), (&["engine"], memory::engine_alone)],
        parts: &PARTS,
        sizes: Sizes::Of(&SIZES),
    }
    .run(|chosen| {
        measure(chosen);
        Ok(())
    })
}

fn measure(chosen: &Chosen) {
    clock::listen_to_spans();
    let sizes = &chosen.sizes;
    let ours = if chosen.has("cold") { programmed::all(sizes) } else { Vec::new() };
    let other = if chosen.has("kube-proxy") { kube_proxy::all(sizes) } else { Vec::new() };
    ratios(&ours, &other);
    if chosen.has("listening") {
        listening::report();
    }
    if chosen.has("memory") {
        memory::report();
    }
    if chosen.has("connect") {
        connect::report();
    }
}

/// Prints the ratios between the figures of this run.
fn ratios(ours: &[Programmed], other: &[Other]) {
    if ours.is_empty() {
        return;
    }
    println!("\n## Ratios of this run\n");
    for (ours, other) in
        ours.iter().filter_map(|o| Some((o, other.iter().find(|x| x.services == o.services)?)))
    {
        let change = ours.endpoint.whole().median();
        println!(
            "{:>6} services: kube-proxy's shape takes {:.0} times as long to load, {:.0} times for one \
             endpoint",
            ours.services,
            other.load.as_secs_f64() / ours.cold.whole.as_secs_f64(),
            other.change.median().as_secs_f64() / change.as_secs_f64(),
        );
    }
    if let (Some(first), Some(last)) = (ours.first(), ours.last())
        && first.services < last.services
    {
        let growth = |pick: fn(&Programmed) -> clock::Samples| {
            pick(last).median().as_secs_f64() / pick(first).median().as_secs_f64()
        };
        println!(
            "from {} to {} services, one endpoint's change grows {:.2}-fold in the kernel, {:.2}-fold \
             in all",
            first.services,
            last.services,
            growth(|p| p.endpoint.commit()),
            growth(|p| p.endpoint.whole()),
        );
    }
}
