//! What packets of pods cost the node with and without a flowtable, in instructions of an emulated
//! processor: `tests/fast-path`, as root. `tests/src/bin/guest/fast_path` is what is measured.
//!
//! It boots Debian's stock kernel and its newest one; `stock` or `newest` behind `--` chooses.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::bench::{Chosen, Sizes};
use denizen_tests::vm::{self, FAST_PATH, NEWEST_KERNEL, Processors, STOCK_KERNEL};

/// The kernels' folders, by the words that choose them.
const KERNELS: [(&str, &str); 2] = [("stock", STOCK_KERNEL), ("newest", NEWEST_KERNEL)];

/// A guest that has not ended by then never will, on a machine with much else to do.
const BOUND: Duration = Duration::from_secs(2 * 60 * 60);

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        println!("not run: this is a bench, and `cargo test` builds it only");
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = Chosen::of(&words, &KERNELS.map(|(kernel, _)| kernel), Sizes::Of(&[]))?;
    for (_, folder) in KERNELS.iter().filter(|(kernel, _)| chosen.has(kernel)) {
        vm::run_kernel(folder, BOUND, Processors::OfItsOwnTime, FAST_PATH, "")?;
    }
    Ok(ExitCode::SUCCESS)
}
