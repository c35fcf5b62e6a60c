//! The commands.

mod cleanup;
mod offline;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use denizen_shared::run_dir;
use serde::de::DeserializeOwned;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

use self::cleanup::CleanupArgs;

use crate::agent;
use crate::backend::chosen::{self, Choice};
use crate::config::file::{Completed, complete, with_booleans};
use crate::config::{LogFormat, PolicyArgs, RunArgs, RunDirArgs};
use crate::control::{self, Empty, ExplainQuery, Request};
use crate::explain::{Explanation, Packet};
use crate::install::{self, InstallArgs};
use crate::printable::{Printable, printable_json, printable_lines};
use crate::status::Status;

/// Service networking for a node that knows its own pods.
#[derive(Debug, Parser)]
#[command(name = "denizen-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Program this node's services, and keep them programmed
    Run(Box<RunArgs>),
    /// The rules that `run` would program, on standard output; needs no root
    Render(Box<offline::RenderArgs>),
    /// What happens to a packet here, step by step, and why
    Explain(Box<ExplainArgs>),
    /// What the running agent knows and has programmed
    Status(StatusArgs),
    /// Put the CNI plugin and its place in the runtime's configuration there, and keep them there
    InstallCni(Box<InstallArgs>),
    /// Remove everything that denizen ever programmed on this node
    Cleanup(CleanupArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For a person.
    Text,
    /// For a program.
    Json,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// Who sends, and through which interface the packet comes in
    #[arg(long, value_name = "ADDR[@INTERFACE]")]
    from: String,
    /// Where to
    #[arg(long, value_name = "ADDR:PORT[/PROTO]")]
    to: String,
    /// Answer from these manifests (and from the state file in --run-dir, where that is given) in
    /// place of the running agent
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// The running agent's run directory
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    run_dir: RunDirArgs,
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// What may stand on the command line.
pub fn command() -> clap::Command {
    with_booleans(Cli::command())
}

/// The command line, completed from the configuration file that it may name; and what of that file
/// has no effect.
fn asked() -> anyhow::Result<(Command, Vec<String>)> {
    let command = command();
    let Completed { words, ignored } = complete(&command, std::env::args_os().collect())?;
    let matches = command.get_matches_from(words);
    if let Some(("explain", given)) = matches.subcommand() {
        decides_here(given)?;
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    Ok((cli.command, ignored))
}

/// Flags that decide about packets do so offline alone: a running agent goes by those that it was
/// started with.
fn decides_here(explain: &ArgMatches) -> anyhow::Result<()> {
    if explain.contains_id("manifests") {
        return Ok(());
    }
    let policy = PolicyArgs::augment_args(clap::Command::new("policy"));
    let written = |arg: &&clap::Arg| {
        explain.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let named = policy.get_arguments().filter(written).filter_map(clap::Arg::get_long);
    let named: Vec<String> = named.map(|long| format!("--{long}")).collect();
    anyhow::ensure!(
        named.is_empty(),
        "{}: without --manifests the running agent answers, which goes by its own flags",
        named.join(", ")
    );
    Ok(())
}

/// Reads the command line and does what it says.
///
/// # Errors
/// What a person should read, causes included.
pub fn run() -> anyhow::Result<()> {
    let (command, ignored) = asked()?;
    if !matches!(command, Command::Run(_)) {
        ignored.iter().for_each(|what| eprintln!("denizen-agent: {what}"));
    }
    match command {
        Command::Run(args) => {
            log_to_standard_error(args.log_format);
            ignored
                .iter()
                .for_each(|what| warn!(what, "the configuration file says what has no effect"));
            let Choice { backend, why } = backend_here(&args.policy)?;
            let config = args.check(backend)?;
            block_on(agent::run(config, why))
        }
        Command::Render(args) => offline::render(&args),
        Command::Explain(args) => explain(*args),
        Command::Status(StatusArgs { run_dir, output }) => {
            let status: Status = ask(run_dir.run_dir, Request::Status { status: Empty {} })?;
            show(&status, output)
        }
        Command::InstallCni(args) => {
            log_to_standard_error(LogFormat::Text);
            block_on(async move { install::run(&args).await })
        }
        Command::Cleanup(args) => cleanup::cleanup(&args),
    }
}

fn explain(args: ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { from, to, .. } = args;
    let packet = Packet::parse(&from, &to)?;
    let explanation: Explanation = match args.manifests {
        Some(manifests) => {
            let (policy, run_dir) = (args.policy, args.run_dir);
            let facts = offline::Facts { policy, manifests, run_dir };
            offline::explain(&facts, &packet)?
        }
        None => {
            let run_dir = args.run_dir.unwrap_or_else(|| run_dir::DEFAULT.into());
            let explain = ExplainQuery { from, to };
            ask(run_dir, Request::Explain { explain })?
        }
    };
    show(&explanation, args.output)
}

/// The backend on this node; whichever it is, the log says why.
fn backend_here(policy: &PolicyArgs) -> anyhow::Result<Choice> {
    let choice = match policy.backend.chosen() {
        Some(backend) => Choice { backend, why: "it was asked for".to_owned() },
        None => chosen::automatic(&policy.detector()?)?,
    };
    info!(backend = %choice.backend, why = choice.why, "backend chosen");
    Ok(choice)
}

fn ask<T: DeserializeOwned>(run_dir: PathBuf, request: Request) -> anyhow::Result<T> {
    let answer = block_on(async move { Ok(control::ask(&run_dir, &request).await?) })?;
    serde_json::from_value(answer).context("the agent answers otherwise than this program expects")
}

fn show<T: serde::Serialize + std::fmt::Display>(value: &T, output: Output) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => printable_lines(&value.to_string()),
        Output::Json => printable_json(&serde_json::to_string_pretty(value)?) + "\n",
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads, as `head` does, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// One thread: the kernel names the thread that commits, and a netlink batch is quicker than a
/// hand-over.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(future);
    // A thread that waits for a disk that does not answer ends with the process, which waits for
    // nobody.
    runtime.shutdown_background();
    result
}

fn log_to_standard_error(format: LogFormat) {
    // What kube's client has to say, the source of the API says once, with what follows from it.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // As the default, but for what a terminal should not obey: values have names in them that
    // others wrote.
    let fields = format::debug_fn(|line, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(line, "{}", Printable(&value)),
            name => write!(line, "{name}={}", Printable(&value)),
        }
    });
    match format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .fmt_fields(fields.delimited(" "))
            .init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_waits_for_ever_does_not_keep_the_program_from_ending() {
        let (ended, end) = channel();
        let (_never, nothing) = channel::<()>();
        std::thread::spawn(move || {
            let result = block_on(async move {
                let (started, start) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let _ = started.send(());
                    let _ = nothing.recv();
                });
                Ok(start.await?)
            });
            let _ = ended.send(result.is_ok());
        });
        // Far more than any machine needs.
        assert_eq!(end.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}
