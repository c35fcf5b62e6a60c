//! The agent, as a process of its own: this program again.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Result;
use denizen_tests::netns::Netns;

/// The node that it is on.
pub const NODE: &str = "node-0";

/// Dropping it kills it.
pub struct Agent(Child);

impl Agent {
    /// Starts it on `node`, with its run directory in `folder`.
    pub fn start(node: &Netns, kubeconfig: &Path, folder: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", "--node-name", NODE, "--cni-cache-dir", "", "--network-policy=off"]);
        command.args(flags).arg("--kubeconfig").arg(kubeconfig);
        command.arg("--run-dir").arg(folder.join("run"));
        command.stdin(Stdio::null()).env("RUST_LOG", "off");
        Ok(Self(node.run(|| command.spawn())??))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
