//! The chained CNI plugin `denizen`: see the library.

use std::io::{Write, stderr, stdin, stdout};
use std::process::ExitCode;
use std::time::SystemTime;

use denizen_cni::{Environment, Outcome, run};

#[expect(clippy::disallowed_methods, reason = "the I/O edge: the process's clock is read once")]
fn main() -> ExitCode {
    let (written, code) = match run(&Environment::of_process(), stdin().lock(), SystemTime::now()) {
        Outcome::Done(output) => (stdout().write_all(output.as_bytes()), ExitCode::SUCCESS),
        Outcome::Failed(object) => (stdout().write_all(object.as_bytes()), ExitCode::FAILURE),
        Outcome::ByHand(about) => (stderr().write_all(about.as_bytes()), ExitCode::SUCCESS),
    };
    // If standard output is closed, the reader cannot get an error text either, so only the exit
    // code reports it.
    written.and_then(|()| stdout().flush()).map_or(ExitCode::FAILURE, |()| code)
}
