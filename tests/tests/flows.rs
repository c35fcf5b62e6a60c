//! The table of packets, each as real connections through the real agent: every case with every
//! backend that it is for, with bridged and with routed pods, and `explain` asked about every
//! packet. A test runs all cases of a backend and a wiring, one after the other on the same node.
//!
//! Who works on one case sets `DENIZEN_FLOWS` to a part of its name.

use anyhow::{Result, ensure};
use denizen_tests::node::pod::Wiring;
use denizen_tests::oracle::flows::run_cases;
use denizen_tests::oracle::flows::table::{self, Backend, FlowCase};
use libtest_mimic::{Arguments, Failed, Trial};

/// The variable for a part of a case's name.
const ONLY: &str = "DENIZEN_FLOWS";

fn run_all(backend: Backend, wiring: Wiring) -> Result<()> {
    let only = std::env::var(ONLY).unwrap_or_default();
    let cases = table::cases(backend)?.into_iter().filter(|case| case.name.contains(&only));
    let cases: Vec<FlowCase> = cases.collect();
    ensure!(!cases.is_empty(), "the table has no case for {backend:?} called like {only:?}");
    run_cases(&cases, backend, wiring).map(drop)
}

fn main() {
    let mut trials = Vec::new();
    for backend in Backend::ALL {
        for wiring in [Wiring::Bridged, Wiring::Routed] {
            let test = move || {
                run_all(backend, wiring).map_err(|error| Failed::from(format!("{error:#}")))
            };
            trials.push(Trial::test(format!("{backend:?}::{wiring:?}"), test));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
