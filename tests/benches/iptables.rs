//! What services cost with iptables: `cargo bench -p denizen-tests --bench iptables`, as root.
//!
//! A cold start and one endpoint's change for 5,000 services of four endpoints, by the agent's own
//! engine, in the tables of ip_tables and of nf_tables; next to an `iptables-restore` of the very
//! same rules in the same run. A number behind `--` is another count of services; `legacy` or `nft`
//! chooses a variant.
//!
//! The goal is a ratio, and the exit code says whether it is met: a change costs under a tenth of
//! that `iptables-restore`. In the tables of ip_tables no program can meet it: each change reads
//! all rules out of the kernel and writes them all back (`IPT_SO_SET_REPLACE`, which alone takes
//! more than a tenth of the load), so the goal is missed there. For comparison, the bench also
//! measures the smallest change that `iptables-restore` can make. Where ip_tables refuses one
//! service's chain, its program does not say which: the bench prints how much longer a cold start
//! then takes. All that it makes in the kernel is in nameless network namespaces, which end with
//! it, however it ends.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock, writes manifests, and runs the programs that it compares with"
)]
#![allow(dead_code, reason = "manifests are another bench's too")]

#[path = "services/manifests.rs"]
mod manifests;

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use denizen_agent::engine::{Engine, Progress};
use denizen_backend::BackendName;
use denizen_backend::chosen::BackendConfig;
use denizen_iptables::Variant;
use denizen_model::{Event, Slice};
use denizen_observe::status::metrics::SyncExtent;
use denizen_tests::bench::{Bench, Chosen, Sizes};
use denizen_tests::node::cni::Namespace;
use denizen_tests::peers::kube_proxy::service_chain;

use crate::manifests::spare_ip;

const SERVICES: usize = 5_000;
/// Changes of one endpoint; the median counts.
const CHANGES: usize = 21;
/// Loading everything must take more than this many times as long as a change.
const GOAL: u32 = 10;
/// The smallest change: a chain that no rule jumps to.
const LEAST: &[u8] = b"*nat\n:DENIZEN-BENCH - [0:0]\n-A DENIZEN-BENCH -j RETURN\nCOMMIT\n";

fn main() -> ExitCode {
    Bench { parts: &["legacy", "nft"], sizes: Sizes::Any, ..Bench::default() }.run(measure)
}

fn measure(chosen: &Chosen) -> Result<()> {
    let services = chosen.sizes.first().copied().unwrap_or(SERVICES);
    let folder = manifests::folder(services);
    let facts = manifests::facts(folder.path());
    println!("\n## iptables, {services} services of 4 endpoints\n");
    let variants = [("legacy", Variant::Legacy), ("nft", Variant::Nft)];
    let mut is_met = true;
    for (name, variant) in variants.into_iter().filter(|(name, _)| chosen.has(name)) {
        let facts = facts.clone();
        let own = facts.clone();
        let took = Namespace::new().run(move || measured(name, variant, own));
        let cold = took.cold.as_secs_f64();
        let is_under = took.change * GOAL < took.load;
        let by = |other: Duration| other.as_secs_f64() / took.change.as_secs_f64();
        println!(
            "{name}: cold {:?}; one endpoint {:?}; iptables-restore of the same {:?}, {:.1} times a \
             change, goal {GOAL}: {}; of the least change {:?}, {:.2} times",
            took.cold,
            took.change,
            took.load,
            by(took.load),
            if is_under { "met" } else { "MISSED" },
            took.least,
            by(took.least),
        );
        is_met &= is_under;
        if variant == Variant::Legacy {
            let facts = facts.clone();
            let took = Namespace::new().run(move || cold_with_one_refused(services / 2, facts));
            println!(
                "{name}: cold with one service refused {took:?}, {:.1} times",
                took.as_secs_f64() / cold
            );
        }
    }
    ensure!(is_met, "a goal is missed");
    Ok(())
}

struct Took {
    cold: Duration,
    change: Duration,
    load: Duration,
    least: Duration,
}

fn measured(name: &str, variant: Variant, facts: Vec<Event>) -> Took {
    let mut slices: Vec<Slice> = Vec::new();
    for fact in &facts {
        if let Event::Slice(_, slice) = fact {
            slices.extend(slice.clone());
        }
    }
    let mut engine = engine(variant);
    let mut programmed = |facts: Vec<Event>| {
        let begun = Instant::now();
        engine.apply(facts);
        settle(&mut engine);
        begun.elapsed()
    };
    let cold = programmed(facts);
    let changes: Vec<Duration> = (0..CHANGES)
        .map(|n| {
            // A prime step: the changes are spread over all slices.
            let mut slice = slices[n * 7919 % slices.len()].clone();
            slice.endpoints[n % 4].address = IpAddr::V4(spare_ip(n));
            programmed(vec![Event::Slice(slice.name.clone(), Some(slice))])
        })
        .collect();
    let least = (0..CHANGES).map(|_| restore(name, &["--noflush"], LEAST)).collect();
    let save = Command::new(format!("iptables-{name}-save")).output();
    let rules = save.expect("iptables is installed").stdout;
    Took { cold, change: median(changes), load: restore(name, &[], &rules), least: median(least) }
}

/// A cold start in which the kernel refuses the chain of one service: before, a foreign rule in
/// POSTROUTING goes to that chain, and there the destination cannot be translated.
fn cold_with_one_refused(service: usize, facts: Vec<Event>) -> Duration {
    let chain = service_chain(&format!("team-{}/service-{service}:http", service % 50));
    let held =
        format!("*nat\n:{chain} - [0:0]\n-A POSTROUTING -d 203.0.113.9 -g {chain}\nCOMMIT\n");
    restore("legacy", &["--noflush"], held.as_bytes());
    let mut engine = engine(Variant::Legacy);
    let begun = Instant::now();
    engine.apply(facts);
    settle(&mut engine);
    let took = begun.elapsed();
    let errors = engine.status(Vec::new()).errors;
    assert!(errors.iter().any(|error| error.contains(&chain)), "{errors:?}");
    took
}

fn engine(variant: Variant) -> Engine {
    let backend = BackendConfig { name: BackendName::Iptables, iptables_variant: Some(variant) };
    Engine::open(manifests::policy(), backend).expect("iptables, as root")
}

/// Waits until all changes are in the kernel: iptables' programs run in threads of their own.
fn settle(engine: &mut Engine) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime with a clock needs nothing");
    loop {
        engine.decide();
        let progress = engine.program(SyncExtent::Partial, "").result;
        if progress.expect("the kernel takes the rules") == Progress::Complete {
            return;
        }
        runtime.block_on(engine.wait());
    }
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations[durations.len() / 2]
}

/// How long `iptables-restore` takes.
fn restore(variant: &str, arguments: &[&str], rules: &[u8]) -> Duration {
    let begun = Instant::now();
    let mut restore = Command::new(format!("iptables-{variant}-restore"))
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .expect("iptables is installed");
    let mut input = restore.stdin.take().expect("it was asked for");
    input.write_all(rules).expect("it reads all");
    drop(input);
    assert!(restore.wait().expect("it ends").success(), "{variant}");
    begun.elapsed()
}
