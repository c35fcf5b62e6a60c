//! The Helm chart installs what `conf/kubernetes` installs. Helm itself renders it, from a library
//! for Python.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::conf::{built, built_with, containers_of, documents, folder, text};
use denizen_tests::node::netns::checked;
use serde_json::{Value, json};

use crate::backends::backends;

/// What `helm template` writes for these values.
const RENDER: &str = r#"
import helm_python, json, sys
with helm_python.Chart.load(sys.argv[1]) as chart:
    values = json.loads(sys.argv[2])
    files = chart.render(values, name="denizen", namespace="kube-system")
print("\n---\n".join(files.values()))
"#;

/// What `helm lint --strict` finds.
const LINT: &str = r#"
import helm_python, json, sys
print(json.dumps(helm_python.lint(sys.argv[1], json.loads(sys.argv[2]), strict=True)))
"#;

/// What a script writes that is given the chart and values.
fn python(script: &str, values: &Value) -> Result<String> {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", binary::helm()?).args(["-c", script]);
    python.arg(folder().join("helm/denizen")).arg(values.to_string());
    Ok(String::from_utf8(checked(&mut python)?.stdout)?)
}

/// The objects that the chart makes with these values, by kind and name.
fn rendered(values: &Value) -> Result<Vec<Value>> {
    let objects = serde_saphyr::from_multiple(&python(RENDER, values)?);
    Ok(by_kind(objects.context("what Helm renders is not YAML")?))
}

fn by_kind(mut objects: Vec<Value>) -> Vec<Value> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    objects.sort_by_key(|object| (text(&object["kind"]), text(&object["metadata"]["name"])));
    // A file in a ConfigMap may be written otherwise.
    for object in &mut objects {
        let Some(file) = object.pointer_mut("/data/config.yaml") else { continue };
        if let Some(text) = file.as_str() {
            *file = serde_saphyr::from_str(text).expect("a file in a ConfigMap is YAML");
        }
    }
    objects
}

/// With the two that an operator must set, as `conf/kubernetes` has them.
fn with(mut values: Value) -> Result<Value> {
    let map = documents("kubernetes/config-map.yaml")?.remove(0);
    values["image"]["repository"] = "denizen".into();
    values["apiServer"] = map["data"]["DENIZEN_API_SERVER"].clone();
    Ok(values)
}

/// Why Helm refuses these values.
fn refused(values: &Value) -> Result<String> {
    let error = rendered(values).err().with_context(|| format!("it took {values}"))?;
    Ok(format!("{error:#}"))
}

/// The same objects, with one more flag of the agent.
fn with_flag(mut objects: Vec<Value>, flag: &str) -> Result<Vec<Value>> {
    let of_agent = "/spec/template/spec/containers/0/args";
    let daemon_set = objects.iter_mut().find(|object| object["kind"] == "DaemonSet");
    let args = daemon_set.and_then(|object| object.pointer_mut(of_agent)?.as_array_mut());
    args.context("no DaemonSet")?.push(flag.into());
    Ok(objects)
}

/// Helm adds a label and annotations of its own when it sends them, not when it renders them. So
/// nothing may differ.
#[test]
fn the_chart_makes_the_objects_that_kustomize_makes() -> Result<()> {
    let plain = built(&folder().join("kubernetes"))?;
    let levels = documents("kubernetes/api-priority/flow-control.yaml")?;
    let beside = built_with("beside-kube-proxy")?;
    let file =
        documents("kubernetes/bird/config-map.yaml")?.remove(0)["data"]["config.yaml"].clone();
    let file: Value = serde_saphyr::from_str(file.as_str().context("a file")?)?;
    let monitor = documents("monitoring/pod-monitor.yaml")?;
    for (values, kustomize) in [
        (json!({}), plain.clone()),
        (json!({ "backend": "iptables" }), built_with("iptables")?),
        (json!({ "apiPriority": true }), [plain.clone(), levels].concat()),
        (json!({ "services": "off" }), beside.clone()),
        (
            json!({ "podMonitor": { "enabled": true } }),
            [with_flag(plain.clone(), "--metrics-bind-address=0.0.0.0:10249")?, monitor].concat(),
        ),
        (json!({ "routing": file["routing"] }), built_with("bird")?),
        // What YAML makes of `off` without quotes.
        (json!({ "services": false }), beside),
    ] {
        assert_eq!(rendered(&with(values.clone())?)?, by_kind(kustomize), "{values}");
    }
    Ok(())
}

#[test]
fn the_charts_version_is_that_of_the_programs() -> Result<()> {
    let chart = documents("helm/denizen/Chart.yaml")?.remove(0);
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"), "{version}");
    }
    Ok(())
}

#[test]
fn what_is_missing_or_wrong_is_an_error_that_says_so() -> Result<()> {
    let image = json!({ "repository": "denizen" });
    let without_api = refused(&json!({ "image": image }))?;
    ensure!(without_api.contains("apiServer is empty"), "{without_api}");
    rendered(&json!({ "image": image, "services": "off" }))?;
    let without_image = refused(&json!({ "apiServer": "https://192.0.2.1:6443" }))?;
    ensure!(without_image.contains("image.repository is empty"), "{without_image}");
    for (wrong, named) in [("backend", "/backend"), ("service", "'service' not allowed")] {
        let error = refused(&with(json!({ wrong: "userspace" }))?)?;
        ensure!(error.contains(named), "{error}");
    }
    Ok(())
}

#[test]
fn the_agent_gets_every_backend_that_its_flag_takes() -> Result<()> {
    for backend in backends()? {
        let objects = rendered(&with(json!({ "backend": backend }))?).context(backend.clone())?;
        let daemon_set = objects.iter().find(|object| object["kind"] == "DaemonSet");
        let agent = &containers_of(daemon_set.context("no DaemonSet")?)[0];
        let flag = json!(format!("--backend={backend}"));
        let is_given = agent["args"].as_array().is_some_and(|words| words.contains(&flag));
        assert_eq!(is_given, backend != "auto", "{backend}");
    }
    Ok(())
}

/// Nothing but its advice to have an icon (severity 1: information).
#[test]
fn helms_lint_finds_nothing() -> Result<()> {
    for values in [json!({}), with(json!({}))?] {
        let report: Value = serde_json::from_str(&python(LINT, &values)?)?;
        assert_eq!(report["total_charts_linted"], 1);
        assert_eq!(report["errors"], json!([]));
        let advice =
            json!([{ "severity": 1, "path": "Chart.yaml", "error": "icon is recommended" }]);
        assert_eq!(report["messages"], advice);
    }
    Ok(())
}

/// Each value but those that the variants have, another than its default, and where it arrives: in
/// the DaemonSet's pod, or in the ConfigMap.
fn changes() -> Vec<(&'static str, Value, &'static str, Value)> {
    let more = json!({ "limits": { "memory": "1Gi" } });
    let asked = |cpu: &str, memory: &str| {
        let requests = json!({ "cpu": cpu, "memory": memory });
        json!({ "limits": more["limits"], "requests": requests })
    };
    let flag = r#"--a={"b":1}"#;
    let tolerations = json!([{ "key": "a", "operator": "Exists" }]);
    let nodes = json!({ "kubernetes.io/os": "linux", "a": "b" });
    vec![
        ("image.repository", json!("r/d"), "/containers/1/image", json!("r/d:9")),
        ("image.tag", json!("9"), "/containers/0/image", json!("r/d:9")),
        ("apiServer", json!("https://a"), "/data/DENIZEN_API_SERVER", json!("https://a")),
        ("logLevel", json!("debug"), "/data/RUST_LOG", json!("debug")),
        ("agent.extraArgs", json!([flag]), "/containers/0/args/2", json!(flag)),
        ("agent.resources", more.clone(), "/containers/0/resources", asked("250m", "64Mi")),
        ("installCni.extraArgs", json!(["--c"]), "/containers/1/args/3", json!("--c")),
        ("installCni.resources", more.clone(), "/containers/1/resources", asked("1m", "8Mi")),
        ("cniConfDir", json!("/conf"), "/volumes/6/hostPath/path", json!("/conf")),
        ("cniBinDir", json!("/bin"), "/volumes/7/hostPath/path", json!("/bin")),
        ("nodeSelector", json!({ "a": "b" }), "/nodeSelector", nodes),
        ("tolerations", tolerations.clone(), "/tolerations", tolerations),
        ("priorityClassName", json!("p"), "/priorityClassName", json!("p")),
    ]
}

#[test]
fn every_value_arrives() -> Result<()> {
    let mut values = json!({});
    for (name, value, ..) in changes() {
        match name.split_once('.') {
            Some((group, name)) => values[group][name] = value,
            None => values[name] = value,
        }
    }
    let objects = rendered(&values)?;
    let of =
        |kind: &str| objects.iter().find(|object| object["kind"] == kind).context("no such object");
    let (map, pod) = (of("ConfigMap")?, &of("DaemonSet")?["spec"]["template"]["spec"]);
    for (name, _, at, expected) in changes() {
        let object = if at.starts_with("/data") { map } else { pod };
        assert_eq!(object.pointer(at), Some(&expected), "{name}");
    }
    Ok(())
}

/// Beside kube-proxy the agent's metrics have another port, and the PodMonitor asks there. Without
/// the PodMonitor they stay on loopback.
#[test]
fn a_pod_monitor_asks_where_the_agent_answers() -> Result<()> {
    for (services, enabled, at) in [
        ("on", true, Some("0.0.0.0:10249")),
        ("off", true, Some("0.0.0.0:20249")),
        ("on", false, None),
        ("off", false, Some("127.0.0.1:20249")),
    ] {
        let labels = json!({ "release": "prometheus" });
        let monitor = json!({ "enabled": enabled, "labels": labels });
        let objects = rendered(&with(json!({ "services": services, "podMonitor": monitor }))?)?;
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind);
        let agent = &containers_of(of("DaemonSet").context("no DaemonSet")?)[0];
        let words = agent["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let found = words.filter_map(|word| word.strip_prefix("--metrics-bind-address="));
        assert_eq!(found.collect::<Vec<_>>(), Vec::from_iter(at), "{services} {enabled}");
        let monitor = of("PodMonitor");
        assert_eq!(monitor.is_some(), enabled);
        let Some(monitor) = monitor else { continue };
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let port = at.and_then(|at| at.rsplit_once(':')).context("a port")?.1;
        for relabeling in [1, 2] {
            let path = format!("/spec/podMetricsEndpoints/0/relabelings/{relabeling}/replacement");
            let replacement = monitor.pointer(&path).and_then(Value::as_str);
            ensure!(replacement.is_some_and(|at| at.ends_with(&format!(":{port}"))), "{monitor}");
        }
    }
    Ok(())
}

/// One value switches who serves host ports and who asks for them.
#[test]
fn host_ports_are_switched_on_both_sides() -> Result<()> {
    let cases = [
        (json!("off"), None),
        (json!(false), None),
        (json!("on"), Some("--host-ports=on")),
        (json!(true), Some("--host-ports=on")),
        (json!("without-localhost"), Some("--host-ports=without-localhost")),
    ];
    for (value, of_agent) in cases {
        let image = json!({ "repository": "r/d" });
        let values = json!({ "image": image, "apiServer": "https://a", "hostPorts": value });
        let objects = rendered(&values)?;
        let pods = objects.iter().find(|object| object["kind"] == "DaemonSet");
        let containers = &pods.context("no DaemonSet")?["spec"]["template"]["spec"]["containers"];
        let found = |container: usize| {
            let args = containers[container]["args"].as_array().into_iter().flatten();
            let mut args = args.filter_map(Value::as_str);
            args.find(|arg| arg.starts_with("--host-ports")).map(str::to_owned)
        };
        let expected = [of_agent, of_agent.map(|_| "--host-ports")];
        assert_eq!([found(0).as_deref(), found(1).as_deref()], expected, "{value}");
    }
    Ok(())
}

#[test]
fn every_value_is_tried_and_documented() -> Result<()> {
    let file = documents("helm/denizen/values.yaml")?.remove(0);
    let mut names = BTreeSet::new();
    for (name, value) in file.as_object().context("values")? {
        match value.as_object().filter(|_| name != "nodeSelector" && name != "routing") {
            Some(group) => names.extend(group.keys().map(|key| format!("{name}.{key}"))),
            None => _ = names.insert(name.clone()),
        }
    }
    let variants =
        ["apiPriority", "backend", "hostPorts", "podMonitor.enabled", "routing", "services"];
    let variants = variants.into_iter().chain(["podMonitor.labels"]);
    let tried = changes().into_iter().map(|(name, ..)| name).chain(variants);
    assert_eq!(tried.map(str::to_owned).collect::<BTreeSet<_>>(), names);
    let page = text("reference/helm.md")?;
    for name in names {
        ensure!(page.contains(&format!("\n| `{name}` |")), "{name}");
    }
    Ok(())
}
