//! What an operator installs: the files of `conf/`, as they lie there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::netns::checked;

/// The agent's DaemonSet.
pub const DAEMON_SET: &str = "kubernetes/daemon-set.yaml";

/// The DaemonSet that uninstalls everything.
pub const UNINSTALL: &str = "kubernetes/uninstall/daemon-set.yaml";

/// The folder `conf/`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

/// A file's text. `name` is its path in the folder.
pub fn text(name: &str) -> Result<String> {
    fs::read_to_string(folder().join(name)).with_context(|| format!("cannot read conf/{name}"))
}

/// The documents of a YAML file.
pub fn documents(name: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(&text(name)?).with_context(|| format!("conf/{name} is not YAML"))
}

/// All containers of a file's DaemonSet, the initial ones first.
pub fn containers(name: &str) -> Result<Vec<Value>> {
    Ok(containers_of(documents(name)?.first().context("an empty file")?))
}

/// All containers of a DaemonSet, the initial ones first.
pub fn containers_of(daemon_set: &Value) -> Vec<Value> {
    let pod = &daemon_set["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|key| pod[key].as_array());
    lists.into_iter().flatten().flatten().cloned().collect()
}

/// What `kubectl apply -k` would send for a folder.
pub fn built(folder: &Path) -> Result<Vec<Value>> {
    let built = checked(Command::new("kubectl").arg("kustomize").arg(folder))?;
    serde_saphyr::from_multiple(&String::from_utf8(built.stdout)?)
        .context("kubectl's words are not YAML")
}

/// The same for `conf/kubernetes` with a component, whose line in `kustomization.yaml` an operator
/// uncomments.
pub fn built_with(component: &str) -> Result<Vec<Value>> {
    let copy = tempfile::tempdir()?;
    checked(Command::new("cp").arg("-r").arg(folder().join("kubernetes")).arg(copy.path()))?;
    let folder = copy.path().join("kubernetes");
    let file = folder.join("kustomization.yaml");
    let text = fs::read_to_string(&file)?;
    let line = format!("- {component}\n");
    let commented = format!("# {line}");
    ensure!(text.contains(&commented), "{text}");
    fs::write(&file, text.replace(&commented, &line))?;
    built(&folder)
}

/// A list of texts; a missing list is empty.
pub fn texts(list: &Value) -> Result<Vec<String>> {
    let texts = list.as_array().into_iter().flatten();
    let texts = texts.map(|text| text.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().with_context(|| format!("not only texts: {list}"))
}

/// The capabilities that a container of a file's DaemonSet runs with.
pub fn capabilities(daemon_set: &str, container: &str) -> Result<Vec<String>> {
    granted(&containers(daemon_set)?, container)
}

/// The capabilities that one of these containers runs with: those it adds, since it drops all
/// others.
pub fn granted(containers: &[Value], name: &str) -> Result<Vec<String>> {
    let container = containers.iter().find(|container| container["name"] == name);
    let security = &container.context("no such container")?["securityContext"];
    let capabilities = &security["capabilities"];
    ensure!(capabilities["drop"] == serde_json::json!(["ALL"]), "{security}");
    texts(&capabilities["add"])
}
