//! The program `denizen-agent`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match denizen_agent::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("denizen-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
