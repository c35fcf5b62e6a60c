//! The agent as another program than a shell runs it: behind a program that gives it a different
//! environment. Tests ask it through its run directory.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::agent::CNI_CACHE;
use crate::binary;
use crate::eventually::observed;
use crate::node::cluster::{Cluster, NODE};
use crate::node::netns::checked;

/// The mounts of a container that is not privileged, and the DaemonSet's mount of the network's
/// settings.
const CONTAINED: &str = r#"
set -e
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/proc/sys/net
mount --bind /proc/sys/net /mnt/proc/sys/net
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
exec "$@"
"#;

/// The flag that makes the agent use that mount.
pub const SETTINGS: &str = "--sysctl-dir=/mnt/proc/sys";

/// A command that runs a program as a runtime runs a container with exactly these capabilities: in
/// a process namespace of its own, with read-only kernel settings. The caller adds the program.
pub fn container(capabilities: &[String]) -> Command {
    let names = capabilities.iter().map(|name| format!(",+{}", name.to_lowercase()));
    let bounds = format!("--bounding-set=-all{}", names.collect::<String>());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", CONTAINED, "sh", "setpriv", &bounds]);
    command.args(["--inh-caps=-all", "--no-new-privs", "--"]);
    command
}

/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running agent. Dropping it kills the program in front of it.
#[derive(Debug)]
pub struct WrappedAgent {
    child: Child,
    run_dir: PathBuf,
}

impl WrappedAgent {
    /// Starts the agent for `cluster` behind `program`, which must become the agent, or end with
    /// it.
    pub fn start(cluster: &Cluster, program: Command) -> Result<Self> {
        Self::start_with(cluster, program, &[])
    }

    /// The same with these flags.
    pub fn start_with(cluster: &Cluster, mut program: Command, flags: &[String]) -> Result<Self> {
        program.arg(binary::ours("denizen-agent")?).arg("run");
        program.arg("--manifests").arg(cluster.manifests.folder());
        program.arg("--run-dir").arg(cluster.run_dir());
        program.arg("--cni-cache-dir").arg(cluster.run_dir().join(CNI_CACHE));
        program.args(["--node-name", NODE]).args(flags).stdin(Stdio::null());
        let child = cluster.world.node.run(|| program.spawn())??;
        let run_dir = cluster.run_dir().to_owned();
        Ok(Self { child, run_dir })
    }

    /// The process id of the program in front; it is the agent's if that program became the agent.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `denizen-agent status --output json`.
    pub fn status(&self) -> Result<Value> {
        let mut ask = Command::new(binary::ours("denizen-agent")?);
        ask.args(["status", "--output", "json", "--run-dir"]);
        let output = checked(ask.arg(&self.run_dir))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// `denizen-agent explain --output json`.
    pub fn explain(&self, from: &str, to: &str) -> Result<Value> {
        let mut ask = Command::new(binary::ours("denizen-agent")?);
        ask.args(["explain", "--output", "json", "--from", from, "--to", to, "--run-dir"]);
        let output = checked(ask.arg(&self.run_dir))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Waits until its status is as wished.
    pub fn until(&self, what: &str, so: impl Fn(&Value) -> bool) -> Result<Value> {
        let is_so = |now: &Result<Value>| now.as_ref().is_ok_and(&so);
        observed(what, TIMEOUT, || Ok(self.status()), is_so)?
    }

    /// The capabilities in effect of the process that the program in front started, as the kernel
    /// counts them.
    pub fn effective_capabilities(&self) -> Result<u64> {
        let id = self.child.id();
        let inner = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let status = fs::read_to_string(format!("/proc/{}/status", inner.trim()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Ok(u64::from_str_radix(line.context("no CapEff")?.trim(), 16)?)
    }
}

impl Drop for WrappedAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
