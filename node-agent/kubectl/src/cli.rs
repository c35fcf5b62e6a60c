//! The command line, and exit codes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use denizen_text::{duration, eprint_line, printable_lines};

use crate::cluster::{Api, ClusterArgs};
use crate::completion;
use crate::output::{Format, Level, PrintedAnswer, UNUSABLE, described, print};
use crate::survey::Limits;
use crate::verb::bundle::{self, BundleArgs};
use crate::verb::connections::{self, ConnectionsArgs};
use crate::verb::explain::{self, ExplainArgs};
use crate::verb::impact::{self, ImpactArgs};
use crate::verb::test::{self, TestArgs};
use crate::verb::trace::{self, TraceArgs};
use crate::verb::ui::{self, QueryOptions, UiArgs};
use crate::verb::{check, drops, policies, services, status};
use crate::watch::{WatchArgs, watch};

/// What denizen's agents say, on all nodes of the cluster
///
/// The agents are asked through the API server, by `exec` in their own containers, with your own
/// rights. Every answer names the nodes that did not answer.
#[derive(Debug, Parser)]
#[command(name = "kubectl-denizen", bin_name = "kubectl denizen", version)]
#[command(
    after_help = "Exit codes: 0: all is well; 1: something was found; 2: the command line is \
    wrong, or the cluster cannot be asked; 3: somebody did not answer."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// How long to wait, and what for.
#[derive(Debug, Clone, Copy, Args)]
struct AnswerArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Format,
    /// From which level of a finding on the exit code is not 0
    #[arg(long, value_enum, default_value = "failure", global = true)]
    fail_on: Level,
    /// Time limit for all nodes together
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", global = true)]
    timeout: Duration,
    /// How many nodes are asked at once
    #[arg(long, value_name = "NUMBER", default_value = "50", global = true,
        value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Does everything work? One row a node, the worst first
    Status(WatchArgs),
    /// Is anything wrong? What every agent finds on its node, equal findings once
    Check(WatchArgs),
    /// What becomes of a connection from A to B, on the sender's node and on the receivers', and
    /// why
    Explain(ExplainArgs),
    /// Follow real packets of a connection from A to B, on the sender's node and on the receivers'
    Trace(TraceArgs),
    /// What the rules of all nodes dropped and refused, by reason
    Drops(WatchArgs),
    /// Who talks to whom, by name
    Connections(ConnectionsArgs),
    /// What becomes of connections to a service on each node, equal answers once
    Services {
        /// The service. Without it, all services, as one node knows them
        #[arg(value_name = "[NAMESPACE/]NAME")]
        service: Option<String>,
    },
    /// Which NetworkPolicies restrict a pod, as its node enforces them
    Policies {
        /// The pod
        #[arg(value_name = "[NAMESPACE/]POD")]
        pod: String,
    },
    /// Who would lose or gain access if a policy were applied, or deleted
    Impact(ImpactArgs),
    /// Do pods reach each other, services and node ports, and do policies hold? With pods of
    /// denizen's own image, in a namespace that is deleted in the end
    Test(TestArgs),
    /// Collect what is needed to help you, in a folder. It contains no secrets
    Bundle(BundleArgs),
    /// A picture of who talks to whom, in a browser on this machine, until it is interrupted
    Ui(UiArgs),
    /// How kubectl completes the words of this command
    Completion {
        /// Make the link kubectl_complete-denizen, beside this program
        #[arg(long, required = true)]
        install: bool,
        /// Make it in this folder, which must be on PATH
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the program with these words, its own name the first.
pub fn run(words: Vec<OsString>) -> ExitCode {
    let name = words.first().map(Path::new).and_then(Path::file_stem).unwrap_or_default();
    let result = match name == completion::PROGRAM {
        true => completed(&words),
        false => match Cli::try_parse_from(words) {
            Ok(cli) => block_on(answer(cli)),
            Err(error) => error.exit(),
        },
    };
    result.unwrap_or_else(|error| {
        eprint_line(format_args!("kubectl denizen: {}", printable_lines(&described(&error))));
        ExitCode::from(UNUSABLE)
    })
}

fn completed(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words = words.get(1..).unwrap_or_default();
    let text = block_on(async { Ok(completion::complete(&command(), words).await) })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn answer(cli: Cli) -> anyhow::Result<ExitCode> {
    let AnswerArgs { output, timeout, parallel, .. } = cli.answer;
    if let Verb::Completion { folder, install: _ } = cli.verb {
        let link = completion::install(folder)?;
        print(&format!("{}\n", link.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Verb::Ui(args) = &cli.verb {
        let api = Api::connect(&cli.cluster).await?;
        return ui::ui(api, QueryOptions { parallel: parallel.into(), timeout }, args).await;
    }
    if let Verb::Test(args) = &cli.verb {
        let api = Api::connect(&cli.cluster).await?;
        let options = QueryOptions { parallel: parallel.into(), timeout };
        let PrintedAnswer { text, code } =
            test::test(&api, options, args, (output, cli.answer.fail_on)).await?;
        print(&text)?;
        return Ok(ExitCode::from(code));
    }
    if let Verb::Status(args) | Verb::Check(args) | Verb::Drops(args) = &cli.verb
        && let Some(every) = args.watch
    {
        return watch(every, output, async || printed_answer(&cli).await).await;
    }
    let PrintedAnswer { text, code } = printed_answer(&cli).await?;
    print(&text)?;
    Ok(ExitCode::from(code))
}

/// The verb's answer; an error if the API server does not answer in time.
async fn printed_answer(cli: &Cli) -> anyhow::Result<PrintedAnswer> {
    let mut timeout = cli.answer.timeout;
    if let Verb::Trace(args) = &cli.verb {
        timeout += args.time + trace::EXTRA_TIME;
    }
    // The nodes have their own deadline, so this one is about the API server itself.
    #[expect(clippy::disallowed_methods, reason = "the API server may not answer either")]
    let done = tokio::time::timeout(timeout + REPORT_TIME, of_verb(cli)).await;
    done.unwrap_or_else(|_| anyhow::bail!("the API server does not answer within {timeout:?}"))
}

async fn of_verb(cli: &Cli) -> anyhow::Result<PrintedAnswer> {
    let AnswerArgs { output, fail_on, timeout, parallel } = cli.answer;
    let limits = Limits::new(parallel.into(), timeout);
    if let Verb::Impact(args) = &cli.verb {
        return impact::impact(&cli.cluster, limits, args).await?.printed(output, fail_on);
    }
    let api = Api::connect(&cli.cluster).await?;
    match &cli.verb {
        Verb::Status(_) => status::status(&api, limits).await?.printed(output, fail_on),
        Verb::Check(_) => check::check(&api, limits).await?.printed(output, fail_on),
        Verb::Explain(args) => explain::explain(&api, limits, args).await?.printed(output, fail_on),
        Verb::Trace(args) => trace::trace(&api, limits, args).await?.printed(output, fail_on),
        Verb::Drops(_) => drops::drops(&api, limits).await?.printed(output, fail_on),
        Verb::Connections(args) => {
            connections::connections(&api, limits, args).await?.printed(output, fail_on)
        }
        Verb::Services { service } => {
            let report = services::services(&api, limits, service.as_deref()).await?;
            report.printed(output, fail_on)
        }
        Verb::Policies { pod } => {
            policies::policies(&api, limits, pod).await?.printed(output, fail_on)
        }
        Verb::Bundle(args) => bundle::bundle(&api, limits, args).await?.printed(output, fail_on),
        Verb::Ui(_) | Verb::Test(_) | Verb::Impact(_) | Verb::Completion { .. } => {
            Ok(PrintedAnswer::default())
        }
    }
}

/// Time that a verb has in addition to the nodes' time limit, to make its answer.
const REPORT_TIME: Duration = Duration::from_secs(5);

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_kubectls() {
        command().debug_assert();
        let cases = [
            ("status --context a -n b -o json", true),
            ("--context a --kubeconfig f status", true),
            ("--as me --as-group a --as-group b check --fail-on warning", true),
            ("check --as-group a", false),
            ("status --parallel 0", false),
            ("status --timeout soon", false),
            ("check --fail-on good", false),
            ("status --watch -o json", true),
            ("drops --watch=3s", true),
            ("drops --watch=soon", false),
            ("connections --watch", false),
            ("explain a", false),
            ("explain a b:80 --via n1", true),
            ("trace a b:80 --count 3 --for 20s", true),
            ("trace a b:80 --count 0", false),
            ("policies", false),
            ("ui --port 8001 --every 30s", true),
            ("ui --port 80000", false),
            ("impact -f a.yaml --delete --manifests b", true),
            ("impact -f a.yaml --live", true),
            ("impact -f a.yaml --live --manifests b", false),
            ("impact", false),
            ("test --nodes n1,n2 --skip policy,node-port --external example.org:443", true),
            ("test --external example.org", false),
            ("test --external --timeout:1", false),
            ("test --skip everything", false),
            ("test --cleanup", true),
            ("test --cleanup --nodes n1", false),
            ("completion", false),
            ("exec -- sh", false),
        ];
        for (words, is_right) in cases {
            let words = format!("kubectl-denizen {words}");
            assert_eq!(Cli::try_parse_from(words.split(' ')).is_ok(), is_right, "{words}");
        }
    }

    #[tokio::test]
    async fn verbs_and_flags_are_completed_without_a_cluster() {
        let command = command();
        let of = async |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            completion::complete(&command, &words).await
        };
        let verbs = of(&[""]).await;
        for verb in ["status\t", "check\t", "explain\t", "drops\t"] {
            assert!(verbs.lines().any(|line| line.starts_with(verb)), "{verbs}");
        }
        assert!(verbs.ends_with("\n:4\n"), "{verbs}");
        assert_eq!(of(&["--context", "x", "stat"]).await.lines().count(), 2);
        let flags = of(&["connections", "--"]).await;
        assert!(flags.contains("--limit\t") && flags.contains("--context\t"), "{flags}");
    }
}
