//! The chained CNI plugin `denizen`: see the library.

use std::env::args_os;
use std::ffi::OsString;
use std::io::{Write, stderr, stdin, stdout};
use std::process::ExitCode;
use std::time::SystemTime;

use denizen_cni::{CallResult, Environment, inspect, run};
use denizen_state::run_dir;

#[expect(clippy::disallowed_methods, reason = "the I/O edge: the process's clock is read once")]
fn main() -> ExitCode {
    let mut arguments = args_os().skip(1);
    if arguments.next().is_some_and(|command| command == "inspect") {
        return inspected(&arguments.collect::<Vec<_>>());
    }
    let (written, code) = match run(&Environment::of_process(), stdin().lock(), SystemTime::now()) {
        CallResult::Done(output) => (stdout().write_all(output.as_bytes()), ExitCode::SUCCESS),
        CallResult::Failed(object) => (stdout().write_all(object.as_bytes()), ExitCode::FAILURE),
        CallResult::ByHand(about) => (stderr().write_all(about.as_bytes()), ExitCode::SUCCESS),
    };
    // If standard output is closed, the reader cannot get an error text either, so only the exit
    // code reports it.
    written.and_then(|()| stdout().flush()).map_or(ExitCode::FAILURE, |()| code)
}

/// What `denizen inspect --help` prints.
const USAGE: &str = "\
Shows how a pod's TCP is redirected to its proxy: each rule in the pod, the connections that it has
counted, and what is not as recorded. Run it as root on the pod's node.

Usage: denizen inspect CONTAINER|NAMESPACE/POD [RUN_DIR]

  CONTAINER      the sandbox's id, or its beginning (crictl pods)
  NAMESPACE/POD  the pod's name
  RUN_DIR        the directory of the state file, if not /run/denizen

It ends with 0, or with 1 if the pod is not recorded or cannot be looked into.
";

/// `denizen inspect`, with the arguments after it.
fn inspected(arguments: &[OsString]) -> ExitCode {
    let texts: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let shown = match texts.iter().map(|argument| &**argument).collect::<Vec<_>>()[..] {
        [.., "--help" | "-h"] => Ok(USAGE.to_owned()),
        [] | ["", ..] => Err(format!("the pod is missing\n\n{USAGE}")),
        [_, _, more, ..] => Err(format!("{more:?} is too much\n\n{USAGE}")),
        [flag, ..] | [_, flag] if flag.starts_with('-') => {
            Err(format!("there is no option {flag}\n\n{USAGE}"))
        }
        [pod] => inspect(run_dir::DEFAULT.as_ref(), pod).map_err(|error| error.in_full() + "\n"),
        [pod, _] => inspect(arguments[1].as_ref(), pod).map_err(|error| error.in_full() + "\n"),
    };
    let (written, code) = match shown {
        Ok(text) => (stdout().write_all(text.as_bytes()), ExitCode::SUCCESS),
        Err(why) => (write!(stderr(), "denizen: {why}"), ExitCode::FAILURE),
    };
    written.map_or(ExitCode::FAILURE, |()| code)
}
