//! The program `denizen-agent`.

use std::process::ExitCode;

use denizen_text::printable_lines;

fn main() -> ExitCode {
    match denizen_agent::cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("denizen-agent: {}", printable_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
