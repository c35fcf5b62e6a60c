//! The context of the plugin's tests: a node, a pod, a run directory.

use std::fs::File;
use std::io::read_to_string;
use std::path::{Path, PathBuf};

use denizen_state::{Attachment, AttachmentId, RunDir, State};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Call, Chain, Namespace, Refusal, Variables, invoke};

/// A node, one pod that is not attached yet, and a folder for the files.
pub struct PluginContext {
    dir: TempDir,
    /// The node's network namespace.
    pub node: Namespace,
    /// The pod's network namespace.
    pub pod: Namespace,
}

impl PluginContext {
    /// A new context, in which no plugin was called yet.
    pub fn new() -> PluginContext {
        // A tmpfs, as the real run directory.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a folder on a tmpfs");
        PluginContext { dir, node: Namespace::new(), pod: Namespace::new() }
    }

    /// The folder that the run directory and everything else of this context is in.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// The run directory, which the first ADD makes.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("denizen")
    }

    /// The parsed state file.
    pub fn state(&self) -> State {
        let run_dir = RunDir::open(&self.run_dir()).expect("an ADD made it");
        run_dir.read().expect("it is readable").expect("an ADD wrote it")
    }

    /// The text of the state file.
    pub fn text(&self) -> String {
        let file = File::open(self.run_dir().join("pods.json")).expect("an ADD wrote it");
        read_to_string(file).expect("it is text")
    }

    /// The names of all records.
    pub fn records(&self) -> Vec<String> {
        self.state().attachments.into_keys().map(|id| id.0).collect()
    }

    /// The record of `call`.
    pub fn record(&self, call: &Call) -> Attachment {
        self.state().attachments[&AttachmentId::new(&call.container, &call.interface)].clone()
    }

    /// Our plugin's configuration, as it is in a chain.
    pub fn ours(&self) -> Value {
        json!({ "type": "denizen", "runDir": self.run_dir() })
    }

    /// A chain of `first` and our plugin, in the network `pods` with addresses of `ranges`.
    pub fn chain(&self, version: &'static str, mut first: Value, ranges: &[&str]) -> Chain {
        let ranges: Vec<_> = ranges.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        let data_dir = self.folder().join("ipam");
        first["ipam"] = json!({ "type": "host-local", "ranges": ranges, "dataDir": data_dir });
        Chain { name: "pods".to_owned(), version, plugins: vec![first, self.ours()] }
    }

    /// Our plugin's configuration as libcni hands it over, with [`spec_result`] as `prevResult`.
    pub fn configuration(&self, version: &str) -> Value {
        let mut configuration = self.ours();
        configuration["cniVersion"] = json!(version);
        configuration["name"] = json!("dbnet");
        configuration["prevResult"] = spec_result(version);
        configuration
    }

    /// The variables of a call for the pod, which is container `container`.
    pub fn variables(&self, command: &str, container: &str) -> Variables {
        Call::new(container, &self.pod).environment(command)
    }

    /// Calls our plugin alone, without a chain.
    pub fn call(&self, variables: Variables, input: &Value) -> Result<Value, Refusal> {
        invoke(&self.node, variables, input.to_string().as_bytes())
    }

    /// Records the pod as container `container`, by our plugin alone.
    pub fn add(&self, container: &str) {
        let added = self.call(self.variables("ADD", container), &self.configuration("1.1.0"));
        added.expect("nothing is wrong with it");
    }
}

impl Default for PluginContext {
    fn default() -> Self {
        PluginContext::new()
    }
}

/// `variables` with another value of `name`.
pub fn with(variables: Variables, name: &'static str, value: &str) -> Variables {
    let others = variables.into_iter().filter(|(found, _)| *found != name);
    others.chain([(name, value.to_owned())]).collect()
}

/// The result that the specification's appendix shows after `bridge` and `tuning`, adapted to each
/// version, and with fields that no version knows.
pub fn spec_result(version: &str) -> Value {
    let eth0 = json!({
        "name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/var/run/netns/blue",
        "x": { "y": [1e3] },
    });
    let mut result = json!({
        "cniVersion": version,
        "interfaces": [
            { "name": "cni0", "mac": "00:11:22:33:44:55" },
            { "name": "veth3243", "mac": "55:44:33:22:11:11" },
            eth0,
        ],
        "ips": [
            { "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2 },
            { "address": "2001:db8:1::5/64", "interface": 2 },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.1.0.1"] },
        "unknown": null,
    });
    if version < "1.0.0" {
        result["ips"][0]["version"] = json!("4");
        result["ips"][1]["version"] = json!("6");
    }
    if version >= "1.1.0" {
        result["interfaces"][2]["mtu"] = json!(1500);
        result["routes"][0]["priority"] = json!(10);
    }
    result
}
