//! `tests/quickstart` runs this: see [`denizen_tests::quickstart`].

use std::process::ExitCode;

use anyhow::{Result, bail};
use denizen_tests::quickstart;

const USAGE: &str = "tests/quickstart [--keep | --cleanup]

  --keep      leave the node up to play with, and say how
  --cleanup   take away a node that was left up";

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => quickstart::run(false),
        ["--keep"] => quickstart::run(true),
        ["--cleanup"] => {
            quickstart::remove_kept();
            Ok(ExitCode::SUCCESS)
        }
        [quickstart::serve::WORD, ..] => {
            quickstart::serve::main(&arguments[1..]).map(|()| ExitCode::SUCCESS)
        }
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("what is {}?\n\n{USAGE}", words.join(" ")),
    }
}
