//! What an operator installs: the files of `conf/`, as they lie there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// The agent's DaemonSet.
pub const DAEMON_SET: &str = "kubernetes/daemon-set.yaml";

/// The DaemonSet that takes everything away.
pub const UNINSTALL: &str = "kubernetes/uninstall/daemon-set.yaml";

/// The folder.
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

/// All containers of a DaemonSet, the initial ones first.
pub fn containers(name: &str) -> Result<Vec<Value>> {
    let documents = documents(name)?;
    let pod = &documents.first().context("an empty file")?["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|key| pod[key].as_array());
    Ok(lists.into_iter().flatten().flatten().cloned().collect())
}

/// The capabilities that a container runs with: those it adds, for it drops all others.
pub fn capabilities(daemon_set: &str, container: &str) -> Result<Vec<String>> {
    let containers = containers(daemon_set)?;
    let container = containers.iter().find(|it| it["name"] == container);
    let security = &container.context("no such container")?["securityContext"];
    let capabilities = &security["capabilities"];
    anyhow::ensure!(capabilities["drop"] == serde_json::json!(["ALL"]), "{security}");
    let added = capabilities["add"].as_array().into_iter().flatten();
    let names = added.map(|name| name.as_str().map(str::to_owned));
    names
        .collect::<Option<_>>()
        .context("a capability's name is a text")
}
