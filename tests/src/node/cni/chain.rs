//! Plugins that are called one after the other, as a conflist has them.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Call, NodeNamespace, Refusal, denizen, finish_with_stderr, start};
use crate::binary;

/// The version that the newest plugins in Debian speak.
pub const CNI_VERSION: &str = "1.0.0";

/// The outcome of an ADD.
#[derive(Debug, Clone)]
pub struct Added {
    /// The last plugin's result.
    pub result: Value,
    /// How long each plugin's process took.
    pub took: Vec<(String, Duration)>,
}

/// Plugins that are called one after the other for one network.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The network's name.
    pub name: String,
    /// The CNI version that the runtime speaks with all plugins.
    pub version: &'static str,
    /// Each plugin's configuration.
    pub plugins: Vec<Value>,
}

impl Chain {
    /// A chain for Debian's plugins.
    pub fn new(name: &str, plugins: Vec<Value>) -> Self {
        Self { name: name.to_owned(), version: CNI_VERSION, plugins }
    }

    /// Debian's `bridge` with `host-local` addresses, as most installations have it. Its data lie
    /// in `folder`.
    pub fn bridged(bridge: &str, ranges: &[(&str, IpAddr)], folder: &Path) -> Self {
        let bridge = json!({
            "type": "bridge", "bridge": bridge, "isGateway": true, "hairpinMode": true,
            "ipam": host_local(ranges, folder),
        });
        Self::new("bridged", vec![bridge])
    }

    /// The same chain with its pods' frames in this VLAN of the bridge.
    #[must_use]
    pub fn in_vlan(mut self, id: u16) -> Self {
        if let Some(first) = self.plugins.first_mut() {
            first["vlan"] = id.into();
        }
        self
    }

    /// The same chain without hairpin mode, which is the plugin's default: the bridge does not send
    /// packets of a pod back to it.
    #[must_use]
    pub fn without_hairpin_mode(mut self) -> Self {
        self.plugins.iter_mut().filter_map(Value::as_object_mut).for_each(|plugin| {
            plugin.remove("hairpinMode");
        });
        self
    }

    /// Debian's `ptp` with `host-local` addresses: pods are routed, without a bridge.
    pub fn routed(ranges: &[(&str, IpAddr)], folder: &Path) -> Self {
        let ptp = json!({ "type": "ptp", "ipam": host_local(ranges, folder) });
        Self::new("routed", vec![ptp])
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

    /// The chain as a conflist, as an operator installs it.
    pub fn conflist(&self) -> String {
        let list =
            json!({ "cniVersion": self.version, "name": self.name, "plugins": self.plugins });
        format!("{list:#}\n")
    }

    /// Makes the last plugin, `denizen`, wait for the agent as `wait` says.
    pub fn wait_as(&mut self, wait: &Value) {
        if let Some(denizen) = self.plugins.last_mut() {
            denizen["waitForAgent"] = wait.clone();
        }
    }

    /// Adds the attachment of `call`: the last plugin's result, or the first error.
    pub fn add(&self, node: &impl NodeNamespace, call: &Call) -> Result<Value, Refusal> {
        self.add_after(node, call, None).map(|added| added.result)
    }

    /// The same after plugins whose result is `previous`.
    pub fn add_after(
        &self,
        node: &impl NodeNamespace,
        call: &Call,
        previous: Option<Value>,
    ) -> Result<Added, Refusal> {
        let (mut result, mut took) = (previous, Vec::new());
        for plugin in &self.plugins {
            let started = Instant::now();
            result = Some(self.call(node, call, "ADD", plugin, result.as_ref())?);
            took.push((kind(plugin).to_owned(), started.elapsed()));
        }
        Ok(Added { result: result.unwrap_or_default(), took })
    }

    /// Checks the attachment against `result`, which its ADD returned.
    pub fn check(
        &self,
        node: &impl NodeNamespace,
        call: &Call,
        result: &Value,
    ) -> Result<(), Refusal> {
        self.plugins
            .iter()
            .try_for_each(|plugin| self.call(node, call, "CHECK", plugin, Some(result)).map(drop))
    }

    /// Deletes the attachment, last plugin first. `result` is what its ADD returned, if the runtime
    /// still knows.
    pub fn del(
        &self,
        node: &impl NodeNamespace,
        call: &Call,
        result: Option<&Value>,
    ) -> Result<(), Refusal> {
        self.plugins
            .iter()
            .rev()
            .try_for_each(|plugin| self.call(node, call, "DEL", plugin, result).map(drop))
    }

    /// Calls one plugin of the chain.
    pub fn call(
        &self,
        node: &impl NodeNamespace,
        call: &Call,
        command: &str,
        plugin: &Value,
        result: Option<&Value>,
    ) -> Result<Value, Refusal> {
        self.call_with_stderr(node, call, command, plugin, result).map(|(answer, _)| answer)
    }

    /// The same, with what the plugin wrote to standard error.
    pub fn call_with_stderr(
        &self,
        node: &impl NodeNamespace,
        call: &Call,
        command: &str,
        plugin: &Value,
        result: Option<&Value>,
    ) -> Result<(Value, String), Refusal> {
        let (path, version) = match kind(plugin) {
            "denizen" => (denizen(), self.version),
            // Debian's plugins speak at most this version; their results are valid results of
            // 1.1.0, too.
            other => (binary::cni_plugins().join(other), self.version.min(CNI_VERSION)),
        };
        let input = self.configuration(plugin, version, result).to_string();
        let child = start(node, &path, call.environment(command), input.as_bytes());
        let (mut answer, output) = finish_with_stderr(child)?;
        if version != self.version && !answer.is_null() {
            answer["cniVersion"] = json!(self.version);
        }
        Ok((answer, output))
    }

    /// What `plugin` gets on standard input.
    pub fn configuration(&self, plugin: &Value, version: &str, result: Option<&Value>) -> Value {
        let mut configuration = plugin.clone();
        // As libcni does: `capabilities` only tells the runtime which of its data the plugin takes.
        let fields = configuration.as_object_mut().expect("a configuration is an object");
        fields.remove("capabilities");
        fields.insert("name".to_owned(), json!(self.name));
        fields.insert("cniVersion".to_owned(), json!(version));
        if let Some(result) = result {
            let mut result = result.clone();
            result["cniVersion"] = json!(version);
            fields.insert("prevResult".to_owned(), result);
        }
        configuration
    }
}

fn kind(plugin: &Value) -> &str {
    plugin["type"].as_str().expect("a plugin has a type")
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
