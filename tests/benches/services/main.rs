//! What services cost: `cargo bench -p denizen-tests --bench services`, as root.
//!
//! From parsed manifests to the kernel, and one change, for 1,000 to 50,000 services of four
//! endpoints, by the agent's own engine in network namespaces that are made here; next to `nft -f`
//! of the same services in kube-proxy's shape. Memory, and how long a connection takes to the last
//! of many services.
//!
//! It prints, and asserts nothing: times belong to the machine they were taken on. What can be
//! carried from one machine to another are the ratios, which is why all of one run is printed
//! together. Words behind `--` choose parts, and numbers among the sizes: `cargo bench -p
//! denizen-tests --bench services -- cold 10000`.
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

use crate::kube_proxy::Other;
use crate::programmed::Programmed;

/// How many services; four endpoints each. The last is too much for kube-proxy's shape.
const SIZES: [usize; 3] = [1_000, 10_000, 50_000];

/// The parts, by the words that choose them.
const PARTS: [&str; 5] = ["cold", "kube-proxy", "listening", "memory", "connect"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        // The bench starts itself anew to be the process whose memory is measured.
        Some("run" | "status") => return memory::agent(),
        Some("engine") => return memory::engine_alone(&words[1..]),
        _ => {}
    }
    if !words.iter().any(|word| word == "--bench") {
        println!("not run: this is a bench, and `cargo test` builds it only");
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&str> =
        PARTS.into_iter().filter(|part| words.iter().any(|word| word == part)).collect();
    let wants = |part| chosen.is_empty() || chosen.contains(&part);
    let named: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let sizes: Vec<usize> =
        SIZES.into_iter().filter(|size| named.is_empty() || named.contains(size)).collect();
    clock::listen_to_spans();
    let ours = if wants("cold") { programmed::all(&sizes) } else { Vec::new() };
    let other = if wants("kube-proxy") { kube_proxy::all(&sizes) } else { Vec::new() };
    ratios(&ours, &other);
    if wants("listening") {
        listening::report();
    }
    if wants("memory") {
        memory::report();
    }
    if wants("connect") {
        connect::report();
    }
    ExitCode::SUCCESS
}

/// What the figures of this run say of one another.
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
            "{:>6} services: kube-proxy's shape takes {:.0} times as long to load, {:.0} times for one endpoint",
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
            "from {} to {} services, one endpoint's change grows {:.2}-fold in the kernel, {:.2}-fold in all",
            first.services,
            last.services,
            growth(|p| p.endpoint.commit()),
            growth(|p| p.endpoint.whole()),
        );
    }
}
