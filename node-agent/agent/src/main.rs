//! The program `denizen-agent`.

use std::process::ExitCode;

use denizen_text::{eprint_line, printable_lines};

fn main() -> ExitCode {
    match denizen_agent::cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprint_line(format_args!("denizen-agent: {}", printable_lines(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    }
}
