//! The real agent in the node's namespace: started, asked and ended as an operator would.

pub mod check;
pub mod trace;
pub mod watch;
pub mod wrapped;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::binary;
use crate::eventually::{eventually, observed};
use crate::node::netns::{Netns, checked};
use crate::packets::probe::Protocol;

/// How long a start may take before it counts as failed: an emulated processor has to load the
/// kernel's modules first.
pub const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The folder, within the run directory, of the runtime's cached CNI results: a test must not read
/// the machine's own cache.
pub const CNI_CACHE: &str = "cni-cache";

/// How an agent is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The program: another agent's, or this workspace's.
    pub program: Option<PathBuf>,
    /// Where Services, EndpointSlices and Nodes come from.
    pub objects: Objects,
    /// The run directory, which the plugin records into.
    pub run_dir: PathBuf,
    /// Which of the Nodes this one is.
    pub node_name: String,
    /// Flags beyond these.
    pub flags: Vec<String>,
}

/// Where the agent's objects come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objects {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// The API that a kubeconfig file leads to.
    Kubeconfig(PathBuf),
    /// The API's address as a pod of a cluster gets it.
    Pod {
        /// What is mounted as the pod's service account.
        account: PathBuf,
        /// Its environment.
        environment: Vec<(&'static str, String)>,
    },
}

/// Runs a program with this folder mounted where a pod's service account is. Only that program sees
/// the new `/run`.
const IN_A_POD: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
mount --bind "$1" /run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"#;

impl Settings {
    fn program(&self) -> Result<PathBuf> {
        self.program.clone().map_or_else(|| binary::ours("denizen-agent"), Ok)
    }
}

impl Objects {
    /// The agent's command, with the arguments that say where the objects come from.
    fn command(&self, agent: &Path) -> Command {
        let mut command = Command::new(agent);
        match self {
            Self::Manifests(folder) => command.args(["run", "--manifests"]).arg(folder),
            Self::Kubeconfig(file) => command.args(["run", "--kubeconfig"]).arg(file),
            Self::Pod { account, environment } => {
                command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", IN_A_POD, "sh"]).arg(account);
                command
                    .arg(agent)
                    .arg("run")
                    .envs(environment.iter().map(|(name, value)| (name, value)))
            }
        };
        command
    }
}

/// A running agent. Dropping it kills it, and prints its log for the test that failed.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    settings: Settings,
    log: PathBuf,
    quiet: bool,
}

/// What `denizen-agent explain --output json` says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Explanation {
    /// `forward`, `reject`, `drop` or `untouched`.
    pub verdict: String,
    /// `namespace/name:port`, if the packet is for a service.
    pub service: Option<String>,
    /// The endpoints that the packet may be forwarded to.
    #[serde(default)]
    pub endpoints: Vec<SocketAddr>,
    /// Whether the packet's source becomes the node's.
    pub masquerade: bool,
    /// Whether the packet's source is a pod of this node.
    pub local: bool,
    /// The virtual server that chooses the endpoint.
    #[serde(default, rename = "virtualServer")]
    pub virtual_server: Option<Value>,
    /// The steps that led to the verdict.
    pub steps: Vec<ExplanationStep>,
}

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExplanationStep {
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: String,
}

impl Agent {
    /// Starts the agent in `node` and returns once its first full set of rules is in the kernel.
    pub fn start(node: &Netns, settings: Settings) -> Result<Self> {
        let mut agent = Self::spawn(node, settings)?;
        agent.wait_programmed(START_TIMEOUT)?;
        Ok(agent)
    }

    /// Starts the agent and waits for nothing.
    pub fn spawn(node: &Netns, settings: Settings) -> Result<Self> {
        let log = settings.run_dir.join("agent.log");
        let output = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = settings.objects.command(&settings.program()?);
        command.arg("--run-dir").arg(&settings.run_dir);
        command
            .args(["--node-name", &settings.node_name])
            .arg("--cni-cache-dir")
            .arg(settings.run_dir.join(CNI_CACHE))
            .args(&settings.flags);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = node.run(|| command.spawn())?.context("cannot start denizen-agent")?;
        Ok(Self { child, settings, log, quiet: false })
    }

    /// Waits until the agent says that the first full set of rules is in the kernel, or says why it
    /// ended.
    pub fn wait_programmed(&mut self, timeout: Duration) -> Result<()> {
        eventually("programmed", timeout, || {
            let status = self.ask_directly(&json!({ "status": {} }));
            let is_programmed = status.is_ok_and(|status| status["synced"] == true);
            if !is_programmed && let Some(status) = self.child.try_wait()? {
                bail!("denizen-agent ended with {status}");
            }
            Ok(is_programmed)
        })
        .map_err(|error| anyhow!("{error:#}:\n{}", self.log()))
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn run_dir(&self) -> &Path {
        &self.settings.run_dir
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on running after this value is dropped.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Keeps its log from being printed at the end.
    pub fn quiet(&mut self) {
        self.quiet = true;
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `denizen-agent status --output json`.
    pub fn status(&self) -> Result<Value> {
        self.ask("status", &[])
    }

    /// Waits until the status is as wished, and returns it.
    pub fn until(&self, what: &str, bound: Duration, so: impl Fn(&Value) -> bool) -> Result<Value> {
        observed(what, bound, || self.status(), so)
    }

    /// What `denizen-agent explain --output json` prints for a packet from `from`, coming in
    /// through `interface`.
    pub fn explain(
        &self,
        from: IpAddr,
        interface: Option<&str>,
        to: SocketAddr,
        protocol: Protocol,
    ) -> Result<Explanation> {
        let from =
            interface.map_or_else(|| from.to_string(), |interface| format!("{from}@{interface}"));
        let to = format!("{to}/{protocol}");
        let answer = self.ask_directly(&json!({ "explain": { "from": from, "to": to } }))?;
        serde_json::from_value(answer.clone())
            .with_context(|| format!("an explanation unlike design.md's: {answer}"))
    }

    /// What this very agent answers through its socket, without a process in between.
    pub fn ask_directly(&self, request: &Value) -> Result<Value> {
        let mut answer = None;
        self.ask_in_turn([format!("{request}\n")].iter(), |line| answer = Some(line.to_owned()))?;
        Ok(serde_json::from_str(&answer.context("no answer")?)?)
    }

    /// Asks all of these over one connection, each of them a line; `each` gets the answers' lines
    /// in order.
    pub fn ask_in_turn<'a>(
        &self,
        mut requests: impl Iterator<Item = &'a String>,
        mut each: impl FnMut(&str),
    ) -> Result<()> {
        // No answer is read while requests are written, so the requests of a round, and their
        // answers, must fit into the socket's buffers.
        const AT_ONCE: usize = 64;
        let path = self.settings.run_dir.join(denizen_state::run_dir::SOCKET);
        let mut stream = UnixStream::connect(path)?;
        let answering = getsockopt(&stream, PeerCredentials)?.pid();
        ensure!(u32::try_from(answering)? == self.pid(), "process {answering} answers there");
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut read = BufReader::new(stream.try_clone()?);
        loop {
            let some: Vec<_> = requests.by_ref().take(AT_ONCE).map(String::as_str).collect();
            if some.is_empty() {
                return Ok(());
            }
            stream.write_all(some.concat().as_bytes())?;
            for request in some {
                let mut line = String::new();
                read.read_line(&mut line)?;
                ensure!(line.ends_with('\n'), "no answer to {request}");
                each(&line);
            }
        }
    }

    fn ask(&self, question: &str, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command
            .arg(question)
            .arg("--run-dir")
            .arg(&self.settings.run_dir)
            .args(["--output", "json"])
            .args(arguments);
        let output = checked(&mut command)?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{question} printed something else than JSON"))
    }

    /// SIGTERM, and the end of the process.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// SIGKILL, and the end of the process.
    pub fn kill(mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGKILL)
    }

    /// SIGKILL, and the end of the process. Its log is still there.
    pub fn stop_now(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?;
        let wait = || Ok(self.child.try_wait()?);
        let what = format!("ended by {signal}");
        observed(&what, START_TIMEOUT, wait, Option::is_some)?.context("a status")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop_now();
        if !self.quiet {
            eprintln!("--- denizen-agent's log\n{}---", self.log());
            // A restarted agent appends to its log: empty it, so that nothing is printed twice.
            let _ = File::create(&self.log);
        }
    }
}

/// How long a change may take to be programmed.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a change, and returns the status once the agent reports a new sync; until then,
/// `meanwhile` runs again and again.
pub fn programmed(
    agent: &Agent,
    change: impl FnOnce() -> Result<()>,
    meanwhile: impl Fn(),
) -> Result<Value> {
    let before = agent.status()?;
    change()?;
    let started = Instant::now();
    loop {
        meanwhile();
        let status = agent.status()?;
        if status["lastSync"] != before["lastSync"] {
            return Ok(status);
        }
        ensure!(
            started.elapsed() < CHANGE_TIMEOUT,
            "not programmed after {CHANGE_TIMEOUT:?}: {status}"
        );
    }
}
