//! A container runtime's part of CNI: executes a chain of real plugins, each fed its predecessor's
//! result.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::binary;
use crate::netns::Netns;

/// The version that the newest plugins in Debian speak.
pub const CNI_VERSION: &str = "1.0.0";

/// A network's plugins in order, as a conflist has them.
#[derive(Debug, Clone)]
pub struct Chain {
    network: String,
    plugins: Vec<Value>,
}

/// The pod sandbox that a chain works on.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Its network namespace.
    pub netns: PathBuf,
    /// The pod's name; its namespace is `default`.
    pub pod: String,
}

/// What came of an ADD.
#[derive(Debug, Clone)]
pub struct Added {
    /// The last plugin's result.
    pub result: Value,
    /// How long each plugin's process took.
    pub took: Vec<(String, Duration)>,
}

/// The interface that every chain makes in a pod.
pub const POD_INTERFACE: &str = "eth0";

impl Chain {
    /// Debian's `bridge` with `host-local` addresses, as most installations have it. Its data lie
    /// in `folder`.
    pub fn bridged(bridge: &str, ranges: &[(&str, IpAddr)], folder: &Path) -> Self {
        let bridge = json!({
            "type": "bridge", "bridge": bridge, "isGateway": true, "hairpinMode": true,
            "ipam": host_local(ranges, folder),
        });
        Self { network: "bridged".to_owned(), plugins: vec![bridge] }
    }

    /// Its pods' frames are in this VLAN of the bridge.
    #[must_use]
    pub fn in_vlan(mut self, id: u16) -> Self {
        if let Some(first) = self.plugins.first_mut() {
            first["vlan"] = id.into();
        }
        self
    }

    /// Debian's `ptp` with `host-local` addresses: a pod that is routed to, without a bridge.
    pub fn routed(ranges: &[(&str, IpAddr)], folder: &Path) -> Self {
        let ptp = json!({ "type": "ptp", "ipam": host_local(ranges, folder) });
        Self { network: "routed".to_owned(), plugins: vec![ptp] }
    }

    /// Only what is chained to it later: for a pod whose interface was made by hand.
    pub fn empty() -> Self {
        Self { network: "by-hand".to_owned(), plugins: Vec::new() }
    }

    /// Chains the real `denizen` plugin, recording into `run_dir`. `options` are added to its
    /// configuration.
    #[must_use]
    pub fn then_denizen(mut self, run_dir: &Path, options: &Value) -> Self {
        let mut plugin = json!({ "type": "denizen", "runDir": run_dir });
        for (key, value) in options.as_object().into_iter().flatten() {
            plugin[key] = value.clone();
        }
        self.plugins.push(plugin);
        self
    }

    /// The same chain as it was before denizen was chained to it.
    #[must_use]
    pub fn without_denizen(mut self) -> Self {
        self.plugins.retain(|plugin| plugin["type"] != "denizen");
        self
    }

    /// The chain as an operator installs it.
    pub fn conflist(&self) -> String {
        let list =
            json!({ "cniVersion": CNI_VERSION, "name": self.network, "plugins": self.plugins });
        format!("{list:#}\n")
    }

    /// The network's name.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// From now on the last plugin, which is `denizen`, waits for the agent as `wait` says.
    pub fn wait_as(&mut self, wait: &Value) {
        if let Some(denizen) = self.plugins.last_mut() {
            denizen["waitForAgent"] = wait.clone();
        }
    }

    /// ADD by every plugin in order, from inside `node`.
    pub fn add(&self, node: &Netns, sandbox: &Sandbox, previous: Option<Value>) -> Result<Added> {
        let (mut result, mut took) = (previous, Vec::new());
        for plugin in &self.plugins {
            let started = Instant::now();
            let output = self.execute(node, "ADD", plugin, sandbox, result.as_ref())?;
            took.push((plugin["type"].as_str().unwrap_or_default().to_owned(), started.elapsed()));
            result = Some(
                serde_json::from_slice(&output.stdout).context("a plugin's result is not JSON")?,
            );
        }
        Ok(Added { result: result.context("a chain without plugins has no result")?, took })
    }

    /// DEL by every plugin in reverse order.
    pub fn del(&self, node: &Netns, sandbox: &Sandbox, result: &Value) -> Result<()> {
        for plugin in self.plugins.iter().rev() {
            self.execute(node, "DEL", plugin, sandbox, Some(result))?;
        }
        Ok(())
    }

    fn execute(
        &self,
        node: &Netns,
        command: &str,
        plugin: &Value,
        sandbox: &Sandbox,
        previous: Option<&Value>,
    ) -> Result<Output> {
        let mut config = plugin.clone();
        config["cniVersion"] = CNI_VERSION.into();
        config["name"] = self.network.clone().into();
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        let kind = plugin["type"].as_str().context("a plugin has a type")?;
        let path =
            if kind == "denizen" { binary::ours(kind)? } else { binary::cni_plugins().join(kind) };
        let output = node.run(|| execute(&path, command, sandbox, &config))??;
        if !output.status.success() {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("{command} of {kind} for {} failed: {stdout} {stderr}", sandbox.id);
        }
        Ok(output)
    }
}

fn execute(path: &Path, command: &str, sandbox: &Sandbox, config: &Value) -> Result<Output> {
    let arguments = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID=uid-{}",
        sandbox.pod, sandbox.id, sandbox.id
    );
    let mut child = Command::new(path)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &sandbox.id)
        .env("CNI_NETNS", &sandbox.netns)
        .env("CNI_IFNAME", POD_INTERFACE)
        .env("CNI_PATH", binary::cni_plugins())
        .env("CNI_ARGS", arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", path.display()))?;
    child.stdin.take().context("no standard input")?.write_all(config.to_string().as_bytes())?;
    Ok(child.wait_with_output()?)
}

fn host_local(ranges: &[(&str, IpAddr)], folder: &Path) -> Value {
    let range =
        |(subnet, gateway): &(&str, IpAddr)| json!([{ "subnet": subnet, "gateway": gateway }]);
    let default = |gateway: IpAddr| if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    json!({
        "type": "host-local",
        "dataDir": folder.join("addresses"),
        "ranges": ranges.iter().map(range).collect::<Vec<_>>(),
        "routes": ranges.iter().map(|(_, gateway)| json!({ "dst": default(*gateway) })).collect::<Vec<_>>(),
    })
}
