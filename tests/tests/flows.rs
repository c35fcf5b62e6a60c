//! The table of packets, each as real connections through the real agent: every case with every
//! backend that it is for, with bridged and with routed pods, and `explain` asked about every
//! packet. A test each.

use anyhow::{Result, ensure};
use denizen_tests::flows::play;
use denizen_tests::flows::table::{self, Backend};
use denizen_tests::pod::Wiring;
use libtest_mimic::{Arguments, Trial};

fn trials() -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for backend in Backend::ALL {
        let cases = table::cases(backend)?;
        ensure!(!cases.is_empty(), "the table has no case for {backend:?}");
        for case in cases {
            for wiring in [Wiring::Bridged, Wiring::Routed] {
                let case = case.clone();
                let name = format!("{backend:?}::{wiring:?}::{}", case.name.replace(' ', "_"));
                let outcome = move || {
                    let played = play(&case, backend, wiring);
                    played.map(drop).map_err(|error| format!("{error:#}").into())
                };
                trials.push(Trial::test(name, outcome));
            }
        }
    }
    Ok(trials)
}

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, trials()?).exit()
}
