use serde_json::{Value, json};

use super::*;
use denizen_model::{
    Block, Labels, Namespaces, NetworkPolicy as Policy, Operator, PolicyPeer, PolicyPort,
    PortMatch, Protocol, Requirement,
};

fn decoder() -> Decoder {
    Decoder::new("node-1".into())
}

fn converted(spec: Value) -> (Policy, Vec<String>) {
    let metadata = json!({ "name": "p", "namespace": "shop" });
    let raw = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
    let mut warnings = Vec::new();
    let policy = network_policy(&raw, &mut decoder(), &mut warnings).unwrap();
    (policy, warnings.iter().map(Warning::to_string).collect())
}

/// What a policy with this peer permits, and the warnings.
fn peer(peer: &Value) -> (Vec<PolicyPeer>, Vec<String>) {
    let (policy, warnings) = converted(json!({ "ingress": [{ "from": [peer] }] }));
    let Peers::These(peers) = policy.ingress.unwrap().remove(0).peers else {
        panic!("never everybody: {peer}");
    };
    (peers, warnings)
}

fn port(port: &Value) -> (Vec<PolicyPort>, Vec<String>) {
    let (policy, warnings) = converted(json!({ "ingress": [{ "ports": [port] }] }));
    let Ports::These(ports) = policy.ingress.unwrap().remove(0).ports else {
        panic!("never every port: {port}");
    };
    (ports, warnings)
}

fn labelled(selector: &Selector, labels: &[(&'static str, &'static str)]) -> bool {
    selector.selects(&Labels::from_iter(labels.iter().copied()))
}

#[test]
fn directions_by_policy_types() {
    let all = json!([{}]);
    // Expected: the number of rules of each direction; `None` if it stays open.
    let cases = [
        ("no spec", Value::Null, Some(0), None, 0),
        ("empty spec", json!({}), Some(0), None, 0),
        ("empty sections", json!({ "ingress": [], "egress": [] }), Some(0), None, 0),
        ("null sections", json!({ "ingress": null, "egress": null }), Some(0), None, 0),
        ("rules of ingress", json!({ "ingress": all }), Some(1), None, 0),
        ("rules of egress", json!({ "egress": all }), Some(0), Some(1), 0),
        ("egress alone", json!({ "policyTypes": ["Egress"], "ingress": all }), None, Some(0), 0),
        (
            "both",
            json!({ "policyTypes": ["Egress", "Ingress"], "ingress": all, "egress": all }),
            Some(1),
            Some(1),
            0,
        ),
        ("an unknown type", json!({ "policyTypes": ["Up"] , "ingress": all }), Some(0), Some(0), 1),
        (
            "a known and an unknown type",
            json!({ "policyTypes": ["Ingress", 7], "ingress": all, "egress": all }),
            Some(1),
            Some(0),
            1,
        ),
        ("types that are no list", json!({ "policyTypes": "Ingress" }), Some(0), Some(0), 1),
        ("egress that is no list", json!({ "egress": {} }), Some(0), Some(0), 1),
        ("ingress that is no list", json!({ "ingress": "all" }), Some(0), None, 1),
        ("an unknown field", json!({ "ingress": all, "igress": [] }), Some(0), Some(0), 1),
        ("a spec that is no object", json!("all"), Some(0), Some(0), 1),
    ];
    for (name, spec, ingress, egress, count) in cases {
        let (policy, warnings) = converted(spec);
        let rules = |rules: &Option<Vec<PolicyRule>>| rules.as_ref().map(Vec::len);
        assert_eq!((rules(&policy.ingress), rules(&policy.egress)), (ingress, egress), "{name}");
        assert_eq!(policy.pods, Selector::default(), "{name}");
        assert_eq!(warnings.len(), count, "{name}: {warnings:?}");
    }
}

#[test]
fn empty_peers_and_ports_are_all_of_them() {
    let rules = json!([{}, { "from": null, "ports": [] }, { "from": [], "ports": null }]);
    let (policy, warnings) = converted(json!({ "ingress": rules }));
    let rules = policy.ingress.unwrap();
    let shown: Vec<_> = rules.iter().map(|rule| (rule.index, &rule.peers, &rule.ports)).collect();
    assert_eq!(shown, [0, 1, 2].map(|index| (index, &Peers::All, &Ports::All)));
    assert!(warnings.is_empty());
}

#[test]
fn a_wrong_rule_is_left_out_alone() {
    let wrong = [
        json!(null),
        json!("all"),
        json!([]),
        json!({ "from": {} }),
        json!({ "ports": 80 }),
        json!({ "to": [] }),
        json!({ "form": [] }),
    ];
    for rule in wrong {
        let (policy, warnings) = converted(json!({ "ingress": [rule.clone(), {}] }));
        let rules = policy.ingress.unwrap();
        assert_eq!(rules.iter().map(|rule| rule.index).collect::<Vec<_>>(), [1], "{rule}");
        assert_eq!(warnings.len(), 1, "{rule}: {warnings:?}");
        assert!(warnings[0].ends_with(": not understood: the rule is left out"), "{warnings:?}");
    }
}

#[test]
fn pods_of_a_selector() {
    let selector = json!({
        "matchLabels": { "app": "web" },
        "matchExpressions": [
            { "key": "tier", "operator": "In", "values": ["a", "b"] },
            { "key": "example.org/x", "operator": "NotIn", "values": ["", "c"] },
            { "key": "e", "operator": "Exists" },
            { "key": "d", "operator": "DoesNotExist", "values": [] },
        ],
    });
    let (policy, warnings) = converted(json!({ "podSelector": selector }));
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(policy.pods.requirements.len(), 5);
    let all = [("app", "web"), ("tier", "b"), ("e", "")];
    assert!(labelled(&policy.pods, &all));
    for (less, more) in
        [(0, None), (1, None), (2, None), (3, Some(("d", ""))), (3, Some(("example.org/x", "c")))]
    {
        let mut labels: Vec<_> = all.to_vec();
        if less < labels.len() {
            labels.remove(less);
        }
        labels.extend(more);
        assert!(!labelled(&policy.pods, &labels), "{labels:?}");
    }
}

/// Requirements that the API server refuses.
fn wrong_selectors() -> Vec<Value> {
    let expression = |expression: Value| json!({ "matchExpressions": [expression] });
    let long = "x".repeat(64);
    vec![
        json!("app=web"),
        json!([]),
        json!({ "matchLables": {} }),
        json!({ "matchLabels": [] }),
        json!({ "matchLabels": { "app": 1 } }),
        json!({ "matchLabels": { "app": null } }),
        json!({ "matchLabels": { "app": "a b" } }),
        json!({ "matchLabels": { "app": "-a" } }),
        json!({ "matchLabels": { "app": long } }),
        json!({ "matchLabels": { "": "a" } }),
        json!({ "matchLabels": { "/a": "a" } }),
        json!({ "matchLabels": { "A.org/a": "a" } }),
        json!({ "matchLabels": { "a/b/c": "a" } }),
        json!({ "matchLabels": { "a\n{}": "a" } }),
        json!({ "matchExpressions": {} }),
        expression(json!(null)),
        expression(json!({})),
        expression(json!({ "key": "a", "operator": "Gt", "values": ["1"] })),
        expression(json!({ "key": "a", "operator": "exists" })),
        expression(json!({ "key": "a", "operator": "In" })),
        expression(json!({ "key": "a", "operator": "NotIn", "values": [] })),
        expression(json!({ "key": "a", "operator": "In", "values": "b" })),
        expression(json!({ "key": "a", "operator": "NotIn", "values": ["b", "é"] })),
        expression(json!({ "key": "a", "operator": "Exists", "values": ["b"] })),
        expression(json!({ "key": "a", "operator": "Exists", "value": "b" })),
        expression(json!({ "operator": "Exists" })),
    ]
}

#[test]
fn a_peer_with_a_wrong_selector_is_left_out() {
    for selector in wrong_selectors() {
        for field in ["podSelector", "namespaceSelector"] {
            let other = if field == "podSelector" { "namespaceSelector" } else { "podSelector" };
            for written in [json!({ field: selector }), json!({ field: selector, other: {} })] {
                let (peers, warnings) = peer(&written);
                assert_eq!(peers, [], "{written}");
                assert_eq!(warnings.len(), 1, "{written}: {warnings:?}");
                assert!(warnings[0].contains(field), "{warnings:?}");
            }
        }
    }
}

#[test]
fn a_policy_with_a_wrong_selector_selects_more_and_permits_nothing() {
    for selector in wrong_selectors() {
        let mut selector = selector;
        if let Some(object) = selector.as_object_mut() {
            let known = json!({ "key": "known", "operator": "Exists" });
            match object.get_mut("matchExpressions") {
                Some(Value::Array(list)) => list.push(known),
                Some(_) => {}
                None => drop(object.insert("matchExpressions".into(), json!([known]))),
            }
        }
        let (policy, warnings) = converted(json!({ "podSelector": selector, "ingress": [{}] }));
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), None), "{selector}");
        assert_eq!(warnings.len(), 1, "{selector}: {warnings:?}");
        assert!(labelled(&policy.pods, &[("known", "")]), "{selector}");
        let understood = selector.to_string().contains("known");
        assert_eq!(labelled(&policy.pods, &[]), !understood, "{selector}");
    }
}

#[test]
fn peers_by_their_fields() {
    let web = json!({ "matchLabels": { "app": "web" } });
    let is_web = Requirement { key: "app".into(), operator: Operator::In(["web".into()].into()) };
    let selector = Selector { requirements: [is_web].into() };
    let pods = |namespaces, pods| PolicyPeer::Pods { namespaces, pods };
    let any = Selector::default;
    let cases = [
        (json!({ "podSelector": web }), pods(Namespaces::Own, selector.clone())),
        (json!({ "podSelector": {}, "namespaceSelector": null }), pods(Namespaces::Own, any())),
        (json!({ "namespaceSelector": {} }), pods(Namespaces::Selected(any()), any())),
        (
            json!({ "namespaceSelector": web, "podSelector": web }),
            pods(Namespaces::Selected(selector.clone()), selector.clone()),
        ),
    ];
    for (written, expected) in cases {
        assert_eq!(peer(&written), (vec![expected], vec![]), "{written}");
    }
    for written in [
        json!({}),
        json!(null),
        json!("web"),
        json!({ "podSelector": null, "ipBlock": null }),
        json!({ "podSelector": {}, "nodeSelector": {} }),
        json!({ "podSelector": {}, "ipBlock": { "cidr": "10.0.0.0/8" } }),
        json!({ "ipBlock": null, "networks": ["10.0.0.0/8"] }),
    ] {
        let (peers, warnings) = peer(&written);
        assert_eq!((peers.len(), warnings.len()), (0, 1), "{written}: {warnings:?}");
    }
}

#[test]
fn blocks() {
    type BlockCase = (Value, Value, Option<(&'static str, &'static [&'static str])>);
    let cases: [BlockCase; 21] = [
        (json!("10.1.0.0/16"), json!(null), Some(("10.1.0.0/16", &[]))),
        (json!("10.1.2.3/16"), json!([]), Some(("10.1.0.0/16", &[]))),
        (json!("0.0.0.0/0"), json!(["10.0.0.0/8"]), Some(("0.0.0.0/0", &["10.0.0.0/8"]))),
        (json!("::/0"), json!(["fd00::7/8"]), Some(("::/0", &["fd00::/8"]))),
        (json!("10.0.0.1/32"), json!([]), Some(("10.0.0.1/32", &[]))),
        (
            json!("10.0.0.0/8"),
            json!(["10.2.0.0/16", "10.1.9.9/16", "10.2.3.0/16"]),
            Some(("10.0.0.0/8", &["10.1.0.0/16", "10.2.0.0/16"])),
        ),
        (
            json!("::ffff:10.0.0.0/104"),
            json!(["10.1.0.0/16"]),
            Some(("10.0.0.0/8", &["10.1.0.0/16"])),
        ),
        (json!(null), json!(null), None),
        (json!(""), json!(null), None),
        (json!("10.0.0.1"), json!(null), None),
        (json!("10.0.0.0/33"), json!(null), None),
        (json!("everything"), json!(null), None),
        (json!(8), json!(null), None),
        (json!("10.0.0.0/8"), json!(["10.0.0.0/8"]), None),
        (json!("10.0.0.0/8"), json!(["10.9.9.9/8"]), None),
        (json!("10.0.0.0/8"), json!(["0.0.0.0/0"]), None),
        (json!("10.0.0.0/8"), json!(["192.168.0.0/16"]), None),
        (json!("10.0.0.0/8"), json!(["fd00::/64"]), None),
        (json!("0.0.0.0/0"), json!(["10.1.0.0/16", "ten"]), None),
        (json!("0.0.0.0/0"), json!("10.1.0.0/16"), None),
        (json!("0.0.0.0/0"), json!([null]), None),
    ];
    for (cidr, except, expected) in cases {
        let expected = expected.map(|(range, except)| {
            let except = except.iter().map(|except| except.parse().unwrap()).collect();
            PolicyPeer::Block(Block { range: range.parse().unwrap(), except })
        });
        let (peers, warnings) = peer(&json!({ "ipBlock": { "cidr": cidr, "except": except } }));
        assert_eq!(
            warnings.len(),
            usize::from(expected.is_none()),
            "{cidr} {except}: {warnings:?}"
        );
        assert_eq!(peers, Vec::from_iter(expected), "{cidr} {except}");
    }
    assert_eq!(peer(&json!({ "ipBlock": { "cidr": "10.0.0.0/8", "exept": [] } })).0, []);
}

#[test]
fn ports() {
    let range = |first: u16, last: u16| {
        PortMatch::Range(first.try_into().unwrap(), last.try_into().unwrap())
    };
    let (tcp, udp, sctp) = (Protocol::Tcp, Protocol::Udp, Protocol::Sctp);
    let cases = [
        (json!({}), Some((tcp, PortMatch::Any))),
        (json!({ "protocol": "UDP" }), Some((udp, PortMatch::Any))),
        (json!({ "protocol": null, "port": 80 }), Some((tcp, range(80, 80)))),
        (json!({ "protocol": "SCTP", "port": 65535 }), Some((sctp, range(65535, 65535)))),
        (json!({ "port": 80, "endPort": 90 }), Some((tcp, range(80, 90)))),
        (json!({ "port": 80, "endPort": 80 }), Some((tcp, range(80, 80)))),
        (
            json!({ "port": "dns-tcp", "protocol": "UDP" }),
            Some((udp, PortMatch::Named("dns-tcp".into()))),
        ),
        (json!(null), None),
        (json!(80), None),
        (json!({ "port": 0 }), None),
        (json!({ "port": -1 }), None),
        (json!({ "port": 65536 }), None),
        (json!({ "port": 80.5 }), None),
        (json!({ "port": "80" }), None),
        (json!({ "port": "" }), None),
        (json!({ "port": "HTTP" }), None),
        (json!({ "port": "a--b" }), None),
        (json!({ "port": "-a" }), None),
        (json!({ "port": "sixteen-letters-" }), None),
        (json!({ "port": [80] }), None),
        (json!({ "protocol": "ICMP" }), None),
        (json!({ "protocol": "tcp" }), None),
        (json!({ "protocol": "" }), None),
        (json!({ "protocol": 6 }), None),
        (json!({ "port": 80, "endPort": 79 }), None),
        (json!({ "port": 80, "endPort": 65536 }), None),
        (json!({ "port": 80, "endPort": "90" }), None),
        (json!({ "port": "web", "endPort": 90 }), None),
        (json!({ "endPort": 90 }), None),
        (json!({ "port": 80, "endport": 90 }), None),
    ];
    for (written, expected) in cases {
        let (ports, warnings) = port(&written);
        assert_eq!(warnings.len(), usize::from(expected.is_none()), "{written}: {warnings:?}");
        let expected = expected.map(|(protocol, port)| PolicyPort { protocol, port });
        assert_eq!(ports, Vec::from_iter(expected), "{written}");
    }
}

#[test]
fn a_warning_says_where_what_and_the_consequence() {
    let peer = json!({ "podSelector": {}, "x\u{1b}[2J": "y".repeat(5000) });
    let (_, warnings) =
        converted(json!({ "egress": [{}, { "to": [{ "podSelector": {} }, peer] }] }));
    assert_eq!(
        warnings,
        [format!(
            "NetworkPolicy shop/p: spec.egress[1].to[1].x\u{1b}[2J \"{}…\": not understood: the peer \
             is left out",
            "y".repeat(100)
        )]
    );
}

#[test]
fn metadata_alone_suffices() {
    let read = |json: &str| serde_json::from_str::<NetworkPolicyObject>(json).unwrap();
    let raw = read(
        r#"{"metadata":{"name":"p","labels":7,"ownerReferences":"x"},"spec":{"ingress":[7]}}"#,
    );
    let policy = network_policy(&raw, &mut decoder(), &mut Vec::new()).unwrap();
    assert_eq!((policy.name.to_string(), policy.ingress), ("default/p".to_owned(), Some(vec![])));
    let error = network_policy(&read("{}"), &mut decoder(), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "NetworkPolicy without metadata.name");
}
