//! Running CNI chains as libcni does: each plugin's own process, `prevResult` handed from one to
//! the next, the results kept for CHECK and DEL.

mod context;
mod namespace;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::{Value, json};

pub use context::{PluginContext, spec_result, with};
pub use namespace::{Disk, Namespace};

/// Where Debian's `containernetworking-plugins` lie.
pub const REAL_PLUGINS: &str = "/usr/lib/cni";

/// Every version of the CNI specification that the plugin speaks.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The plugin as cargo built it beside this test; `DENIZEN_PLUGIN` names another.
pub fn denizen() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().expect("a test has a path");
        test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("denizen")
    };
    let path = std::env::var_os("DENIZEN_PLUGIN").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "{} is not built: cargo build -p denizen-cni", path.display());
    path
}

/// What is attached: a container, its interface and what the runtime says of it.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub interface: String,
    /// `CNI_NETNS`; `None` once the namespace is gone.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS`.
    pub args: String,
}

impl Call {
    /// The interface `eth0` of `container`, whose namespace is `pod`.
    pub fn new(container: &str, pod: &Namespace) -> Call {
        Call {
            container: container.to_owned(),
            interface: "eth0".to_owned(),
            netns: Some(pod.path().to_owned()),
            args: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={container};K8S_POD_UID=uid-{container}"
            ),
        }
    }

    /// The variables of a call for `command`.
    pub fn environment(&self, command: &str) -> Variables {
        let netns = self.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        vec![
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", self.container.clone()),
            ("CNI_IFNAME", self.interface.clone()),
            ("CNI_NETNS", netns),
            ("CNI_ARGS", self.args.clone()),
            ("CNI_PATH", REAL_PLUGINS.to_owned()),
        ]
    }
}

/// Starts `plugin` in the network namespace of `node` and gives it `input`.
pub fn start(node: &Namespace, plugin: &Path, variables: Variables, input: &[u8]) -> Child {
    let mut child = spawn(node, plugin, variables);
    give(&mut child, input);
    child
}

/// Starts `plugin` in the network namespace of `node`. It waits for its input, which [`give`] gives
/// it.
pub fn spawn(node: &Namespace, plugin: &Path, variables: Variables) -> Child {
    node.spawn(prepared(plugin, variables))
}

/// Runs `plugin` in the calling thread's own network namespace, with `input` as its standard input,
/// and reads nothing of what it says: no more than a process from spawn to exit.
pub fn run_here(plugin: &Path, variables: Variables, input: File) -> ExitStatus {
    let mut command = prepared(plugin, variables);
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("the program is installed")
}

fn prepared(plugin: &Path, variables: Variables) -> Command {
    let mut command = program(plugin);
    command.env_clear().envs(variables);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Gives `child` all of its standard input.
pub fn give(child: &mut Child, input: &[u8]) {
    // One that has already said no does not read to the end.
    let _ = child.stdin.take().expect("it is piped").write_all(input);
}

/// The variables of one call.
pub type Variables = Vec<(&'static str, String)>;

/// A plugin's error object.
pub type Refusal = Value;

/// What `child` answered: its result, null where it printed nothing, or its error object.
pub fn finish(child: Child) -> Result<Value, Refusal> {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("a plugin ends");
    let printed = String::from_utf8_lossy(&stdout).into_owned();
    let answer = match printed.trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            panic!(
                "standard output is not JSON: {error}: {text:?}, {}",
                String::from_utf8_lossy(&stderr)
            )
        }),
    };
    if status.success() { Ok(answer) } else { Err(answer) }
}

/// Calls denizen alone, in the network namespace of `node`.
pub fn invoke(node: &Namespace, variables: Variables, input: &[u8]) -> Result<Value, Refusal> {
    finish(start(node, &denizen(), variables, input))
}

/// Plugins that are called one after the other for one network.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The network's name.
    pub name: String,
    /// The version that the runtime speaks with all of them.
    pub version: &'static str,
    /// Each plugin's configuration.
    pub plugins: Vec<Value>,
}

impl Chain {
    /// Adds the attachment of `call`: the last plugin's result, or the first error.
    pub fn add(&self, node: &Namespace, call: &Call) -> Result<Value, Refusal> {
        let mut result = None;
        for plugin in &self.plugins {
            result = Some(self.call(node, call, "ADD", plugin, result.as_ref())?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Checks it against `result`, what its ADD returned.
    pub fn check(&self, node: &Namespace, call: &Call, result: &Value) -> Result<(), Refusal> {
        self.plugins
            .iter()
            .try_for_each(|plugin| self.call(node, call, "CHECK", plugin, Some(result)).map(drop))
    }

    /// Deletes it, last plugin first. `result` is what its ADD returned, where the runtime still
    /// knows.
    pub fn del(
        &self,
        node: &Namespace,
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
        node: &Namespace,
        call: &Call,
        command: &str,
        plugin: &Value,
        result: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let kind = plugin["type"].as_str().expect("a plugin has a type");
        let (path, version) = match kind {
            "denizen" => (denizen(), self.version),
            // Debian's plugins end at 1.0.0, whose results are results of 1.1.0 as well.
            _ => (Path::new(REAL_PLUGINS).join(kind), self.version.min("1.0.0")),
        };
        let input = self.configuration(plugin, version, result).to_string();
        let mut answer = finish(start(node, &path, call.environment(command), input.as_bytes()))?;
        if version != self.version && !answer.is_null() {
            answer["cniVersion"] = json!(self.version);
        }
        Ok(answer)
    }

    /// What `plugin` gets on standard input.
    fn configuration(&self, plugin: &Value, version: &str, result: Option<&Value>) -> Value {
        let mut configuration = plugin.clone();
        // As libcni does: what a plugin can take of the runtime's data is named by its
        // capabilities.
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

#[expect(clippy::disallowed_methods, reason = "the tests run real programs")]
fn program(path: &Path) -> Command {
    Command::new(path)
}
