//! `log-level`: what the running agent logs.

use clap::Args;

use super::{Output, ask, show};
use crate::config::RunDirArgs;
use crate::log::LogLevelQuery;

#[derive(Debug, Args)]
pub(super) struct LogLevelArgs {
    /// off, error, warn, info, debug or trace; by module as MODULE=LEVEL,… Without it, nothing is
    /// changed
    #[arg(value_name = "LEVEL")]
    level: Option<String>,
    /// Make it what it was when the agent started
    #[arg(long, conflicts_with = "level")]
    reset: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn log_level(args: LogLevelArgs) -> anyhow::Result<()> {
    let query = match args.level {
        Some(level) => LogLevelQuery::Set(level),
        None if args.reset => LogLevelQuery::Reset,
        None => LogLevelQuery::Show,
    };
    let answer = ask(&args.run_dir.run_dir, async |agent| agent.log_level(query).await)?;
    show(&answer, args.output)
}
