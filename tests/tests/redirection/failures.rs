//! What an ADD that fails leaves: no table and no record.

use denizen_tests::peers::sidecar::{CLIENT_UID, fetch, serve};
use serde_json::{Value, json};

use super::context::{Mesh, nft};

fn message(refusal: &Value) -> &str {
    refusal["msg"].as_str().unwrap()
}

fn nothing_is_left(mesh: &Mesh, name: &str) {
    assert!(!mesh.has_table(), "{name}");
    let recorded = mesh.base.run_dir().exists() && !mesh.base.records().is_empty();
    assert!(!recorded, "{name}");
}

#[test]
fn what_cannot_be_read_fails_the_add() {
    let linkerd = json!({ "profile": "linkerd" });
    let annotation = "config.linkerd.io/skip-outbound-ports";
    let refusal = Mesh::bridged(&linkerd, &[(annotation, "443,http")]);
    let cases = [
        (
            "annotation",
            refusal,
            7,
            "pod default/web-0: annotation config.linkerd.io/skip-outbound-ports: \"http\" is",
        ),
        (
            "entry",
            Mesh::bridged(&json!({ "profile": "linkerd", "proxyUid": 0 }), &[]),
            2,
            "unsupported field \"redirect.proxyUid\": 0 (0 is root",
        ),
    ];
    for (name, mesh, code, begin) in cases {
        let refusal = mesh.add().unwrap_err();
        assert!(message(&refusal).starts_with(begin), "{name}: {refusal}");
        assert_eq!(refusal["code"], code, "{name}");
        nothing_is_left(&mesh, name);
    }
    for (runtime, why) in [
        (json!({}), "the runtime passes no annotations of pods"),
        (json!({ "io.kubernetes.cri.pod-annotations": [] }), "is malformed"),
        (json!({ "io.kubernetes.cri.pod-annotations": { "a": 1 } }), "is malformed"),
    ] {
        let mut mesh = Mesh::bridged(&linkerd, &[]);
        mesh.chain.plugins[1]["runtimeConfig"] = runtime;
        let refusal = mesh.add().unwrap_err();
        assert!(message(&refusal).contains(why), "{refusal}");
        assert_eq!(refusal["code"], 7);
        nothing_is_left(&mesh, why);
    }
}

/// Somebody's rule in the pod keeps connections from the proxy.
const AGAINST: &str = "table inet other { chain output { \
    type filter hook output priority 0; tcp dport 4140 reject with tcp reset; }; }";

/// Somebody's rule redirects them before.
const BEFORE: &str = "table inet other { chain output { \
    type nat hook output priority -150; meta l4proto tcp oifname eth0 redirect to :9999; }; }";

#[test]
fn a_connection_that_does_not_arrive_fails_the_add() {
    for rules in [AGAINST, BEFORE] {
        let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
        nft(&mesh.base.pod, &[rules]).unwrap();
        let refusal = mesh.add().unwrap_err();
        let text = message(&refusal);
        assert!(text.contains("a connection to 10.85.0.1:1 did not arrive"), "{text}");
        assert_eq!(refusal["code"], 11);
        nothing_is_left(&mesh, rules);
    }
}

#[test]
fn the_operator_may_prefer_a_pod_without() {
    let redirect = json!({ "profile": "linkerd", "onError": "proceed" });
    let mesh = Mesh::bridged(&redirect, &[]);
    nft(&mesh.base.pod, &[AGAINST]).unwrap();
    mesh.add().unwrap();
    assert!(!mesh.has_table() && mesh.record().redirect.is_none());
    serve(&mesh.base.node, 8080);
    let output = fetch(&mesh.base.pod, CLIENT_UID, "10.85.0.1:8080".parse().unwrap());
    assert_eq!(output.as_deref(), Some("8080"));
}

#[test]
fn nothing_need_be_tried() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd", "verify": "none" }), &[]);
    nft(&mesh.base.pod, &[AGAINST]).unwrap();
    mesh.add().unwrap();
    assert!(mesh.has_table() && mesh.counts().is_empty());
}

/// The kernel takes no chain of another hook in place of one that is there.
#[test]
fn what_the_kernel_refuses_is_said() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    let foreign =
        "table inet denizen-redirect { chain outbound { type filter hook input priority 0; }; }";
    nft(&mesh.base.pod, &[foreign]).unwrap();
    let refusal = mesh.add().unwrap_err();
    let text = refusal.to_string();
    assert!(text.contains("cannot program denizen-redirect"), "{text}");
    assert!(text.contains("the kernel refused chain outbound"), "{text}");
    let table = nft(&mesh.base.pod, &["list", "table", "inet", "denizen-redirect"]).unwrap();
    assert!(!table.contains("chain inbound"), "it is as it was: {table}");
}

/// A redirected pod that is not recorded would be one that nobody knows of.
#[test]
fn without_the_agent_s_word_nothing_is_redirected_either() {
    let mut mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    mesh.chain.plugins[1]["waitForAgent"] = json!({ "timeout": "50ms", "onTimeout": "fail" });
    let refusal = mesh.add().unwrap_err();
    assert_eq!(refusal["code"], 11);
    nothing_is_left(&mesh, "waitForAgent");
}

/// What a repeated ADD cannot do leaves the rules and the record of the first one.
#[test]
fn a_repeated_add_that_fails_leaves_what_was_there() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    let result = mesh.add().unwrap();
    let list =
        || nft(&mesh.base.pod, &["-s", "list", "table", "inet", "denizen-redirect"]).unwrap();
    let (rules, record) = (list(), mesh.record().redirect);
    let against = "table inet other { chain output { \
                   type filter hook output priority 0; tcp dport 5140 reject with tcp reset; }; }";
    nft(&mesh.base.pod, &[against]).unwrap();
    let mut unverified = mesh.chain.plugins[1].clone();
    unverified["redirect"]["outboundPort"] = 5140.into();
    let mut alone = unverified.clone();
    alone["redirect"]["verify"] = "none".into();
    alone["waitForAgent"] = json!({ "timeout": "50ms", "onTimeout": "fail" });
    let mut proceeding = unverified.clone();
    proceeding["redirect"]["onError"] = "proceed".into();
    let mut deselected = mesh.chain.plugins[1].clone();
    deselected["redirect"]["namespaces"] = json!({ "default": null });
    deselected["waitForAgent"] = alone["waitForAgent"].clone();
    for (name, ours, fails) in [
        ("verify", unverified, true),
        ("wait", alone, true),
        ("deselected", deselected, true),
        ("proceed", proceeding, false),
    ] {
        let added = mesh.chain.call(&mesh.base.node, &mesh.call, "ADD", &ours, Some(&result));
        assert_eq!(added.is_err(), fails, "{name}");
        assert_eq!(list(), rules, "{name}");
        assert_eq!(mesh.record().redirect, record, "{name}");
        mesh.ours("CHECK", &result).expect(name);
    }
}
