use std::net::IpAddr;

use serde_json::{Value, json};

use super::*;
use denizen_model::Protocol;

fn converted(pod: &Value) -> (Option<ClusterPod>, Vec<String>) {
    let json = pod.to_string();
    let raw = serde_json::from_str(&json).unwrap();
    let (mut warnings, mut decoder) = (Vec::new(), Decoder::new("node-1".into()));
    let (name, pod) = super::pod(&raw, &mut decoder, &mut warnings).unwrap();
    assert_eq!(name.to_string(), "shop/web-1");
    (pod, warnings.iter().map(Warning::to_string).collect())
}

/// A running pod of this node, with these fields merged into its spec and status.
fn pod(spec: Value, status: Value) -> Value {
    let mut pod = json!({
        "metadata": {
            "name": "web-1", "namespace": "shop", "uid": "u-1", "labels": { "app": "web" },
            "creationTimestamp": "1970-01-01T00:01:40Z", "managedFields": [{ "x": 1 }],
        },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "c" }] },
        "status": { "phase": "Running", "podIP": "10.1.0.1",
                    "podIPs": [{ "ip": "10.1.0.1" }, { "ip": "fd00::1" }] },
    });
    for (section, fields) in [("spec", spec), ("status", status)] {
        for (key, value) in fields.as_object().unwrap() {
            pod[section][key] = value.clone();
        }
    }
    pod
}

/// Its end is decoded where it counts. Elsewhere a deletion that has begun changes nothing.
#[test]
fn when_a_deleted_pod_ends() {
    let ends = |written: &str, has_ends: bool| {
        let mut pod = pod(json!({}), json!({}));
        pod["metadata"]["deletionTimestamp"] = written.into();
        let json = pod.to_string();
        let raw = serde_json::from_str(&json).unwrap();
        let mut decoder = Decoder::new("node-1".into()).with_ends(has_ends);
        let mut warnings = Vec::new();
        let (_, pod) = super::pod(&raw, &mut decoder, &mut warnings).unwrap();
        (pod.unwrap().ends, warnings.len())
    };
    assert_eq!(ends("1970-01-01T00:02:00Z", true), (Some(120), 0));
    assert_eq!(ends("1970-01-01T00:02:00Z", false), (None, 0));
    assert_eq!(ends("soon", true), (Some(0), 1), "it counts as ended");
}

#[test]
fn a_pod_of_this_node() {
    let (found, warnings) = converted(&pod(json!({}), json!({})));
    let found = found.unwrap();
    assert_eq!(found.labels.get("app"), Some("web"));
    let ips: [IpAddr; 2] = ["10.1.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
    assert_eq!((&*found.ips, found.created), (&ips[..], 100));
    assert_eq!(found.here, Some(OwnPodFacts::new("u-1".into()).into()));
    assert!(warnings.is_empty());
}

#[test]
fn pods_that_do_not_count() {
    let cases = [
        ("running", json!({}), json!({}), true),
        ("pending", json!({}), json!({ "phase": "Pending", "podIPs": null, "podIP": "" }), true),
        ("without a phase", json!({}), json!({ "phase": null }), true),
        ("of an unknown phase", json!({}), json!({ "phase": "Unknown" }), true),
        ("succeeded", json!({}), json!({ "phase": "Succeeded" }), false),
        ("failed", json!({}), json!({ "phase": "Failed" }), false),
        ("of the host's network", json!({ "hostNetwork": true }), json!({}), false),
        ("of its own network", json!({ "hostNetwork": false }), json!({}), true),
    ];
    for (name, spec, status, counts) in cases {
        let found = converted(&pod(spec, status)).0;
        assert_eq!(found.is_some_and(|pod| !pod.host_network), counts, "{name}");
    }
    let mut terminating = pod(json!({}), json!({}));
    terminating["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z".into();
    assert!(converted(&terminating).0.is_some(), "its containers still run");
    let bare = json!({ "metadata": { "name": "web-1", "namespace": "shop" } });
    let bare = converted(&bare).0.unwrap();
    assert_eq!((bare.ips.len(), bare.ports.len(), bare.created, bare.here), (0, 0, 0, None));
}

#[test]
fn which_sandbox_is_the_pods() {
    let hash = "kubernetes.io/config.hash";
    let mirror = "kubernetes.io/config.mirror";
    let cases = [
        (json!(null), None),
        (json!({ "other": "x" }), None),
        (json!({ hash: "h" }), Some("h")),
        (json!({ hash: "h", mirror: "m" }), Some("m")),
        (json!({ mirror: "m" }), Some("m")),
        (json!({ hash: "" }), None),
    ];
    for (annotations, expected) in cases {
        let mut pod = pod(json!({}), json!({}));
        pod["metadata"]["annotations"] = annotations.clone();
        let here = converted(&pod).0.unwrap().here.unwrap();
        assert_eq!(here.config_hash.as_deref(), expected, "{annotations}");
    }
    let elsewhere = pod(json!({ "nodeName": "node-2" }), json!({}));
    assert_eq!(converted(&elsewhere).0.unwrap().here, None);
    let nowhere = pod(json!({ "nodeName": null }), json!({}));
    assert_eq!(converted(&nowhere).0.unwrap().here, None);
}

#[test]
fn addresses() {
    let cases = [
        (json!({ "podIPs": [] }), &["10.1.0.1"][..], 0),
        (json!({ "podIPs": null, "podIP": "10.1.0.9" }), &["10.1.0.9"], 0),
        (json!({ "podIP": "10.1.0.9" }), &["10.1.0.1", "fd00::1"], 0),
        (json!({ "podIPs": [{ "ip": "10.1.0.1" }, { "ip": "10.1.0.1" }] }), &["10.1.0.1"], 0),
        (json!({ "podIPs": [{ "ip": "::ffff:10.1.0.1" }] }), &["10.1.0.1"], 0),
        (
            json!({ "podIPs": [{ "ip": "ten" }, {}, { "ip": "127.0.0.1" }, { "ip": "fd00::1" }] }),
            &["fd00::1"],
            3,
        ),
    ];
    for (status, expected, count) in cases {
        let (found, warnings) = converted(&pod(json!({}), status.clone()));
        let expected: Vec<IpAddr> = expected.iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(*found.unwrap().ips, expected, "{status}");
        assert_eq!(warnings.len(), count, "{status}: {warnings:?}");
    }
}

#[test]
fn named_ports_of_containers_and_sidecars() {
    let container = |ports: Value| json!({ "name": "c", "ports": ports });
    let spec = json!({
        "containers": [
            container(json!([
                { "name": "http", "containerPort": 8080 },
                { "name": "dns", "containerPort": 53, "protocol": "UDP" },
                { "containerPort": 9000 }, { "name": "", "containerPort": 9001 },
            ])),
            container(json!([{ "name": "http", "containerPort": 8080, "protocol": "TCP" }])),
            container(json!(null)),
            container(json!([
                { "name": "zero", "containerPort": 0 }, { "name": "none" },
                { "name": "large", "containerPort": 65536 },
                { "name": "icmp", "containerPort": 1, "protocol": "ICMP" },
            ])),
        ],
        "initContainers": [
            { "restartPolicy": "Always", "ports": [{ "name": "proxy", "containerPort": 15001 }] },
            { "ports": [{ "name": "setup", "containerPort": 1 }] },
        ],
    });
    let (found, warnings) = converted(&pod(spec, json!({})));
    let port = |name: &str, protocol, port: u16| NamedPort {
        name: name.into(),
        protocol,
        port: port.try_into().unwrap(),
    };
    assert_eq!(
        *found.unwrap().ports,
        [
            port("dns", Protocol::Udp, 53),
            port("http", Protocol::Tcp, 8080),
            port("proxy", Protocol::Tcp, 15001)
        ]
    );
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert!(
        warnings[0].starts_with("Pod shop/web-1: container port \"zero\" \"0\": not a port"),
        "{warnings:?}"
    );
}

#[test]
fn hostile_texts() {
    let mut hostile = pod(json!({}), json!({}));
    hostile["metadata"]["labels"] = json!({ "\u{1b}[2J\n": "\"; drop\u{0}", "é": "\\" });
    hostile["metadata"]["creationTimestamp"] = "soon".into();
    let (found, warnings) = converted(&hostile);
    let found = found.unwrap();
    assert_eq!(found.labels.get("\u{1b}[2J\n"), Some("\"; drop\u{0}"), "escapes are decoded");
    assert_eq!((found.created, warnings.len()), (0, 1), "{warnings:?}");
    let unnamed = PodObject::default();
    let error = super::pod(&unnamed, &mut Decoder::new("n".into()), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "Pod without metadata.name");
}
