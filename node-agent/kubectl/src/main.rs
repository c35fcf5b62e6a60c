//! The program `kubectl-denizen`, which kubectl runs as `kubectl denizen`.

use std::process::ExitCode;

fn main() -> ExitCode {
    denizen_kubectl::cli::run(std::env::args_os().collect())
}
