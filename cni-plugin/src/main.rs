//! The chained CNI plugin `denizen`: see the library.

use std::env::args_os;
use std::io::{Write, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use denizen_cni::{Environment, Outcome, inspect, run};
use denizen_state::run_dir;

#[expect(clippy::disallowed_methods, reason = "the I/O edge: the process's clock is read once")]
fn main() -> ExitCode {
    let mut arguments = args_os().skip(1);
    if arguments.next().is_some_and(|command| command == "inspect") {
        let container = arguments.next().unwrap_or_default();
        return inspected(&container.to_string_lossy(), arguments.next().map(PathBuf::from));
    }
    let (written, code) = match run(&Environment::of_process(), stdin().lock(), SystemTime::now()) {
        Outcome::Done(output) => (stdout().write_all(output.as_bytes()), ExitCode::SUCCESS),
        Outcome::Failed(object) => (stdout().write_all(object.as_bytes()), ExitCode::FAILURE),
        Outcome::ByHand(about) => (stderr().write_all(about.as_bytes()), ExitCode::SUCCESS),
    };
    // If standard output is closed, the reader cannot get an error text either, so only the exit
    // code reports it.
    written.and_then(|()| stdout().flush()).map_or(ExitCode::FAILURE, |()| code)
}

/// `denizen inspect CONTAINER [RUN_DIR]`.
fn inspected(container: &str, run_dir: Option<PathBuf>) -> ExitCode {
    if container.is_empty() {
        eprintln!("denizen inspect CONTAINER|NAMESPACE/POD [RUN_DIR]");
        return ExitCode::FAILURE;
    }
    let run_dir = run_dir.unwrap_or_else(|| run_dir::DEFAULT.into());
    let written = match inspect(&run_dir, container) {
        Ok(text) => stdout().write_all(text.as_bytes()),
        Err(error) => {
            eprintln!("denizen: {}", error.in_full());
            return ExitCode::FAILURE;
        }
    };
    written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
