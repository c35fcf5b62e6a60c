//! Starts the agent as a child process. Its program is this bench itself.

use std::path::Path;

use anyhow::Result;
use denizen_tests::bench::MeasuredAgent;
use denizen_tests::node::netns::Netns;

/// The node that the agent runs on.
pub const NODE: &str = "node-0";

/// Starts the agent on `node`, with its run directory in `folder`.
pub fn start(
    node: &Netns,
    kubeconfig: &Path,
    folder: &Path,
    flags: &[&str],
) -> Result<MeasuredAgent> {
    let flags = [&["--node-name", NODE, "--network-policy=off"], flags].concat();
    let (program, run_dir) = (std::env::current_exe()?, folder.join("run"));
    MeasuredAgent::start(node, &program, &run_dir, ("--kubeconfig", kubeconfig), &flags)
}
