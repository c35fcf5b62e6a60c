//! An operator's workstation: `kubectl-denizen`, and the API server that its kubeconfig leads to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary;
use crate::node::netns::{Netns, folder};
use crate::peers::api::exec::{ExecRequest, Execution};
use crate::peers::api::{Api, ApiServer};

pub struct Workstation {
    pub api: ApiServer,
    netns: Netns,
    pub folder: TempDir,
}

/// The exit code of a program, and what it printed.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{self:#?}"))
    }

    /// Why the answer lacks a node: its code and the reason.
    pub fn unanswered(&self, node: &str) -> Result<(String, String)> {
        let json = self.json()?;
        let all = json["unanswered"].as_array().context("no list")?;
        let of = all.iter().find(|of| of["node"] == node);
        let of = of.with_context(|| format!("{node} is not named: {self:#?}"))?;
        let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
        Ok((text("code"), text("reason")))
    }
}

impl Workstation {
    pub fn new(label: &str) -> Result<Self> {
        let (netns, folder) = (Netns::new(label)?, folder()?);
        Self::at(netns, folder, "127.0.0.1:6443".parse()?)
    }

    /// A workstation in `netns`, with the API server at this address.
    pub fn at(netns: Netns, folder: TempDir, address: SocketAddr) -> Result<Self> {
        let api = ApiServer::start(&netns, address, folder.path())?;
        Ok(Self { api, netns, folder })
    }

    /// The network namespace of the workstation and the API server.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Puts a Node object with this address.
    pub fn node(&self, name: &str, address: &str) -> Result<()> {
        self.api.put(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": address }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))
    }

    /// Puts a Node object, and its agent's pod with a running container.
    pub fn node_with_agent(&self, name: &str) -> Result<()> {
        self.node(name, "192.168.0.1")?;
        self.agent(name, &json!({ "running": {} }), &[])
    }

    /// Puts the pod of a node's agent, with the container in this state.
    pub fn agent(&self, node: &str, state: &Value, flags: &[String]) -> Result<()> {
        let mut args = vec!["run".to_owned()];
        args.extend_from_slice(flags);
        self.api.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "kube-system", "name": format!("denizen-{node}"),
                "labels": { "app.kubernetes.io/name": "denizen" },
            },
            "spec": {
                "nodeName": node, "hostNetwork": true,
                "containers": [{ "name": "agent", "image": "denizen", "args": args }],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [{ "name": "agent", "state": state,
                    "lastState": { "terminated": { "exitCode": 139, "reason": "Error" } } }],
            },
        }))
    }

    /// Decides what commands in the containers of the nodes' agents do.
    pub fn execute(
        &self,
        executor: impl Fn(&str, &ExecRequest) -> Execution + Send + Sync + 'static,
    ) {
        self.api.execute(Arc::new(move |request: &ExecRequest| {
            let node = request.pod.strip_prefix("denizen-").unwrap_or_default();
            executor(node, request)
        }));
    }

    /// Executes these commands on the pod's node, in the network namespace at this path. The
    /// command contains the agent's run directory, since the pod names it.
    pub fn execute_on_nodes(
        &self,
        program: PathBuf,
        nodes: impl IntoIterator<Item = (String, PathBuf)>,
    ) {
        let nodes: BTreeMap<String, PathBuf> = nodes.into_iter().collect();
        self.execute(move |node, request: &ExecRequest| {
            let Some(command) = in_image(&program, request) else { return no_such_program() };
            match nodes.get(node) {
                Some(netns) => Execution::Runs(command, netns.clone()),
                None => Execution::Hangs,
            }
        });
    }

    /// `kubectl-denizen` and these words.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary::ours("kubectl-denizen")?);
        command.env_clear().arg("--kubeconfig").arg(self.api.kubeconfig()).args(words);
        Ok(command)
    }

    /// Runs `kubectl-denizen` with these words.
    pub fn run(&self, words: &[&str]) -> Result<CommandOutput> {
        self.output_of(self.command(words)?)
    }

    /// Runs any command on the workstation.
    pub fn output_of(&self, mut command: Command) -> Result<CommandOutput> {
        let output = self.netns.run(|| command.output())??;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("not UTF-8");
        let code = output.status.code().context("it was killed")?;
        Ok(CommandOutput { code, stdout: text(output.stdout)?, stderr: text(output.stderr)? })
    }

    /// Runs it with `--output json`; it must exit with this code and print only JSON.
    pub fn json(&self, words: &[&str], code: i32) -> Result<CommandOutput> {
        let printed = self.run(&[words, &["--output", "json"]].concat())?;
        ensure!(printed.code == code && printed.stderr.is_empty(), "{printed:#?}");
        printed.json()?;
        Ok(printed)
    }
}

/// What a container of denizen's image executes. The image has no shell, no `tar`, and no program
/// but the agent's.
pub fn in_image(program: &Path, request: &ExecRequest) -> Option<Command> {
    let (name, args) = request.command.split_first()?;
    (name == "denizen-agent").then(|| {
        let mut command = Command::new(program);
        command.args(args);
        command
    })
}

/// The outcome of a program that the image does not have.
pub fn no_such_program() -> Execution {
    Execution::Prints { stdout: Vec::new(), stderr: b"no such file".to_vec(), code: 127 }
}

/// The path of the agent's program.
pub fn agent_program() -> Result<PathBuf> {
    binary::ours("denizen-agent")
}
