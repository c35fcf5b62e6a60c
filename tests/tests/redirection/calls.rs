//! Which pods are entered, what is recorded, and what a repeated ADD does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use denizen_tests::node::cni::{Call, Namespace};
use denizen_tests::peers::sidecar::{CLIENT_UID, Sidecar, fetch, serve};
use denizen_tests::test_length::times;
use serde_json::{Value, json};

use super::context::{Mesh, injected, nft, run};

fn linkerd() -> Value {
    json!({ "profile": "linkerd" })
}

#[test]
fn what_is_programmed_is_recorded_with_the_annotation_that_says_so() {
    let skip = ("config.linkerd.io/skip-outbound-ports", "443, 8080");
    let mesh = Mesh::bridged(&linkerd(), &[skip]);
    mesh.add().unwrap();
    let recorded = serde_json::to_value(mesh.record().redirect).unwrap();
    let expected = json!({
        "profile": "linkerd", "inboundPort": 4143, "outboundPort": 4140, "proxyUid": 2102,
        "alwaysSkipInboundPorts": ["4190", "4191"], "skipInboundPorts": ["4567-4568"],
        "skipOutboundPorts": ["443", "8080"], "interfaces": ["eth0"],
        "annotations": { "skipOutboundPorts": skip.0 },
    });
    assert_eq!(recorded, expected);
    let table = nft(&mesh.base.pod, &["list", "table", "inet", "denizen-redirect"]).unwrap();
    for comment in ["ignore-port-443\"", "ignore-port-8080\"", "ignore-proxy-user-id\""] {
        assert!(table.contains(&format!("comment \"proxy-init/{comment}")), "{table}");
    }
    mesh.chain.del(&mesh.base.node, &mesh.call, None).unwrap();
    assert!(mesh.base.records().is_empty());
}

#[test]
fn pods_that_are_not_selected_are_left_alone() {
    let annotations = |all: Value| json!({ "io.kubernetes.cri.pod-annotations": all });
    let disabled = ("denizen.io/redirect", "disabled");
    let cases = [
        ("no annotations, as Go writes it", linkerd(), annotations(Value::Null)),
        ("no annotations", linkerd(), annotations(json!({}))),
        ("not wanted", linkerd(), injected(&[disabled])),
        (
            "a namespace that is never",
            json!({ "profile": "linkerd", "namespaces": { "default": null } }),
            injected(&[]),
        ),
        (
            "no annotations passed",
            json!({ "profile": "linkerd", "withoutAnnotations": "proceed" }),
            json!({}),
        ),
    ];
    for (name, redirect, runtime) in cases {
        let mut mesh = Mesh::bridged(&redirect, &[]);
        mesh.chain.plugins[1]["runtimeConfig"] = runtime;
        mesh.add().expect(name);
        assert!(!mesh.has_table() && mesh.record().redirect.is_none(), "{name}");
    }
    let mut mesh = Mesh::bridged(&linkerd(), &[]);
    mesh.call.args = "IgnoreUnknown=1".to_owned();
    mesh.add().unwrap();
    assert!(!mesh.has_table(), "what is no pod of Kubernetes is not redirected");
}

#[test]
fn a_repeated_add_has_the_same_rules_and_counts_anew() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let result = mesh.add().unwrap();
    let list = || nft(&mesh.base.pod, &["-s", "list", "table", "inet", "denizen-redirect"]);
    let before = list().unwrap();
    serve(&mesh.base.pod, 8080);
    fetch(&mesh.base.pod, CLIENT_UID, "127.0.0.1:8080".parse().unwrap()).unwrap();
    assert_eq!(mesh.counts()["outbound proxy-init/ignore-loopback"], 1);
    let mut again = mesh.chain.clone();
    again.plugins[1]["redirect"]["verify"] = "none".into();
    again.call(&mesh.base.node, &mesh.call, "ADD", &again.plugins[1], Some(&result)).unwrap();
    assert!(mesh.counts().is_empty());
    assert_eq!(list().unwrap(), before);
}

/// A connection that met no rules, or half of them, would go past the proxy.
#[test]
fn while_an_add_is_repeated_nothing_goes_past_the_proxy() {
    let mut mesh = Mesh::bridged(&linkerd(), &[]);
    mesh.chain.plugins[1]["redirect"]["verify"] = "none".into();
    let result = mesh.add().unwrap();
    let sidecar = Sidecar::run(&mesh.base.pod, &[4140]);
    serve(&mesh.base.node, 8080);
    let done = Arc::new(AtomicBool::new(false));
    let (until, to) = (done.clone(), "10.85.0.1:8080".parse().unwrap());
    let Call { netns, .. } = mesh.call.clone();
    assert_eq!(netns.as_deref(), Some(mesh.base.pod.path()));
    std::thread::scope(|scope| {
        let pod: &Namespace = &mesh.base.pod;
        let client = scope.spawn(move || {
            let mut connections = 0;
            while !until.load(Ordering::Relaxed) {
                fetch(pod, CLIENT_UID, to).expect("the server says its port");
                connections += 1;
            }
            connections
        });
        let repeated: Result<Vec<_>, _> =
            (0..times(1000, 100)).map(|_| mesh.ours("ADD", &result)).collect();
        // Before anything can fail here, or the client would go on for ever.
        done.store(true, Ordering::Relaxed);
        repeated.unwrap();
        let connections = client.join().unwrap();
        assert!(connections > 0);
        assert_eq!(sidecar.taken().len(), connections);
    });
}

/// Some runtimes call the plugin `loopback` at the same time.
#[test]
fn the_loopback_may_come_up_later() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let result = mesh.chain.clone().without_denizen().add(&mesh.base.node, &mesh.call).unwrap();
    mesh.base.pod.ip("link set lo down");
    std::thread::scope(|scope| {
        let added = scope.spawn(|| mesh.ours("ADD", &result));
        std::thread::sleep(std::time::Duration::from_millis(300));
        mesh.base.pod.ip("link set lo up");
        added.join().unwrap().unwrap();
    });
    assert_eq!(
        mesh.counts()["outbound proxy-init/redirect-all-outgoing-to-proxy-port"],
        2,
        "it was tried in both versions of IP"
    );
}

/// A repeated ADD that wants less, or the same by other means.
#[test]
fn a_repeated_add_removes_what_is_no_longer_wanted() {
    let iptables = json!({ "profile": "linkerd", "backend": "iptables" });
    let only_ipv4 = json!({ "profile": "linkerd", "backend": "iptables", "ipv6": "bypass" });
    let cases = [
        ("no redirection by nftables", linkerd(), Value::Null, [false, false, false]),
        ("none by iptables", iptables.clone(), Value::Null, [false, false, false]),
        ("another backend", linkerd(), iptables.clone(), [false, true, true]),
        ("and back", iptables.clone(), linkerd(), [true, false, false]),
        ("one version of IP", iptables.clone(), only_ipv4.clone(), [false, true, false]),
        ("both", only_ipv4, iptables, [false, true, true]),
        ("the same", linkerd(), linkerd(), [true, false, false]),
    ];
    for (name, first, second, expected) in cases {
        let mut mesh = Mesh::bridged(&first, &[]);
        let result = mesh.add().unwrap();
        mesh.redirect_as(&second);
        mesh.ours("ADD", &result).expect(name);
        let pod = &mesh.base.pod;
        let has =
            ["iptables-save", "ip6tables-save"].map(|program| has_linkerd_s_rules(pod, program));
        assert_eq!([mesh.has_table(), has[0], has[1]], expected, "{name}");
        assert_eq!(mesh.record().redirect.is_some(), expected.contains(&true), "{name}");
        mesh.ours("CHECK", &result).expect(name);
    }
}

/// Whether anything of linkerd-init's is among what `program` lists in `pod`.
fn has_linkerd_s_rules(pod: &Namespace, program: &str) -> bool {
    run(pod, program, &["-t", "nat"]).to_lowercase().contains("proxy")
}
