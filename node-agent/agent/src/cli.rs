//! The command line's commands.

mod bird;
mod check;
mod cleanup;
mod connections;
mod drops;
mod log_level;
mod offline;
mod probe;
mod relay;
mod trace;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use denizen_state::run_dir;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{info, warn};

use self::cleanup::CleanupArgs;

use crate::agent::{self, Startup};
use crate::config::file::{Completed, FlagsInForce, complete, with_booleans};
use crate::config::{LogFormat, PolicyArgs, RunArgs, RunDirArgs};
use crate::control::{AgentClient, ControlError, ExplainQuery};
use crate::install::{self, InstallArgs};
use crate::log::log_to_standard_error;
use crate::memory;
use denizen_backend::BackendName;
use denizen_backend::chosen::{self, Choice};
use denizen_observe::names::Names;
use denizen_plan::explain::Explanation;
use denizen_text::{eprint_line, printable_json, printable_lines};

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
    /// Print the rules that `run` would program. Needs no root
    Render(Box<offline::RenderArgs>),
    /// Explain what happens to a packet on this node, step by step, and why
    Explain(Box<ExplainArgs>),
    /// Follow real packets through this node's rules, and compare them with what `explain` says
    Trace(Box<trace::TraceArgs>),
    /// Show the node's connections in terms of pods and services
    Connections(connections::ConnectionsArgs),
    /// Show what the agent's rules drop and refuse, and why
    Drops(drops::DropsArgs),
    /// Show what the running agent knows and has programmed
    Status(StatusArgs),
    /// Show or change what the running agent logs, until it restarts
    LogLevel(log_level::LogLevelArgs),
    /// Answer requests from standard input, a JSON line each: what `kubectl denizen` runs
    Relay(relay::RelayArgs),
    /// Answer, or connect to, the other end of a connectivity test: what pods of `kubectl denizen
    /// test` run. Needs no agent
    Probe(probe::ProbeArgs),
    /// Check whether this node has what denizen needs, and whether what is installed works
    Check(Box<check::CheckArgs>),
    /// Install the CNI plugin and its entry in the CNI configuration, and keep them installed
    InstallCni(Box<InstallArgs>),
    /// Remove everything that denizen has programmed on this node
    Cleanup(CleanupArgs),
    /// Become BIRD, with the configuration that `run --routing-mode=bird` writes: for a container
    Bird(bird::BirdArgs),
    /// Do nothing until a signal ends this program: a pod's last container, which keeps the pod
    /// running after its init containers
    Pause,
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
    /// The packet's source (a pod of this node by its name), and its input interface
    #[arg(
        long,
        value_name = "ADDR|NAMESPACE/POD[@INTERFACE]",
        required_unless_present = "announce"
    )]
    from: Option<String>,
    /// The packet's destination: an address, or a service or a pod of this node by its name; for a
    /// ping, /icmp or /icmpv6 in place of the port
    #[arg(
        long,
        value_name = "ADDR:PORT|NAMESPACE/NAME:PORT[/PROTO]",
        required_unless_present = "announce"
    )]
    to: Option<String>,
    /// Explain why this node announces an address, or does not, in place of a packet
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["from", "to", "manifests"])]
    announce: Option<IpAddr>,
    /// Answer from these manifests (and from the state file in --run-dir, if given), without the
    /// running agent
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// The running agent's run directory
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    run_dir: RunDirArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    with_booleans(Cli::command())
}

/// The parsed command line, completed from its configuration file.
struct Parsed {
    command: Command,
    /// The fields of the file that have no effect.
    ignored: Vec<String>,
    /// The flags of `run`.
    flags: FlagsInForce,
}

fn parsed(words: Vec<OsString>) -> anyhow::Result<Parsed> {
    let command = command();
    let Completed { words, ignored } = complete(&command, words)?;
    let matches = command.clone().get_matches_from(words);
    if let Some(("explain", given)) = matches.subcommand() {
        refuse_policy_flags(given)?;
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    Ok(Parsed { command: cli.command, ignored, flags: FlagsInForce::of(&command, &matches) })
}

/// Refuses policy flags without `--manifests`: a running agent uses the flags that it was started
/// with.
fn refuse_policy_flags(explain: &ArgMatches) -> anyhow::Result<()> {
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
        "{}: only with --manifests. Without it the running agent answers, and uses its own flags",
        named.join(", ")
    );
    Ok(())
}

/// Parses the command line and runs the command. Returns the exit code.
///
/// # Errors
/// The error to print, with its causes.
pub fn run() -> anyhow::Result<ExitCode> {
    let Parsed { command, ignored, mut flags } = match parsed(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => return Ok(unusable(&error)),
    };
    if !matches!(command, Command::Run(_)) {
        ignored.iter().for_each(|what| eprint_line(format_args!("denizen-agent: {what}")));
    }
    match command {
        Command::Run(args) => {
            memory::set_up();
            let log = log_to_standard_error(args.log_format);
            ignored
                .iter()
                .for_each(|what| warn!(what, "a field of the configuration file has no effect"));
            let Choice { backend, why } = backend_here(&args.policy)?;
            let config = args.check(backend)?;
            if args.policy.services.are_served() {
                flags.chosen_backend(&backend.to_string());
            }
            block_on(agent::run(config, Startup { backend_why: why, flags, log }))
        }
        Command::Render(args) => offline::render(&args),
        Command::Explain(args) => explain(*args),
        Command::Trace(args) => trace::trace(*args),
        Command::Connections(args) => connections::connections(args),
        Command::Drops(args) => drops::drops(args),
        Command::Check(args) => return check::check(&args),
        Command::Status(StatusArgs { run_dir, output }) => {
            show(&ask(&run_dir.run_dir, async |agent| agent.status().await)?, output)
        }
        Command::LogLevel(args) => log_level::log_level(args),
        Command::Relay(args) => relay::relay(&args),
        Command::Probe(args) => probe::probe(args),
        Command::InstallCni(args) => {
            let _ = log_to_standard_error(LogFormat::Text);
            block_on(async move { install::run(&args).await })
        }
        Command::Cleanup(args) => cleanup::cleanup(&args),
        Command::Bird(args) => bird::bird(&args),
        Command::Pause => block_on(agent::pause()),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints what is wrong with the command line or the configuration file. Returns the exit code that
/// clap has for a wrong command line.
fn unusable(error: &anyhow::Error) -> ExitCode {
    eprint_line(format_args!("denizen-agent: {}", printable_lines(&format!("{error:#}"))));
    ExitCode::from(2)
}

fn explain(args: ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { from, to, announce, .. } = args;
    if let Some(announce) = announce {
        let run_dir: PathBuf = args.run_dir.unwrap_or_else(|| run_dir::DEFAULT.into());
        let announced = ask(&run_dir, async |agent| agent.announce(announce).await)?;
        return show(&announced, args.output);
    }
    let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
    let explanation: Explanation = match args.manifests {
        Some(manifests) => {
            let (policy, run_dir) = (args.policy, args.run_dir);
            let facts = offline::Facts { policy, manifests, run_dir };
            offline::explain(&facts, &from, &to)?
        }
        None => {
            let run_dir: PathBuf = args.run_dir.unwrap_or_else(|| run_dir::DEFAULT.into());
            let query = ExplainQuery { from, to };
            ask(&run_dir, async |agent| agent.explain(query).await)?
        }
    };
    show(&explanation, args.output)
}

/// Chooses the backend on this node, and logs why.
fn backend_here(policy: &PolicyArgs) -> anyhow::Result<Choice> {
    let choice = match policy.backend.chosen() {
        _ if !policy.services.are_served() => Choice {
            backend: BackendName::None,
            why: "--services=off: another program serves services".to_owned(),
        },
        Some(backend) => Choice { backend, why: "it is configured".to_owned() },
        None => chosen::automatic(policy.detect.detector())?,
    };
    info!(backend = %choice.backend, why = choice.why, "backend chosen");
    Ok(choice)
}

/// Asks the running agent.
fn ask<T>(
    run_dir: &Path,
    request: impl AsyncFnOnce(AgentClient) -> Result<T, ControlError>,
) -> anyhow::Result<T> {
    let client = AgentClient::new(run_dir);
    block_on(async { Ok(request(client).await?) })
}

fn names(run_dir: &Path) -> anyhow::Result<Names> {
    ask(run_dir, async |agent| agent.names().await)
}

fn show<T: serde::Serialize + std::fmt::Display>(value: &T, output: Output) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => printable_lines(&value.to_string()),
        Output::Json => printable_json(&serde_json::to_string_pretty(value)?) + "\n",
    };
    print(&text)
}

/// Ends this process once its output has no reader any more. A command that prints nothing for long
/// would otherwise not notice.
fn end_with_reader() {
    thread::spawn(|| {
        let stdout = io::stdout();
        // Without requested events, poll waits for errors alone: a pipe without a reader, a
        // terminal that hung up.
        let mut output = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        if poll(&mut output, PollTimeout::NONE).is_ok() {
            process::exit(0);
        }
    });
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// One thread: nf_tables notifications name the thread that commits, and a netlink batch takes less
/// time than passing it to another thread.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(future);
    // Without waiting for blocked threads, for example for one whose disk does not answer: they end
    // with the process.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_blocked_thread_does_not_keep_the_program_from_ending() {
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
