//! What the backend ipvs costs next to nftables: `cargo bench -p denizen-tests --bench ipvs`.
//!
//! 10,000 services of four endpoints on Debian's stock kernel, in an emulated machine, since the
//! tests' own kernel need not have IPVS: the start, one change, the memory of the agent and of the
//! kernel, how long a connection takes, and the removal of a pod's interface; with ipvs, also how
//! long connections take with IPVS's rate estimation on and off.
//!
//! It prints, and asserts nothing. A number behind `--` is another count of services. An emulated
//! processor is slow: only the ratios hold on other machines. It takes some minutes.

use std::process::ExitCode;

use denizen_tests::bench::{Bench, Sizes};
use denizen_tests::kernel::vm::{self, BENCH, Processors, SERVICES};

/// The number of services, unless the command line names another.
const MANY: usize = 10_000;

fn main() -> ExitCode {
    Bench { sizes: Sizes::Any, ..Bench::default() }.run(|chosen| {
        let services = chosen.sizes.first().copied().unwrap_or(MANY);
        vm::run(Processors::OfItsOwnTime, BENCH, &format!("{SERVICES}={services}"))
    })
}
