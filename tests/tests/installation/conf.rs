//! What an operator installs is what Kubernetes, Prometheus, Grafana and denizen's own programs
//! take.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::conf::{
    DAEMON_SET, UNINSTALL, built, built_with, containers, containers_of, documents, folder, text,
};
use denizen_tests::node::netns::checked;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const FLOW_CONTROL: &str = "kubernetes/api-priority/flow-control.yaml";

/// The folders that `kubectl apply -k` takes.
const KUSTOMIZATIONS: [&str; 2] = ["kubernetes", "kubernetes/uninstall"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    api_version: String,
    kind: String,
    namespace: String,
    resources: Vec<String>,
    components: Vec<String>,
}

/// An object as Kubernetes' own type reads it. A field that the type does not know is lost on the
/// way, and that is an error.
fn strictly<T: DeserializeOwned + Serialize>(object: &Value) -> Result<()> {
    let typed: T = serde_json::from_value(object.clone())?;
    kept(object, &serde_json::to_value(typed)?, "")
}

fn kept(output: &Value, read: &Value, at: &str) -> Result<()> {
    match (output, read) {
        (Value::Object(output), Value::Object(read)) => {
            output.iter().try_for_each(|(key, value)| {
                let at = format!("{at}.{key}");
                let read = read.get(key).with_context(|| format!("there is no field {at}"))?;
                kept(value, read, &at)
            })
        }
        (Value::Array(output), Value::Array(read)) => {
            output.iter().zip(read).enumerate().try_for_each(|(index, (output, read))| {
                kept(output, read, &format!("{at}[{index}]"))
            })
        }
        _ => {
            ensure!(output == read, "{at}: {output} is read as {read}");
            Ok(())
        }
    }
}

pub(crate) fn object(object: &Value) -> Result<()> {
    let kind = object["kind"].as_str().context("an object without a kind")?;
    match kind {
        "ServiceAccount" => strictly::<ServiceAccount>(object),
        "ClusterRole" => strictly::<ClusterRole>(object),
        "ClusterRoleBinding" => strictly::<ClusterRoleBinding>(object),
        "ConfigMap" => strictly::<ConfigMap>(object),
        "DaemonSet" => strictly::<DaemonSet>(object),
        "FlowSchema" => strictly::<FlowSchema>(object),
        "PriorityLevelConfiguration" => strictly::<PriorityLevelConfiguration>(object),
        other => bail!("nobody looked at a {other} yet"),
    }
}

fn kustomization(name: &str) -> Result<Kustomization> {
    let mut documents = documents(&format!("{name}/kustomization.yaml"))?;
    ensure!(documents.len() == 1, "one document");
    Ok(serde_json::from_value(documents.remove(0))?)
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_found() {
    let mut account = documents("kubernetes/rbac.yaml").unwrap().remove(0);
    object(&account).unwrap();
    account["metadata"]["nme"] = "typo".into();
    assert!(object(&account).unwrap_err().to_string().contains(".metadata.nme"));
}

#[test]
fn every_manifest_is_what_kubernetes_takes_and_is_installed() -> Result<()> {
    for name in KUSTOMIZATIONS {
        let Kustomization { api_version, kind, namespace, resources, components } =
            kustomization(name)?;
        assert_eq!(
            (api_version.as_str(), kind.as_str()),
            ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        );
        assert_eq!(namespace, "kube-system");
        let [component] = components.as_slice() else {
            bail!("{name}: {components:?}");
        };
        assert!(component.ends_with("image"), "{name}");
        let there = fs::read_dir(folder().join(name))?.flatten();
        let there: BTreeSet<String> = there
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "yaml"))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name != "kustomization.yaml")
            .collect();
        assert_eq!(there, resources.iter().cloned().collect(), "{name}");
        for resource in resources {
            for document in documents(&format!("{name}/{resource}"))? {
                object(&document).with_context(|| format!("{name}/{resource}"))?;
            }
        }
    }
    Ok(())
}

/// As `kubectl apply -k` would send it.
#[test]
fn kubectl_builds_both_kustomizations() -> Result<()> {
    for (name, objects) in KUSTOMIZATIONS.into_iter().zip([5, 1]) {
        let built = built(&folder().join(name))?;
        assert_eq!(built.len(), objects, "{name}");
        for built in &built {
            object(built)?;
        }
    }
    Ok(())
}

/// Whoever sets the image sets it once, for the installation and for what takes it away.
#[test]
fn the_image_is_set_in_one_file() -> Result<()> {
    let copy = tempfile::tempdir()?;
    let root = copy.path().join("kubernetes");
    checked(Command::new("cp").arg("-r").arg(folder().join("kubernetes")).arg(&root))?;
    let file = root.join("image/kustomization.yaml");
    let text = fs::read_to_string(&file)?;
    let set = text.replace("# newName: REGISTRY/", "newName: registry.example/");
    ensure!(set != text, "{text}");
    fs::write(&file, set)?;
    let image = concat!("registry.example/denizen:", env!("CARGO_PKG_VERSION"));
    for folder in [&root, &root.join("uninstall")] {
        let built = built(folder)?;
        let daemon_set = built.iter().find(|object| object["kind"] == "DaemonSet");
        for container in containers_of(daemon_set.context("no DaemonSet")?) {
            assert_eq!(container["image"], image, "{}", folder.display());
        }
    }
    Ok(())
}

/// What an operator uncomments: the agent gets the flag and what it needs for it; nothing else
/// differs.
#[test]
fn the_component_for_iptables_changes_the_agent_alone() -> Result<()> {
    let mut plain = built(&folder().join("kubernetes"))?;
    let daemon_set = plain.iter_mut().find(|object| object["kind"] == "DaemonSet");
    let agent =
        &mut daemon_set.context("no DaemonSet")?["spec"]["template"]["spec"]["containers"][0];
    let arguments = agent["args"].as_array_mut().context("arguments")?;
    arguments.push("--backend=iptables".into());
    let added = &mut agent["securityContext"]["capabilities"]["add"];
    added.as_array_mut().context("capabilities")?.push("NET_RAW".into());
    assert_eq!(built_with("iptables")?, plain);
    Ok(())
}

/// What an ADD waits for is never behind lists, and both come before the API server's own schemas.
#[test]
fn the_levels_of_the_api_servers_fair_queueing() -> Result<()> {
    let levels = documents(FLOW_CONTROL)?;
    levels.iter().try_for_each(object)?;
    let precedence = |name: &str| {
        let mut schemas = levels.iter().filter(|object| object["kind"] == "FlowSchema");
        let schema = schemas.find(|schema| schema["metadata"]["name"] == name);
        schema.and_then(|schema| schema["spec"]["matchingPrecedence"].as_u64())
    };
    assert!(Some(0) < precedence("denizen-add"));
    assert!(precedence("denizen-add") < precedence("denizen"));
    assert!(precedence("denizen") < Some(900));
    Ok(())
}

/// The agent leaves services and kube-proxy's ports alone, and may read what policies need.
#[test]
fn the_component_beside_kube_proxy_changes_the_agent_and_its_role_alone() -> Result<()> {
    let mut plain = built(&folder().join("kubernetes"))?;
    let with = built_with("beside-kube-proxy")?;
    for (plain, with) in plain.iter_mut().zip(&with) {
        object(with)?;
        match plain["kind"].as_str() {
            // `tests/kubernetes` compares its rules with what is asked for.
            Some("ClusterRole") => plain["rules"] = with["rules"].clone(),
            Some("DaemonSet") => {
                let agent = &mut plain["spec"]["template"]["spec"]["containers"][0];
                let arguments = agent["args"].as_array_mut().context("arguments")?;
                arguments.extend(
                    [
                        "--services=off",
                        "--healthz-bind-address=",
                        "--metrics-bind-address=127.0.0.1:20249",
                    ]
                    .map(Value::from),
                );
            }
            _ => {}
        }
    }
    assert_eq!(with, plain);
    Ok(())
}

/// The variables that a container is given.
fn environment(container: &Value) -> Result<BTreeSet<String>> {
    let named = container["env"].as_array().into_iter().flatten();
    let mut names: BTreeSet<String> = named
        .map(|entry| Some(entry["name"].as_str()?.to_owned()))
        .collect::<Option<_>>()
        .context("a variable has a name")?;
    for source in container["envFrom"].as_array().into_iter().flatten() {
        let maps = documents("kubernetes/config-map.yaml")?;
        let map = maps.iter().find(|map| map["metadata"]["name"] == source["configMapRef"]["name"]);
        let data = map.context("no such ConfigMap")?["data"].clone();
        names.extend(data.as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    }
    Ok(names)
}

#[test]
fn the_programs_take_the_arguments_that_they_are_given() -> Result<()> {
    for daemon_set in [DAEMON_SET, UNINSTALL] {
        for container in containers(daemon_set)? {
            assert!(container["command"].is_null(), "the image has no other program");
            let environment = environment(&container)?;
            let mut words = vec!["denizen-agent".to_owned()];
            for word in container["args"].as_array().context("no arguments")? {
                let mut word = word.as_str().context("an argument is a text")?.to_owned();
                for name in &environment {
                    word = word.replace(&format!("$({name})"), "value");
                }
                ensure!(!word.contains("$("), "{word}: no such variable");
                words.push(word);
            }
            let taken = denizen_agent::cli::command().try_get_matches_from(&words);
            taken.with_context(|| format!("{daemon_set}: {words:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn mounts_have_volumes_and_nothing_has_more_than_it_needs() -> Result<()> {
    for daemon_set in [DAEMON_SET, UNINSTALL] {
        let document = documents(daemon_set)?.remove(0);
        let pod = &document["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().context("volumes")?;
        let volumes: BTreeSet<_> =
            volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
        let mut mounted = BTreeSet::new();
        for container in &containers(daemon_set)? {
            let (name, security) = (&container["name"], &container["securityContext"]);
            let mounts = container["volumeMounts"].as_array().into_iter().flatten();
            mounted.extend(mounts.filter_map(|mount| mount["name"].as_str()).map(str::to_owned));
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_ne!(security["privileged"], true, "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]), "{name}");
        }
        assert_eq!(mounted, volumes.into_iter().map(str::to_owned).collect(), "{daemon_set}");
        assert_eq!(pod["hostNetwork"], true);
        assert_eq!(pod["priorityClassName"], "system-node-critical");
        assert_eq!(pod["tolerations"], serde_json::json!([{ "operator": "Exists" }]));
    }
    Ok(())
}

/// What keeps the plugin installed, and what takes everything away, never ask the API.
#[test]
fn the_agent_alone_has_a_token() -> Result<()> {
    for daemon_set in [DAEMON_SET, UNINSTALL] {
        let document = documents(daemon_set)?.remove(0);
        let pod = &document["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false, "{daemon_set}");
        for container in containers(daemon_set)? {
            let mounts = container["volumeMounts"].as_array().into_iter().flatten();
            let names: Vec<_> = mounts.filter_map(|mount| mount["name"].as_str()).collect();
            let has_token = names.contains(&"api-access");
            assert_eq!(has_token, container["name"] == "agent", "{}", container["name"]);
        }
    }
    Ok(())
}

/// And where no kube-proxy does, by none of the paths that kube-proxy has.
#[test]
fn the_agent_is_asked_where_only_it_answers() -> Result<()> {
    let containers = containers(DAEMON_SET)?;
    let agent = containers.iter().find(|container| container["name"] == "agent");
    let agent = agent.context("no agent")?;
    for (probe, path) in [("readinessProbe", "/denizen/ready"), ("livenessProbe", "/denizen/live")]
    {
        let get = &agent[probe]["httpGet"];
        assert_eq!(get["path"], path);
        let at = format!("{}:{}", get["host"].as_str().context("a host")?, get["port"]);
        let command = denizen_agent::cli::command();
        let run = command.find_subcommand("run").context("no command `run`")?;
        let flag = run.get_arguments().find(|flag| flag.get_id() == "probe_bind_address");
        let values = flag.context("no such flag")?.get_default_values();
        assert_eq!(values.first().and_then(|value| value.to_str()), Some(&*at));
    }
    assert!(agent["resources"]["requests"]["memory"].is_string());
    Ok(())
}

/// A registry may give another image under the same name tomorrow.
#[test]
fn the_image_is_made_from_no_other_image() -> Result<()> {
    let file = text("Containerfile")?;
    let mut stages = vec!["scratch"];
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["FROM", from, "AS", name] => {
                ensure!(stages.contains(from), "{line}");
                stages.push(name);
            }
            [] | ["COPY", ..] | ["ENTRYPOINT", ..] => {}
            _ => bail!("{line}"),
        }
    }
    assert_eq!(stages, ["scratch", "nftables", "iptables", "bird"]);
    Ok(())
}

/// What is in the image is what the other tests run.
#[test]
fn the_image_has_the_iptables_that_the_tests_run() -> Result<()> {
    let root = folder().join("..");
    let installed = fs::read_to_string(root.join("tests/packages"))?;
    let script = fs::read_to_string(root.join("conf/release/iptables"))?;
    let line = script.lines().find(|line| line.ends_with("> /dev/null")).context("apt-get")?;
    let packages: Vec<_> = line.split_whitespace().take_while(|word| *word != ">").collect();
    assert_eq!(packages, ["iptables", "ipset"]);
    for package in packages {
        assert!(installed.contains(&format!(":{package}\n")), "{package}");
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertRules {
    groups: Vec<AlertGroup>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertGroup {
    name: String,
    rules: Vec<Alert>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasting: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn every_alert_says_what_is_wrong_and_how_bad_it_is() -> Result<()> {
    let rules: AlertRules = serde_json::from_value(documents("monitoring/alerts.yaml")?.remove(0))?;
    let mut names = BTreeSet::new();
    for alert in rules.groups.iter().flat_map(|group| &group.rules) {
        assert!(names.insert(&alert.alert), "{} twice", alert.alert);
        assert!(alert.alert.starts_with("Denizen") && !alert.expr.is_empty());
        assert!(alert.lasting.as_ref().is_none_or(|duration| duration.ends_with('m')));
        let severity = alert.labels.get("severity").context("how bad it is")?;
        assert!(["critical", "warning"].contains(&severity.as_str()));
        for annotation in ["summary", "description"] {
            assert!(alert.annotations.contains_key(annotation), "{}", alert.alert);
        }
    }
    assert_eq!(rules.groups[0].name, "denizen");
    Ok(())
}
