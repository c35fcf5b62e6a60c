//! What the backend ipvs costs next to nftables: `cargo bench -p denizen-tests --bench ipvs`.
//!
//! 10,000 services of four endpoints on Debian's stock kernel, in an emulated machine, since the
//! tests' own kernel need not have IPVS: the start, one change, the memory of the agent and of the
//! kernel, how long a connection takes, and the removal of a pod's interface; with ipvs, how long
//! connections take while IPVS estimates rates and while it does not.
//!
//! It prints, and asserts nothing. A number behind `--` is that of the services. An emulated
//! processor is slow: only the ratios can be carried to another machine. It takes some minutes.

use std::process::ExitCode;

use denizen_tests::vm::{self, BENCH, Processors, SERVICES};

/// How many services, if nobody says it.
const MANY: u32 = 10_000;

fn main() -> ExitCode {
    if !std::env::args().any(|word| word == "--bench") {
        println!("not run: this is a bench, and `cargo test` builds it only");
        return ExitCode::SUCCESS;
    }
    let services = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(MANY);
    match vm::run(Processors::OfItsOwnTime, BENCH, &format!("{SERVICES}={services}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
