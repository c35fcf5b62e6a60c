//! `tests/apiserver` runs this: see [`denizen_tests::apiserver`].

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use denizen_tests::apiserver;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match table(&words) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("apiserver: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn table(words: &[String]) -> Result<String> {
    let [program, services, pods] = words else { bail!("FILE SERVICES PODS") };
    let number = |word: &String| word.parse().with_context(|| format!("{word} is no number"));
    apiserver::measure(Path::new(program), number(services)?, number(pods)?)
}
