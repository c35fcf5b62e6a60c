//! A command that watches until it is ended, as an operator runs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::agent::Agent;
use crate::binary;
use crate::eventually::observed;
use crate::node::netns::Netns;

/// How long anything may take to be shown.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A command of `denizen-agent` that prints a line of JSON for each thing it sees. Dropping it
/// kills it.
pub struct WatchCommand {
    child: Child,
    /// What it has printed.
    seen: Arc<Mutex<Vec<Value>>>,
    /// The command's standard error.
    errors: BufReader<ChildStderr>,
}

impl WatchCommand {
    /// Starts `denizen-agent COMMAND --watch` in `node`, and returns once it watches.
    pub fn start(node: &Netns, agent: &Agent, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.args(arguments).arg("--run-dir").arg(agent.run_dir());
        command.args(["--watch", "--output", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = node.run(|| command.spawn())?.context("cannot start the command")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut errors = BufReader::new(child.stderr.take().context("a pipe")?);
        let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
        let into = seen.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                into.lock().expect("nobody panics with it").push(value);
            }
        });
        let mut line = String::new();
        errors.read_line(&mut line)?;
        let mut watching = Self { child, seen, errors };
        if !line.starts_with("watching") {
            watching.errors.read_to_string(&mut line)?;
            bail!("{line}");
        }
        Ok(watching)
    }

    /// Waits until the command has printed something that `is_it` accepts.
    pub fn until(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let seen_so_far = || Ok(self.seen.lock().expect("nobody panics with it").clone());
        let seen = observed(what, TIMEOUT, seen_so_far, |seen| seen.iter().any(&is_it))?;
        seen.into_iter().find(|event| is_it(event)).context("it was seen")
    }

    /// All that it has shown.
    pub fn seen(&self) -> Vec<Value> {
        self.seen.lock().expect("nobody panics with it").clone()
    }

    /// Waits until the command ends by itself, with an error; returns its standard error.
    pub fn ended(mut self) -> Result<String> {
        let mut printed = String::new();
        self.errors.read_to_string(&mut printed)?;
        ensure!(!self.child.wait()?.success(), "it ended well: {printed}");
        Ok(printed)
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for WatchCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
