//! BIRD beside the agent, as an operator installs it.

use std::fs;

use anyhow::{Context, Result, ensure};
use denizen_agent::config::file::complete;
use denizen_tests::conf::{built_with, containers_of, folder, granted, texts};
use serde_json::Value;

use crate::conf::object;

/// What an operator uncomments for BGP: BIRD beside the agent, which gets a file and the passwords.
/// Each program takes what it is given.
#[test]
fn the_component_for_bird_adds_a_daemon_set_that_meets_the_agents() -> Result<()> {
    let with = built_with("bird")?;
    with.iter().try_for_each(object)?;
    let named = |kind: &str, name: &str| {
        let found =
            with.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name}"))
    };
    let bird = named("DaemonSet", "denizen-bird")?;
    let agent = named("DaemonSet", "denizen")?;
    let [container] = containers_of(bird).try_into().ok().context("one container")?;
    let path = |at: &Value, list: &str| at[list][0]["mountPath"].clone();
    let shared = &bird["spec"]["template"]["spec"]["volumes"][0]["hostPath"]["path"];
    assert_eq!(
        (&path(&container, "volumeMounts"), shared.as_str()),
        (shared, Some("/run/denizen/bird"))
    );
    assert_eq!(container["image"], containers_of(agent)[0]["image"]);
    let granted = granted(std::slice::from_ref(&container), "bird")?;
    assert_eq!(granted, ["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"]);
    let arguments = |container: &Value| texts(&container["args"]);
    let words = [vec!["denizen-agent".to_owned()], arguments(&container)?].concat();
    denizen_agent::cli::command().try_get_matches_from(words)?;
    let file = "--config=/etc/denizen/routing/config.yaml";
    ensure!(arguments(&containers_of(agent)[0])?.iter().any(|word| word == file), "{agent}");
    // The file is one that the agent takes.
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("config.yaml");
    let map = named("ConfigMap", "denizen-routing")?;
    fs::write(&path, map["data"]["config.yaml"].as_str().context("a file")?)?;
    let words = ["denizen-agent", "run", "--config", &path.to_string_lossy()].map(Into::into);
    let completed = complete(&denizen_agent::cli::command(), words.to_vec())?;
    ensure!(completed.words.iter().any(|word| word == "--routing-mode=bird"), "{completed:?}");
    denizen_agent::cli::command().try_get_matches_from(completed.words)?;
    Ok(())
}

/// What is in the image is what the other tests run.
#[test]
fn the_image_has_the_bird_that_the_tests_run() -> Result<()> {
    let root = folder().join("..");
    let unpacked = fs::read_to_string(root.join("tests/packages"))?;
    let script = fs::read_to_string(root.join("conf/release/bird"))?;
    for package in ["bird2", "libssh-gcrypt-4"] {
        let is_word = |text: &str| text.split_whitespace().any(|word| word == package);
        ensure!(is_word(&unpacked) && is_word(&script), "{package}");
    }
    Ok(())
}
