//! Runs CNI plugins as libcni does: each as a process of its own, `prevResult` handed from one to
//! the next, the results kept for CHECK and DEL.

mod chain;
mod context;
mod namespace;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;

use crate::binary;
use crate::node::netns::Netns;

pub use chain::{Added, CNI_VERSION, Chain};
pub use context::{PluginContext, spec_result, with};
pub use namespace::{Disk, Namespace};

/// Every version of the CNI specification that the plugin speaks.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The interface that a chain makes in a pod, unless a call names another.
pub const POD_INTERFACE: &str = "eth0";

/// The plugin as cargo built it beside this test; `DENIZEN_PLUGIN` names another.
pub fn denizen() -> PathBuf {
    let given = std::env::var_os("DENIZEN_PLUGIN").map(|path| Ok(path.into()));
    given.unwrap_or_else(|| binary::ours("denizen")).expect("the plugin is built")
}

/// The plugin as it is installed, which `cargo build-plugin` makes; `DENIZEN_PLUGIN` names another.
///
/// # Panics
/// If it is not there.
pub fn installed() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/x86_64-unknown-linux-musl/plugin/denizen");
    let path = std::env::var_os("DENIZEN_PLUGIN").map_or(built, PathBuf::from);
    assert!(path.is_file(), "{} is not built: cargo build-plugin", path.display());
    path
}

/// Something that can start plugins in a network namespace.
pub trait NodeNamespace {
    /// Starts `command` in the namespace.
    fn start(&self, command: Command) -> Child;
}

impl NodeNamespace for Namespace {
    fn start(&self, command: Command) -> Child {
        self.spawn(command)
    }
}

impl NodeNamespace for Netns {
    fn start(&self, mut command: Command) -> Child {
        let child = self.run(|| command.spawn()).expect("the namespace is there");
        child.expect("the program is installed")
    }
}

/// The parameters of a call: a container, its interface and what the runtime says of it.
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
        Call::of_pod(container, container, pod.path())
    }

    /// The interface `eth0` of the pod `name`, whose sandbox is `container`. The pod's namespace is
    /// `default` unless the name begins with another one: `namespace/name`.
    pub fn of_pod(container: &str, name: &str, netns: &Path) -> Call {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        Call {
            container: container.to_owned(),
            interface: POD_INTERFACE.to_owned(),
            netns: Some(netns.to_owned()),
            args: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
                 K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID=uid-{container}"
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
            ("CNI_PATH", binary::cni_plugins().display().to_string()),
        ]
    }
}

/// Starts `plugin` in the network namespace of `node` and gives it `input`.
pub fn start(
    node: &impl NodeNamespace,
    plugin: &Path,
    variables: Variables,
    input: &[u8],
) -> Child {
    let mut child = spawn(node, plugin, variables);
    give(&mut child, input);
    child
}

/// Starts `plugin` in the network namespace of `node`. It waits for its input: see [`give`].
pub fn spawn(node: &impl NodeNamespace, plugin: &Path, variables: Variables) -> Child {
    node.start(prepared(plugin, variables))
}

/// Runs `plugin` in the calling thread's own network namespace, with `input` as its standard input,
/// and discards its output: nothing but a process from spawn to exit.
pub fn run_here(plugin: &Path, variables: Variables, input: File) -> ExitStatus {
    let mut command = prepared(plugin, variables);
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("the program is installed")
}

fn prepared(plugin: &Path, variables: Variables) -> Command {
    let mut command = Command::new(plugin);
    command.env_clear().envs(variables);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Gives `child` all of its standard input.
pub fn give(child: &mut Child, input: &[u8]) {
    // A plugin that has already failed may not read all of it.
    let _ = child.stdin.take().expect("it is piped").write_all(input);
}

/// The variables of one call.
pub type Variables = Vec<(&'static str, String)>;

/// A plugin's error object.
pub type Refusal = Value;

/// What `child` answered: its result, null where it printed nothing, or its error object.
pub fn finish(child: Child) -> Result<Value, Refusal> {
    finish_with_stderr(child).map(|(answer, _)| answer)
}

/// The same, with what the plugin wrote to standard error.
pub fn finish_with_stderr(child: Child) -> Result<(Value, String), Refusal> {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("a plugin ends");
    let [printed, output] =
        [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let answer = match printed.trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            panic!("standard output is not JSON: {error}: {text:?}, {output}")
        }),
    };
    if status.success() { Ok((answer, output)) } else { Err(answer) }
}

/// Calls the `denizen` plugin alone, in the network namespace of `node`.
pub fn invoke(node: &Namespace, variables: Variables, input: &[u8]) -> Result<Value, Refusal> {
    finish(start(node, &denizen(), variables, input))
}
