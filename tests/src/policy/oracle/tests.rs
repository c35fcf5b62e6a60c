use serde_json::{Value, json};

use super::*;
use crate::policy::object::{NamespaceObject, NodeObject};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const OTHER: &str = "10.0.1.1";
const NODE: &str = "192.168.0.1";
const OTHER_NODE: &str = "192.168.0.2";
const OUTSIDE: &str = "203.0.113.9";

/// Pods `a` and `b` in namespace `x`, pod `a` in namespace `y`, and whatever a test adds.
fn world(more: Vec<Value>, policies: Vec<Value>) -> PolicyWorld {
    let node = |name: &str, address: &str| NodeObject {
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        ..NodeObject::default()
    };
    let pods = [pod("x", "a", A, "n1"), pod("x", "b", B, "n1"), pod("y", "a", OTHER, "n2")];
    let namespaces = ["x", "y"].map(|name| {
        let value = json!({ "metadata": { "name": name, "labels": { "team": name } } });
        serde_json::from_value::<NamespaceObject>(value).unwrap()
    });
    let parsed = |value: Value| serde_json::from_value(value).unwrap();
    PolicyWorld {
        nodes: vec![node("n1", NODE), node("n2", OTHER_NODE)],
        namespaces: namespaces.to_vec(),
        pods: pods.into_iter().chain(more).map(parsed).collect(),
        policies: policies
            .into_iter()
            .map(|value| serde_json::from_value(value).unwrap())
            .collect(),
        tiers: Vec::new(),
    }
}

fn pod(namespace: &str, name: &str, address: &str, node: &str) -> Value {
    let port = |name: &str, protocol: &str, number: u16| json!({ "name": name, "protocol": protocol, "containerPort": number });
    json!({
        "metadata": { "namespace": namespace, "name": name, "labels": { "pod": name } },
        "spec": { "nodeName": node, "containers": [
            { "name": "c", "ports": [port("web", "TCP", 80), port("dns", "UDP", 53)] },
        ] },
        "status": { "phase": "Running", "podIPs": [{ "ip": address }] },
    })
}

/// A policy of namespace `x` for its pod `a`.
fn policy(spec: Value) -> Value {
    let mut policy = json!({
        "metadata": { "namespace": "x", "name": "p" },
        "spec": { "podSelector": { "matchLabels": { "pod": "a" } } },
    });
    for (key, value) in spec.as_object().unwrap() {
        policy["spec"][key] = value.clone();
    }
    policy
}

fn tcp(world: &PolicyWorld, from: &str, to: &str, port: u16) -> bool {
    packet(world, from, to, Transport::Port(Protocol::Tcp, port))
}

fn packet(world: &PolicyWorld, from: &str, to: &str, transport: Transport) -> bool {
    allowed(world, PolicyPacket { from: from.parse().unwrap(), to: to.parse().unwrap(), transport })
}

/// Which of the others reach pod `x/a` at TCP 80, and which of them it reaches.
fn reach(policies: Vec<Value>) -> (Vec<&'static str>, Vec<&'static str>) {
    let world = world(vec![], policies);
    let others = || [B, OTHER, OUTSIDE].into_iter();
    (
        others().filter(|from| tcp(&world, from, A, 80)).collect(),
        others().filter(|to| tcp(&world, A, to, 80)).collect(),
    )
}

fn from(peers: Value) -> Vec<&'static str> {
    reach(vec![policy(json!({ "ingress": [{ "from": peers }] }))]).0
}

#[test]
fn directions_and_their_defaults() {
    let all = vec![B, OTHER, OUTSIDE];
    let none = Vec::new;
    let cases = [
        (json!({}), none(), all.clone()),
        (json!({ "ingress": [] }), none(), all.clone()),
        (json!({ "ingress": [{}] }), all.clone(), all.clone()),
        // The API server counts an egress section as egress only if it has rules.
        (json!({ "egress": [] }), none(), all.clone()),
        (json!({ "egress": [{}] }), none(), all.clone()),
        (json!({ "egress": [{ "to": [{ "podSelector": {} }] }] }), none(), vec![B]),
        (json!({ "policyTypes": [], "ingress": [{}] }), all.clone(), all.clone()),
        (json!({ "policyTypes": ["Egress"] }), all.clone(), none()),
        (json!({ "policyTypes": ["Egress"], "ingress": [] }), all.clone(), none()),
        (json!({ "policyTypes": ["Ingress"], "egress": [] }), none(), all.clone()),
        (json!({ "policyTypes": ["Ingress", "Egress"] }), none(), none()),
        (json!({ "policyTypes": ["Outgress"], "egress": [{}] }), none(), none()),
        (json!({ "policyTypes": ["Outgress", "Egress"], "egress": [{}] }), none(), all.clone()),
    ];
    for (spec, ingress, egress) in cases {
        assert_eq!(reach(vec![policy(spec.clone())]), (ingress, egress), "{spec}");
    }
}

#[test]
fn peers_by_selectors_and_blocks() {
    let both = |pods: Value, namespaces: Value| json!([{ "podSelector": pods, "namespaceSelector": namespaces }]);
    let team = |operator: &str, values: Value| json!({ "matchExpressions": [{ "key": "team", "operator": operator, "values": values }] });
    let block =
        |cidr: &str, except: Value| json!([{ "ipBlock": { "cidr": cidr, "except": except } }]);
    let cases = [
        (json!([]), vec![B, OTHER, OUTSIDE]),
        (json!([{}]), vec![]),
        (json!([{ "podSelector": {} }]), vec![B]),
        (json!([{ "podSelector": { "matchLabels": { "pod": "a" } } }]), vec![]),
        (json!([{ "namespaceSelector": {} }]), vec![B, OTHER]),
        (
            json!([{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "y" } } }]),
            vec![OTHER],
        ),
        (json!([{ "namespaceSelector": team("NotIn", json!(["x"])) }]), vec![OTHER]),
        (json!([{ "namespaceSelector": team("In", json!(["x", "z"])) }]), vec![B]),
        (json!([{ "namespaceSelector": team("DoesNotExist", json!([])) }]), vec![]),
        (json!([{ "namespaceSelector": team("Exists", json!([])) }]), vec![B, OTHER]),
        (both(json!({ "matchLabels": { "pod": "a" } }), json!({})), vec![OTHER]),
        (both(json!({}), json!({ "matchLabels": { "team": "x" } })), vec![B]),
        (block("10.0.0.0/16", json!([])), vec![B, OTHER]),
        (block("10.0.99.99/16", json!(["10.0.1.0/24"])), vec![B]),
        (block("0.0.0.0/0", json!(["10.0.0.0/8"])), vec![OUTSIDE]),
        (block("::/0", json!([])), vec![]),
        (block("10.0.0.0/16", json!(["10.0.0.0/16"])), vec![]),
        (block("10.0.0.2/32", json!([])), vec![B]),
    ];
    for (peers, expected) in cases {
        assert_eq!(from(peers.clone()), expected, "{peers}");
    }
}

#[test]
fn what_cannot_be_understood_permits_nothing_and_spares_nothing_else() {
    let odd = |operator: &str, values: Value| json!({ "podSelector": { "matchExpressions": [{ "key": "pod", "operator": operator, "values": values }] } });
    let wrong = [
        odd("Like", json!(["b"])),
        odd("In", json!([])),
        odd("NotIn", json!([])),
        odd("Exists", json!(["b"])),
        json!({ "podSelector": {}, "ipBlock": { "cidr": "0.0.0.0/0" } }),
        json!({ "ipBlock": { "cidr": "10.0.0.2" } }),
        json!({ "ipBlock": { "cidr": "10.0.0.0/33" } }),
        json!({ "ipBlock": { "cidr": "10.0.0.0/16", "except": ["10.0.0.0/8"] } }),
        json!({ "ipBlock": { "cidr": "10.0.0.0/16", "except": ["fd00::/8"] } }),
        json!({ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["nonsense"] } }),
    ];
    for peer in wrong {
        assert_eq!(from(json!([peer])), Vec::<&str>::new(), "{peer}");
        let outside = json!({ "ipBlock": { "cidr": "203.0.113.0/24" } });
        assert_eq!(from(json!([peer, outside])), [OUTSIDE], "{peer}");
    }
    let ports = [
        json!({ "protocol": "IGMP" }),
        json!({ "port": 0 }),
        json!({ "port": 65536 }),
        json!({ "port": 80, "endPort": 79 }),
        json!({ "port": 80, "endPort": 70000 }),
        json!({ "endPort": 90 }),
        json!({ "port": "web", "endPort": 90 }),
    ];
    for port in ports {
        let (reached, _) = reach(vec![policy(json!({ "ingress": [{ "ports": [port] }] }))]);
        assert_eq!(reached, Vec::<&str>::new(), "{port}");
    }
    let requirement = json!({ "key": "pod", "operator": "Like", "values": ["a"] });
    let spec = json!({ "podSelector": { "matchExpressions": [requirement] }, "ingress": [{}] });
    assert_eq!(reach(vec![policy(spec)]).0, Vec::<&str>::new(), "it selects all pods");
}

#[test]
fn policies_add_up_and_both_ends_must_agree() {
    let ingress = |port: u16| json!({ "policyTypes": ["Ingress"], "ingress": [{ "ports": [{ "port": port }] }] });
    let world_with = |policies| world(vec![], policies);
    let both = world_with(vec![policy(ingress(80)), policy(ingress(81))]);
    assert!(tcp(&both, B, A, 80) && tcp(&both, B, A, 81) && !tcp(&both, B, A, 82));
    let mut sender = policy(json!({ "policyTypes": ["Egress"] }));
    sender["spec"]["podSelector"] = json!({ "matchLabels": { "pod": "b" } });
    let denied = world_with(vec![policy(ingress(80)), sender]);
    assert!(!tcp(&denied, B, A, 80), "what the receiver permits, the sender forbids");
    assert!(tcp(&denied, OTHER, A, 80), "another namespace's pod of that label");
}

#[test]
fn ports_by_number_name_and_range() {
    let at = |port: Value| world(vec![], vec![policy(json!({ "ingress": [{ "ports": [port] }] }))]);
    let reached = |port: Value| {
        let world = at(port);
        let tcp = [53, 80, 81].map(|port| Transport::Port(Protocol::Tcp, port));
        let udp = [53, 80].map(|port| Transport::Port(Protocol::Udp, port));
        let all = tcp.into_iter().chain(udp).chain([Transport::Other]);
        all.map(|transport| packet(&world, B, A, transport)).collect::<Vec<_>>()
    };
    let cases = [
        (json!({}), [true, true, true, false, false, false]),
        (json!({ "protocol": "UDP" }), [false, false, false, true, true, false]),
        (json!({ "port": 80 }), [false, true, false, false, false, false]),
        (json!({ "port": 80, "endPort": 81 }), [false, true, true, false, false, false]),
        (json!({ "port": 54, "endPort": 80 }), [false, true, false, false, false, false]),
        (json!({ "port": "web" }), [false, true, false, false, false, false]),
        (json!({ "port": "dns" }), [false; 6]),
        (json!({ "port": "dns", "protocol": "UDP" }), [false, false, false, true, false, false]),
        (json!({ "port": "80" }), [false; 6]),
    ];
    for (port, expected) in cases {
        assert_eq!(reached(port.clone()), expected, "{port}");
    }
}

#[test]
fn named_ports_are_the_destinations_sidecars_included() {
    let mut c = pod("x", "c", "10.0.0.3", "n1");
    let extra = |restart: Value| json!({ "name": "i", "restartPolicy": restart, "ports": [{ "name": "extra", "containerPort": 90 }] });
    let egress =
        json!({ "policyTypes": ["Egress"], "egress": [{ "ports": [{ "port": "extra" }] }] });
    for (restart, expected) in [(json!("Always"), true), (Value::Null, false)] {
        c["spec"]["initContainers"] = json!([extra(restart)]);
        let world = world(vec![c.clone()], vec![policy(egress.clone())]);
        assert_eq!(tcp(&world, A, "10.0.0.3", 90), expected);
        assert!(!tcp(&world, A, B, 90), "which has no such port");
        assert!(!tcp(&world, A, OUTSIDE, 90), "which has no ports that anybody knows");
    }
}

#[test]
fn a_pod_itself_its_node_and_others() {
    let world = world(vec![], vec![policy(json!({ "policyTypes": ["Ingress", "Egress"] }))]);
    assert!(tcp(&world, A, A, 80), "a pod cannot block access to itself");
    assert!(tcp(&world, NODE, A, 80), "its node always reaches it");
    assert!(!tcp(&world, OTHER_NODE, A, 80), "another node is like any other address");
    assert!(!tcp(&world, A, NODE, 80), "towards its node its egress policy holds");
    assert!(!packet(&world, B, A, Transport::Other));
}

#[test]
fn whose_address_it_is() {
    let from_x = || policy(json!({ "ingress": [{ "from": [{ "podSelector": {} }] }] }));
    let mut done = pod("x", "done", "10.0.0.9", "n1");
    done["status"]["phase"] = "Succeeded".into();
    let mut host = pod("x", "host", OTHER_NODE, "n2");
    host["spec"]["hostNetwork"] = true.into();
    let mut terminating = pod("x", "end", "10.0.0.8", "n1");
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let world_of = |pods| world(pods, vec![from_x()]);
    let world = world_of(vec![done.clone(), host, terminating]);
    assert!(!tcp(&world, "10.0.0.9", A, 80), "a pod that has ended has no address");
    assert!(tcp(&world, "10.0.0.8", A, 80), "one that is about to end has");
    assert!(!tcp(&world, OTHER_NODE, A, 80), "a pod of the host's network is its node");
    let mut old = pod("x", "old", "10.0.0.7", "n2");
    let mut new = pod("y", "new", "10.0.0.7", "n2");
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    new["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    assert!(tcp(&world_of(vec![old.clone()]), "10.0.0.7", A, 80));
    assert!(!tcp(&world_of(vec![new, old]), "10.0.0.7", A, 80), "the younger pod's");
}
