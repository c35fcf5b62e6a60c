//! `--watch`: asks the same question again and again, and prints each answer that differs from the
//! one before.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use denizen_text::{duration, eprint_line, printable_lines};
use serde_json::Value;

use crate::output::{Format, PrintedAnswer, described, print};

/// The shortest interval: all nodes are asked each time.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WatchArgs {
    /// Ask again and again, every 10 s if no interval is given, until interrupted, and print each
    /// answer that differs; as JSON, on a line
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true,
        default_missing_value = "10s", value_parser = duration)]
    pub watch: Option<Duration>,
}

/// Asks until nobody reads the answers. Returns the exit code of the last one.
pub async fn watch(
    every: Duration,
    format: Format,
    ask: impl AsyncFn() -> anyhow::Result<PrintedAnswer>,
) -> anyhow::Result<ExitCode> {
    let mut last: Option<PrintedAnswer> = None;
    loop {
        match ask().await {
            Ok(answer) if last.as_ref().is_none_or(|last| last.text != answer.text) => {
                let text = match format {
                    Format::Text if last.is_some() => format!("\n{}", answer.text),
                    Format::Text => answer.text.clone(),
                    Format::Json => line(&answer.text)?,
                };
                if !print(&text)? {
                    return Ok(ExitCode::from(answer.code));
                }
                last = Some(answer);
            }
            Ok(_the_same) => {}
            // The API server may be updated meanwhile. What is wrong from the start stays wrong.
            Err(error) if last.is_some() => {
                eprint_line(format_args!(
                    "kubectl denizen: {}",
                    printable_lines(&described(&error))
                ));
            }
            Err(error) => return Err(error),
        }
        #[expect(clippy::disallowed_methods, reason = "that is what an interval is")]
        tokio::time::sleep(every.max(SHORTEST)).await;
    }
}

/// JSON on one line.
fn line(json: &str) -> serde_json::Result<String> {
    Ok(serde_json::from_str::<Value>(json)?.to_string() + "\n")
}
