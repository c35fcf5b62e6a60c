use serde_json::json;

use super::*;

fn read(spec: Value) -> (Option<denizen_model::ClusterNetworkPolicy>, Vec<String>) {
    let raw = json!({ "metadata": { "name": "p" }, "spec": spec });
    let raw = ClusterNetworkPolicy::deserialize(&raw).expect("the shape is right");
    let mut warnings = Vec::new();
    let (name, policy) = cluster_network_policy(&raw, &mut warnings).expect("it has a name");
    assert_eq!(&*name, "p");
    (policy, warnings.iter().map(ToString::to_string).collect())
}

fn with(section: &str, rule: Value) -> Value {
    let mut spec = json!({ "tier": "Admin", "priority": 0, "subject": { "namespaces": {} } });
    spec[section] = json!([rule]);
    spec
}

#[test]
fn every_standard_field_is_understood() {
    let (policy, warnings) = read(json!({
        "tier": "Baseline", "priority": 1000,
        "subject": { "pods": { "podSelector": { "matchLabels": { "app": "a" } } } },
        "ingress": [{ "name": "n", "action": "Deny", "from": [{ "namespaces": {} }] }],
        "egress": [{
            "action": "Pass",
            "to": [{ "networks": ["10.1.2.3/8", "fd00::/8"] }, { "nodes": {} }],
            "protocols": [
                { "tcp": { "destinationPort": { "number": 80 } } },
                { "udp": { "destinationPort": { "range": { "start": 1, "end": 65535 } } } },
            ],
        }, {
            "action": "Accept",
            "to": [{ "pods": { "namespaceSelector": {}, "podSelector": {} } }],
            "protocols": [{ "destinationNamedPort": "8080" }],
        }],
    }));
    let policy = policy.expect("all of it is understood");
    assert_eq!(warnings, Vec::<String>::new());
    assert!(policy.is_understood);
    assert_eq!(policy.order(), (Tier::Baseline, 1000, "p"));
    assert_eq!(&*policy.ingress[0].name, "n");
    let TierPeers::These(peers) = &policy.egress[0].peers else { panic!("{policy:?}") };
    assert_eq!(peers[0], TierPeer::Network("10.0.0.0/8".parse().expect("a range")));
    assert_eq!(peers.len(), 3);
    let named = TierPorts::These(vec![TierPort::Named("8080".into())]);
    assert_eq!(policy.egress[1].ports, named);
}

#[test]
fn a_policy_whose_subject_or_tier_is_not_understood_is_skipped_and_named() {
    let cases = [
        json!({ "tier": "Other", "priority": 1, "subject": { "namespaces": {} } }),
        json!({ "tier": "Admin", "priority": 1001, "subject": { "namespaces": {} } }),
        json!({ "tier": "Admin", "priority": -1, "subject": { "namespaces": {} } }),
        json!({ "tier": "Admin", "subject": { "namespaces": {} } }),
        json!({ "tier": "Admin", "priority": 1 }),
        json!({ "tier": "Admin", "priority": 1, "subject": {} }),
        json!({ "tier": "Admin", "priority": 1, "subject": { "nodes": {} } }),
        json!({ "tier": "Admin", "priority": 1, "subject": { "pods": {} } }),
        json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {
            "matchExpressions": [{ "key": "a", "operator": "Like", "values": ["b"] }] } } }),
        Value::Null,
    ];
    for spec in cases {
        let (policy, warnings) = read(spec.clone());
        assert_eq!(policy, None, "{spec}");
        assert!(!warnings.is_empty(), "{spec}");
    }
}

/// The API's text: Accept matches nothing, Deny and Pass deny everything.
#[test]
fn what_is_not_understood_in_a_rule_fails_closed() {
    let port = |port: Value| json!({ "to": [{ "namespaces": {} }], "protocols": [port] });
    let named = json!([{ "destinationNamedPort": "web" }]);
    let wrong = [
        json!({ "to": [{}] }),
        json!({ "to": [{ "services": {} }] }),
        json!({ "to": [{ "namespaces": {} }, { "services": {} }] }),
        json!({ "to": [{ "namespaces": {}, "sameLabels": [] }] }),
        json!({ "to": [{ "namespaces": {}, "pods": { "podSelector": {} } }] }),
        json!({ "to": [{ "domainNames": ["kubernetes.io"] }] }),
        json!({ "to": [{ "networks": ["10.0.0.0"] }] }),
        json!({ "to": [{ "networks": [] }] }),
        json!({ "to": [] }),
        json!({}),
        json!({ "to": [{ "namespaces": {} }], "log": true }),
        json!({ "to": [{ "namespaces": {} }], "protocols": [] }),
        json!({ "to": [{ "networks": ["10.0.0.0/8"] }], "protocols": named }),
        json!({ "to": [{ "nodes": {} }], "protocols": named }),
        port(json!({})),
        port(json!({ "tcp": {} })),
        port(json!({ "icmp": {} })),
        port(json!({ "tcp": { "destinationPort": {} } })),
        port(json!({ "tcp": { "destinationPort": { "number": 0 } } })),
        port(json!({ "tcp": { "destinationPort": { "number": 80 }, "flags": "SYN" } })),
        port(json!({ "tcp": { "destinationPort": { "range": { "start": 2, "end": 1 } } } })),
        port(json!({ "destinationNamedPort": "" })),
    ];
    for rule in wrong {
        for action in ["Accept", "Deny", "Pass"] {
            let mut rule = rule.clone();
            rule["action"] = action.into();
            let (policy, warnings) = read(with("egress", rule.clone()));
            let policy = policy.expect("its subject is understood");
            assert!(!policy.is_understood && !warnings.is_empty(), "{rule}");
            let expected = if action == "Accept" { vec![] } else { vec![deny_all(0, "".into())] };
            assert_eq!(policy.egress, expected, "{rule}");
        }
    }
    let (policy, _) = read(with("ingress", json!({ "action": "Log", "from": [{}] })));
    assert_eq!(policy.expect("it is understood").ingress, [deny_all(0, "".into())]);
    // Only what is sent may be chosen by address.
    for peer in [json!({ "networks": ["10.0.0.0/8"] }), json!({ "nodes": {} })] {
        let (policy, _) = read(with("ingress", json!({ "action": "Deny", "from": [peer] })));
        assert_eq!(policy.expect("it is understood").ingress, [deny_all(0, "".into())]);
    }
}
