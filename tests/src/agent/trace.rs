//! `denizen-agent trace`, as an operator runs it beside traffic.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::agent::Agent;
use crate::binary;
use crate::node::netns::Netns;

/// A trace that follows packets. Dropping it kills it.
pub struct TraceCommand {
    child: Child,
    output: ChildStdout,
    errors: BufReader<ChildStderr>,
}

/// What a trace reported.
#[derive(Debug, Clone)]
pub struct TraceReport(pub Value);

impl TraceCommand {
    /// Starts it in `node` with these arguments, and returns once it follows packets.
    pub fn start(node: &Netns, agent: &Agent, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.arg("trace").arg("--run-dir").arg(agent.run_dir());
        command.args(["--output", "json", "--timeout", "60s"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = node.run(|| command.spawn())?.context("cannot start a trace")?;
        let output = child.stdout.take().context("a pipe")?;
        let errors = BufReader::new(child.stderr.take().context("a pipe")?);
        let mut tracing = Self { child, output, errors };
        let mut line = String::new();
        tracing.errors.read_line(&mut line)?;
        if !line.starts_with("following packets") {
            tracing.errors.read_to_string(&mut line)?;
            bail!("{line}");
        }
        Ok(tracing)
    }

    /// Waits until it has seen as many packets as it was asked for.
    pub fn end(mut self) -> Result<TraceReport> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors)?;
        ensure!(self.child.wait()?.success(), "trace failed: {errors}");
        Ok(TraceReport(serde_json::from_str(&text).context("a trace that is no JSON")?))
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGKILL)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for TraceCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TraceReport {
    /// Its packets.
    pub fn packets(&self) -> &[Value] {
        self.0["packets"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// Ensures that every packet did what `explain` predicts.
    pub fn ensure_as_predicted(&self) -> Result<()> {
        ensure!(!self.packets().is_empty(), "no packet: {:#}", self.0);
        for packet in self.packets() {
            ensure!(packet["comparison"] == "asPredicted", "not as predicted: {packet:#}");
        }
        Ok(())
    }

    /// Every difference of every packet, in words.
    pub fn differences(&self) -> Vec<String> {
        let differs =
            self.packets().iter().filter_map(|packet| packet["comparison"]["differs"].as_array());
        differs
            .flatten()
            .filter_map(|differences| differences.as_str().map(str::to_owned))
            .collect()
    }
}
