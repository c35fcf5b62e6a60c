//! One conversation with one agent: `denizen-agent relay`, executed in its container.

#![expect(clippy::disallowed_methods, reason = "kube bounds no wait for an answer")]

use std::future::{Pending, pending};
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, AttachedProcess};
use kube::{Client, Error};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cluster::{AgentPod, CONTAINER};
use crate::no_answer::NoAnswer;
use crate::session::request::Request;

pub mod request;

/// Time limit for the API server to start a command in a container.
const CONNECT: Duration = Duration::from_secs(5);

/// Time limit for a node, the start included: longer than an agent lets its clients wait.
pub const NODE: Duration = Duration::from_secs(15);

/// Size limits of what a command prints, in bytes: more than an agent sends.
const LONGEST_OUTPUT: u64 = 64 << 20;
const LONGEST_ERROR: u64 = 64 << 10;

/// Size of the pipes, in bytes: kube's default holds only a line or two.
const PIPE: usize = 64 << 10;

/// The text of the error when [`CONNECT`] is over.
const NOT_IN_TIME: &str = "timed out";

/// Time limit for what is still in the pipes of a broken connection.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Buffer size: longer than the first words of any command.
const FIRST_WORDS: usize = 4 << 10;

const PROGRAM: &str = "denizen-agent";

/// The answers of an agent.
#[derive(Debug)]
pub struct Answers {
    /// The agent's release; `None` if the agent is so old that it has no `relay`.
    pub release: Option<String>,
    /// In the order of the requests, as they came: what a newer agent adds is kept.
    pub answers: Vec<Result<Box<RawValue>, String>>,
}

impl Answers {
    /// The answers one by one.
    pub fn split(self) -> impl Iterator<Item = Self> {
        let Self { release, answers } = self;
        let one = move |answer| Self { release: release.clone(), answers: vec![answer] };
        answers.into_iter().map(one)
    }
}

/// The first line of `relay`.
#[derive(Deserialize)]
struct RelayHello {
    agent: String,
    protocol: u32,
}

/// The protocol of this client.
const PROTOCOL: u32 = 1;

#[derive(Deserialize)]
struct RelayLine {
    answer: Option<Box<RawValue>>,
    error: Option<String>,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
struct CommandOutput {
    stdout: String,
    stderr: String,
    status: Option<Status>,
}

/// Asks an agent, at most for `limit`.
pub async fn ask(
    client: &Client,
    agent: &AgentPod,
    requests: &[Request],
    limit: Duration,
) -> Result<Answers, NoAnswer> {
    let conversation = timeout(limit, converse(client, agent, requests));
    conversation.await.unwrap_or_else(|_| Err(NoAnswer::timed_out("it did not answer", limit)))
}

async fn converse(
    client: &Client,
    agent: &AgentPod,
    requests: &[Request],
) -> Result<Answers, NoAnswer> {
    let mut input: String = requests.iter().map(|request| request.line() + "\n").collect();
    input.push_str("{\"end\":{}}\n");
    let relay = execute(client, agent, &["relay"], CommandInput::now(&input)).await?;
    if relay.stdout.is_empty() && relay.is_unknown_command() {
        return older(client, agent, requests).await;
    }
    understood(&relay, requests)
}

/// The error for a request that an agent does not know.
fn unknown(request: &Request) -> String {
    format!("this agent's release does not support {}", request.name())
}

/// How `relay` begins an error about a request that came with a later release.
const UNKNOWN_REQUEST: &str = "not a request: unknown variant";

/// Parses the output of `relay`.
fn understood(relay: &CommandOutput, requests: &[Request]) -> Result<Answers, NoAnswer> {
    let mut lines = relay.stdout.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let Some(first) = lines.next() else { return Err(relay.why()) };
    let hello: RelayHello = serde_json::from_str(first).map_err(|error| {
        NoAnswer::new(NoAnswer::FAILED, format!("its first line cannot be read: {error}"))
    })?;
    if hello.protocol > PROTOCOL {
        let what =
            format!("agent {} has changed its answers: use its kubectl-denizen", hello.agent);
        return Err(NoAnswer::new(NoAnswer::FAILED, what));
    }
    let answers = lines.zip(requests).map(|(line, request)| match serde_json::from_str(line) {
        Ok(RelayLine { answer: Some(answer), .. }) => Ok(answer),
        Ok(RelayLine { error: Some(error), .. }) if error.starts_with(UNKNOWN_REQUEST) => {
            Err(unknown(request))
        }
        Ok(RelayLine { error: Some(error), .. }) => Err(error),
        Ok(RelayLine { .. }) => Err("an answer without an answer".to_owned()),
        Err(error) => Err(format!("its answer cannot be read: {error}")),
    });
    let answers: Vec<_> = answers.collect();
    match answers.len() == requests.len() {
        true => Ok(Answers { release: Some(hello.agent), answers }),
        false => Err(relay.why()),
    }
}

/// Asks an agent without `relay` by its commands.
async fn older(
    client: &Client,
    agent: &AgentPod,
    requests: &[Request],
) -> Result<Answers, NoAnswer> {
    let mut answers = Vec::new();
    for request in requests {
        let Some(command) = request.command() else {
            answers.push(Err(unknown(request)));
            continue;
        };
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let executed = execute(client, agent, &words, CommandInput::now("")).await?;
        answers.push(match RawValue::from_string(executed.stdout.trim().to_owned()) {
            Ok(answer) => Ok(answer),
            Err(_) => Err(executed.why().reason),
        });
    }
    Ok(Answers { release: None, answers })
}

/// Runs a command that prints its answer when it ends, and that ends when it can read a line: it
/// gets one once `until` is over. `begun` is notified of the command's first words.
///
/// # Errors
/// It printed nothing, or not within `limit`.
pub async fn follow(
    client: &Client,
    agent: &AgentPod,
    command: &[&str],
    begun: oneshot::Sender<()>,
    until: impl Future<Output = ()>,
    limit: Duration,
) -> Result<String, NoAnswer> {
    let input = CommandInput { now: "", begun: Some(begun), until };
    let executed = timeout(limit, execute(client, agent, command, input)).await;
    let executed =
        executed.unwrap_or_else(|_| Err(NoAnswer::timed_out("it did not end", limit)))?;
    match executed.stdout.is_empty() {
        true => Err(executed.why()),
        false => Ok(executed.stdout),
    }
}

/// The input of a command.
struct CommandInput<'a, F> {
    now: &'a str,
    /// Notified of the command's first words on standard error.
    begun: Option<oneshot::Sender<()>>,
    /// An empty line follows once this is over.
    until: F,
}

impl<'a> CommandInput<'a, Pending<()>> {
    fn now(now: &'a str) -> Self {
        Self { now, begun: None, until: pending() }
    }
}

/// A container, and a command of [`PROGRAM`] for it.
#[derive(Debug, Clone, Copy)]
pub struct ContainerCommand<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub container: &'a str,
    pub words: &'a [&'a str],
}

/// Runs a command in a container that need not be an agent's. Returns what it printed.
///
/// # Errors
/// It printed nothing, or not within `limit`.
pub async fn run(
    client: &Client,
    command: ContainerCommand<'_>,
    limit: Duration,
) -> Result<String, NoAnswer> {
    let executed = timeout(limit, execute_in(client, command, CommandInput::now(""))).await;
    let executed =
        executed.unwrap_or_else(|_| Err(NoAnswer::timed_out("it did not end", limit)))?;
    match executed.stdout.is_empty() {
        true => Err(executed.why()),
        false => Ok(executed.stdout),
    }
}

async fn execute(
    client: &Client,
    agent: &AgentPod,
    command: &[&str],
    input: CommandInput<'_, impl Future<Output = ()>>,
) -> Result<CommandOutput, NoAnswer> {
    let mut words = command.to_vec();
    if let Some(run_dir) = &agent.run_dir {
        words.extend(["--run-dir", run_dir]);
    }
    let AgentPod { namespace, name: pod, .. } = agent;
    let command = ContainerCommand { namespace, pod, container: CONTAINER, words: &words };
    execute_in(client, command, input).await
}

async fn execute_in(
    client: &Client,
    command: ContainerCommand<'_>,
    input: CommandInput<'_, impl Future<Output = ()>>,
) -> Result<CommandOutput, NoAnswer> {
    let mut process = match begin(client, command).await {
        // A proxy on the way to the node may be overloaded: try once more.
        Err(Error::Api(status)) if status.code >= 500 => begin(client, command).await,
        begun => begun,
    }
    .map_err(|error| refused(command.namespace, &error))?;
    let (mut stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let status = process.take_status();
    if let Some(stdin) = &mut stdin {
        // A command that does not read its input reports the reason below.
        let _ = stdin.write_all(input.now.as_bytes()).await;
    }
    let mut stderr = stderr;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    };
    // Read both pipes at once: if one is full, the command writes nothing to the other.
    let reading_errors = async {
        if let Some((begun, stderr)) = input.begun.zip(stderr.as_mut()) {
            let mut first = [0; FIRST_WORDS];
            let read = stderr.read(&mut first).await.unwrap_or_default();
            err.extend_from_slice(&first[..read]);
            let _ = begun.send(());
        }
        read(stderr, LONGEST_ERROR, &mut err).await;
    };
    let reading = async { tokio::join!(read(stdout, LONGEST_OUTPUT, &mut out), reading_errors) };
    let status = {
        let mut ending = pin!(until_end(reading, status));
        tokio::select! {
            status = &mut ending => status,
            () = input.until => {
                if let Some(stdin) = &mut stdin {
                    let _ = stdin.write_all(b"\n").await;
                }
                ending.await
            }
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(out), text(err));
    // Not before: with an older protocol, the end of the input ends the output too.
    drop(stdin);
    Ok(CommandOutput { stdout, stderr, status })
}

async fn begin(client: &Client, command: ContainerCommand<'_>) -> Result<AttachedProcess, Error> {
    let ContainerCommand { namespace, pod, container, words } = command;
    let params = AttachParams::default()
        .container(container)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .tty(false)
        .max_stdout_buf_size(PIPE)
        .max_stderr_buf_size(PIPE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let words = [PROGRAM].into_iter().chain(words.iter().copied());
    let begun = timeout(CONNECT, pods.exec(pod, words, &params)).await;
    begun.unwrap_or_else(|_| Err(Error::Service(NOT_IN_TIME.into())))
}

/// Reads to the end, and returns how the process ended. When a connection breaks, kube closes
/// neither pipe: what has arrived by then is all.
async fn until_end<R>(
    reading: impl Future<Output = R>,
    status: impl Future<Output = Option<Status>>,
) -> Option<Status> {
    let (mut reading, mut status) = (pin!(reading), pin!(status));
    tokio::select! {
        biased;
        _ = &mut reading => status.await,
        ended = &mut status => {
            match &ended {
                Some(_) => drop(reading.await),
                None => drop(timeout(DRAIN_TIMEOUT, reading).await),
            }
            ended
        }
    }
}

/// Reads the output up to the limit, and discards the rest.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: u64, bytes: &mut Vec<u8>) {
    let Some(mut pipe) = pipe else { return };
    let _ = (&mut pipe).take(limit).read_to_end(bytes).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
}

/// Why the API server did not execute the command.
fn refused(namespace: &str, error: &Error) -> NoAnswer {
    let failed = |why: String| NoAnswer::new(NoAnswer::FAILED, why);
    if let Error::Service(error) = error
        && error.to_string() == NOT_IN_TIME
    {
        return NoAnswer::timed_out("the API server did not begin", CONNECT);
    }
    let Error::Api(status) = error else { return failed(denizen_text::describe(error)) };
    match status.code {
        403 => {
            let needs = format!("needs: get and create pods/exec in namespace {namespace}");
            NoAnswer::new(NoAnswer::FORBIDDEN, format!("{} ({needs})", status.message))
        }
        404 => NoAnswer::new(NoAnswer::NOT_RUNNING, status.message.clone()),
        _ => failed(status.message.clone()),
    }
}

impl CommandOutput {
    /// Whether the agent is too old for the command: clap's exit code and words.
    fn is_unknown_command(&self) -> bool {
        self.exit_code() == Some(2) && self.stderr.contains("unrecognized subcommand")
    }

    fn exit_code(&self) -> Option<i32> {
        let status = self.status.as_ref()?;
        if status.status.as_deref() == Some("Success") {
            return Some(0);
        }
        let causes = status.details.as_ref()?.causes.as_ref()?;
        let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
        code.message.as_ref()?.parse().ok()
    }

    /// Why there is no whole answer.
    fn why(&self) -> NoAnswer {
        let message = self.stderr.lines().find(|line| !line.trim().is_empty());
        let last = match (self.exit_code(), message, &self.status) {
            (Some(0), _, _) => "it ended before it had answered".to_owned(),
            (Some(code), Some(message), _) => format!("exit code {code}: {message}"),
            (Some(code), None, _) => format!("exit code {code}"),
            (None, _, Some(status)) => status.message.clone().unwrap_or_default(),
            (None, _, None) => {
                let bytes = self.stdout.len();
                let what = format!("the answer was cut off after {bytes} bytes");
                return NoAnswer::new(NoAnswer::CUT_OFF, what);
            }
        };
        NoAnswer::new(NoAnswer::FAILED, last)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn executed(stdout: &str, stderr: &str, status: Option<serde_json::Value>) -> CommandOutput {
        let status = status.map(|status| serde_json::from_value(status).unwrap());
        CommandOutput { stdout: stdout.to_owned(), stderr: stderr.to_owned(), status }
    }

    fn code(code: u8) -> Option<serde_json::Value> {
        let cause = json!({ "reason": "ExitCode", "message": code.to_string() });
        let details = json!({ "causes": [cause] });
        Some(json!({ "status": "Failure", "reason": "NonZeroExitCode", "details": details }))
    }

    const HELLO: &str = "{\"agent\":\"9.9.9\",\"protocol\":1,\"new\":1}\n";

    #[test]
    fn whole_answers_are_told_from_half_ones() {
        let success = || Some(json!({ "status": "Success" }));
        let two = [Request::STATUS, Request::DROPS];
        let text = format!("{HELLO}{{\"answer\":{{\"a\": 1}}}}\n{{\"error\":\"no\"}}\n");
        let both = understood(&executed(&text, "", success()), &two).unwrap();
        assert_eq!(both.release.as_deref(), Some("9.9.9"));
        assert_eq!(both.answers[0].as_ref().unwrap().get(), "{\"a\": 1}");
        assert_eq!(both.answers[1].as_ref().unwrap_err(), "no");
        let half = &text[..text.len() - 3];
        let cases = [
            (executed(half, "", None), "cut-off", "cut off after"),
            (executed(HELLO, "", success()), "failed", "before it had answered"),
            (executed("", "\nno such file\n", code(127)), "failed", "127: no such file"),
            (executed("", "", code(1)), "failed", "exit code 1"),
            (executed("<html>\n", "", success()), "failed", "first line"),
            (executed("{\"agent\":\"2\",\"protocol\":2}\n", "", None), "failed", "agent 2"),
        ];
        for (executed, code, words) in cases {
            let why = understood(&executed, &two).unwrap_err();
            assert_eq!(why.code, code, "{why:?}");
            assert!(why.reason.contains(words), "{why:?}");
        }
    }

    #[test]
    fn an_agent_without_relay_is_told_by_claps_words() {
        let stderr = "error: unrecognized subcommand 'relay'\n";
        assert!(executed("", stderr, code(2)).is_unknown_command());
        assert!(!executed("", stderr, code(1)).is_unknown_command());
        assert!(!executed("", "error: --run-dir", code(2)).is_unknown_command());
    }
}
