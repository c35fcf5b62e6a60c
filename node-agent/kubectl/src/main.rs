//! The program `kubectl-denizen`, which kubectl runs as `kubectl denizen`.

use std::process::ExitCode;

/// musl's own allocator takes a third more processor time for a picture of 3,000 pods.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    denizen_kubectl::cli::run(std::env::args_os().collect())
}
