//! What cannot be understood, or should not be there, with the real agents.

use anyhow::{Result, ensure};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule};
use serde_json::{Value, json};

use super::test_cluster::{TestCluster, x};

/// Rules that permit nothing: each has one mistake, without which it would permit everybody.
fn wrong_rules() -> Vec<Value> {
    let block = |cidr: &str, except: Value| json!({ "from": [{ "ipBlock": { "cidr": cidr, "except": except } }] });
    let requirement = |operator: &str, values: Value| {
        let expression = json!({ "key": "pod", "operator": operator, "values": values });
        json!({ "from": [{ "namespaceSelector": {}, "podSelector": { "matchExpressions": [expression] } }] })
    };
    let port = |port: Value| json!({ "ports": [port] });
    vec![
        requirement("Like", json!(["a"])),
        requirement("In", json!([])),
        requirement("Exists", json!(["a"])),
        json!({ "from": [{}] }),
        json!({ "from": [{ "serviceAccountSelector": {} }] }),
        json!({ "from": [{ "podSelector": {}, "ipBlock": { "cidr": "0.0.0.0/0" } }] }),
        block("0.0.0.0/0", json!(["0.0.0.0/0"])),
        block("::/0", json!(["::/0"])),
        block("10.0.0.0/8", json!(["192.168.0.0/16"])),
        block("10.0.0.0/33", json!([])),
        block("everywhere", json!([])),
        port(json!({ "port": 80, "endPort": 79 })),
        port(json!({ "port": "serve-80-tcp", "endPort": 90 })),
        port(json!({ "port": 0 })),
        port(json!({ "port": 65536 })),
        port(json!({ "protocol": "TPC", "port": 80 })),
        json!({ "form": [] }),
        json!("all"),
    ]
}

fn policy(name: String, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "x", "name": name }, "spec": spec,
    })
}

/// Each isolates what it selects, and permits nothing; the others are enforced as they are. The
/// status counts them.
#[test]
fn wrong_policies_isolate_permit_nothing_and_stop_no_other() -> Result<()> {
    let mut cluster = TestCluster::new("np-wrong")?;
    let a = json!({ "matchLabels": { "pod": "a" } });
    let rules = wrong_rules().into_iter();
    let mut wrong: Vec<_> = rules
        .map(|rule| json!({ "podSelector": a, "policyTypes": ["Ingress"], "ingress": [rule] }))
        .collect();
    wrong.push(json!({ "podSelector": a, "policyTypes": ["Sideways"], "ingress": [{}] }));
    wrong.push(json!({ "podSelector": a, "policyTypes": "Ingress", "ingress": [{}] }));
    let named = wrong.iter().enumerate().map(|(n, spec)| policy(format!("wrong-{n}"), spec));
    let objects: Vec<_> = named.collect();
    cluster.play.nodes.manifests.put("wrong", &objects)?;
    let b = || LabelSelector::label("pod", "b");
    let own = PolicyRule::from([PolicyPeer::pods(LabelSelector::default())]);
    cluster.put([NetworkPolicy::new("x", "right", b()).ingress([own])])?;
    cluster
        .play
        .nodes
        .settled(|_, status| status["networkPolicy"]["notUnderstood"] == objects.len())?;
    for from in ["y/a", "x/b"] {
        cluster.expect(cluster.netns(from), "x/a", false)?;
    }
    cluster.expect(cluster.netns("x/a"), "x/c", false)?;
    cluster.expect(cluster.netns("x/c"), "x/b", true)?;
    cluster.expect(cluster.netns("y/a"), "x/b", false)?;
    cluster.expect(cluster.netns("y/a"), "x/c", true)
}

/// Of ten thousand policies, among them ones with hostile names and for nobody, each is enforced.
#[test]
fn ten_thousand_policies_and_hostile_names_are_only_many() -> Result<()> {
    let mut cluster = TestCluster::new("np-many")?;
    let nobody = json!({ "matchLabels": { "pod": "nobody" } });
    let spec = json!({ "podSelector": nobody, "policyTypes": ["Ingress", "Egress"] });
    let mut objects: Vec<_> =
        (0..10_000).map(|number| policy(format!("policy-{number}"), &spec)).collect();
    let hostile = ["../../etc", "a; drop", "\u{1b}[2J", "\" accept #", "{{ .Name }}", "%s%n"];
    objects.extend(hostile.map(|name| policy(name.to_owned(), &spec)));
    objects.push(policy("n".repeat(253), &spec));
    cluster.play.nodes.manifests.put("many", &objects)?;
    cluster.put([
        x("own").ingress([PolicyRule::from([PolicyPeer::pods(LabelSelector::default())])])
    ])?;
    cluster.expect(cluster.netns("y/a"), "x/a", false)?;
    cluster.expect(cluster.netns("x/b"), "x/a", true)?;
    cluster.expect(cluster.netns("x/a"), "y/a", true)?;
    let status = cluster.play.nodes.hosts[0].agent()?.status()?;
    ensure!(status["networkPolicy"]["policies"] == 1, "{}", status["networkPolicy"]);
    Ok(())
}
