//! Tests that JSON and protobuf decode to the same object.

mod upstream;

use denizen_fixture::protobuf;
use denizen_model::Event;
use serde_json::{Value, json};

use super::{Decoder, ObjectKind, RawObject};

/// The event of an object, or why there is none, and the warnings.
fn decoded(found: &RawObject<'_>) -> (Result<Option<Event>, String>, Vec<String>) {
    let mut decoder = Decoder::new("node-1".into()).with_other_nodes(true);
    let mut warnings = Vec::new();
    let result = found.decode(&mut decoder, &mut warnings);
    let event = result
        .map(|decoded| decoded.map(|decoded| decoded.event))
        .map_err(|error| error.to_string());
    (event, warnings.iter().map(ToString::to_string).collect())
}

fn in_protobuf(kind: ObjectKind, object: &Value) -> (Result<Option<Event>, String>, Vec<String>) {
    let message = protobuf::object(&kind.to_string(), object);
    decoded(&RawObject::protobuf(kind, &message))
}

fn same(name: &str, kind: ObjectKind, object: &Value) {
    let json = object.to_string();
    assert_eq!(
        in_protobuf(kind, object),
        decoded(&RawObject::json(kind, &json)),
        "{name}: {object}"
    );
}

/// Metadata with fields that every real object has and nobody uses.
fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 2,
        "creationTimestamp": "2026-11-20T12:34:56Z", "labels": { "app": "web", "empty": "" },
        "annotations": { "any": "text", "kube-router.io/service.scheduler": "rr" },
        "ownerReferences": [{ "kind": "ReplicaSet", "name": "web", "uid": "u-0", "apiVersion": "v1" }],
        "managedFields": [{ "manager": "m", "operation": "Update", "time": "2026-11-20T12:34:56Z",
                            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} } }],
    })
}

#[test]
fn services() {
    let cases = [
        ("no spec", json!({})),
        ("headless", json!({ "clusterIP": "None", "clusterIPs": ["None"] })),
        ("no address", json!({ "ports": [{ "port": 80 }] })),
        (
            "plain",
            json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80, "targetPort": 8080 }] }),
        ),
        ("another's name", json!({ "clusterIP": "10.0.0.1", "type": "ExternalName" })),
        (
            "everything",
            json!({
                "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
                "externalIPs": ["203.0.113.7", "nine"],
                "loadBalancerSourceRanges": ["198.51.100.0/24", "x"],
                "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
                "healthCheckNodePort": 30100, "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 77 } },
                "ports": [
                    { "name": "http", "port": 80, "targetPort": "web", "nodePort": 30080,
                      "protocol": "TCP" },
                    { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "bad", "port": -5 },
                ],
            }),
        ),
    ];
    let ingress = json!([
        { "ip": "203.0.113.1" }, { "ip": "203.0.113.2", "ipMode": "Proxy" }, { "hostname": "x" }
    ]);
    for (name, spec) in cases {
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        same(
            name,
            ObjectKind::Service,
            &json!({ "metadata": metadata("web"), "spec": spec, "status": status }),
        );
    }
    let mut given = json!({ "metadata": metadata("web"), "spec": { "clusterIP": "10.0.0.1" } });
    given["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "another".into();
    same("another proxy's", ObjectKind::Service, &given);
}

#[test]
fn slices() {
    let endpoint = |conditions: Value| {
        json!({
            "addresses": ["10.1.0.1", "10.1.0.2"], "conditions": conditions,
            "nodeName": "node-1", "zone": "a",
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "u" },
            "hints": { "forZones": [{ "name": "a" }], "forNodes": [{ "name": "node-1" }] },
        })
    };
    for (ready, serving, terminating) in [
        (Value::Null, Value::Null, Value::Null),
        (json!(true), json!(true), json!(false)),
        (json!(false), json!(true), json!(true)),
        (json!(false), json!(false), json!(true)),
    ] {
        let conditions = json!({ "ready": ready, "serving": serving, "terminating": terminating });
        let ports = json!([{ "name": "", "protocol": "TCP", "port": 80 }, { "port": 81 }, { "name": "all" }]);
        let mut slice = json!({
            "metadata": metadata("web-1"), "addressType": "IPv4", "ports": ports,
            "endpoints": [endpoint(conditions), { "addresses": ["fd00::1"] }, {}],
        });
        same("no service", ObjectKind::EndpointSlice, &slice);
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = "web".into();
        same("a slice", ObjectKind::EndpointSlice, &slice);
        slice["addressType"] = "FQDN".into();
        same("host names", ObjectKind::EndpointSlice, &slice);
    }
}

#[test]
fn pods() {
    let ports = json!([
        { "name": "http", "containerPort": 8080, "protocol": "TCP" },
        { "containerPort": 1 }, { "name": "bad", "containerPort": 70000 },
    ]);
    let containers = json!([
        { "name": "c", "image": "i", "env": [{ "name": "A", "value": "b" }], "ports": ports },
    ]);
    let inits = json!([
        { "name": "s", "restartPolicy": "Always", "ports": [{ "name": "side", "containerPort": 9 }] },
        { "name": "i", "ports": [{ "name": "never", "containerPort": 9 }] },
    ]);
    for phase in ["", "Pending", "Running", "Succeeded", "Failed"] {
        for (node, host_network) in [("node-1", false), ("node-2", false), ("node-1", true)] {
            let mut pod = json!({
                "metadata": metadata("web-1"),
                "spec": { "nodeName": node, "hostNetwork": host_network, "containers": containers,
                          "initContainers": inits, "restartPolicy": "Always" },
                "status": { "phase": phase, "podIP": "10.1.0.1",
                            "podIPs": [{ "ip": "10.1.0.1" }, { "ip": "fd00::1" }],
                            "hostIP": "192.0.2.1", "hostIPs": [{ "ip": "192.0.2.1" }] },
            });
            pod["metadata"]["annotations"]["denizen.io/additional-addresses"] =
                "10.9.0.0/30".into();
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "hash".into();
            same(phase, ObjectKind::Pod, &pod);
            pod["status"] = json!({ "phase": phase, "podIP": "10.1.0.1", "hostIP": "192.0.2.1" });
            same("the older fields", ObjectKind::Pod, &pod);
        }
    }
    same("bare", ObjectKind::Pod, &json!({ "metadata": { "name": "p", "namespace": "shop" } }));
}

#[test]
fn nodes_namespaces_and_ranges() {
    for name in ["node-1", "node-2"] {
        let mut node = json!({
            "metadata": { "name": name, "creationTimestamp": "2024-02-29T00:00:00Z",
                          "labels": { "topology.kubernetes.io/zone": "a" } },
            "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"],
                      "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" },
                                      { "type": "ExternalIP", "address": "x" }],
                        "conditions": [{ "type": "NetworkUnavailable", "status": "True" }] },
        });
        same(name, ObjectKind::Node, &node);
        node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        same("leaving", ObjectKind::Node, &node);
    }
    let mut namespace = json!({ "metadata": { "name": "shop", "labels": { "team": "a" } } });
    same("namespace", ObjectKind::Namespace, &namespace);
    namespace["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    same("ending", ObjectKind::Namespace, &namespace);
    let cidr =
        json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": ["10.0.0.0/16", "x"] } });
    same("ranges", ObjectKind::ServiceCidr, &cidr);
}

fn policy(spec: Value) -> Value {
    json!({ "metadata": metadata("p"), "spec": spec })
}

/// A spec with rules, peers and ports of every kind.
fn whole_policy() -> Value {
    let selector = json!({
        "matchLabels": { "app": "web" },
        "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] },
                             { "key": "x", "operator": "Exists" }],
    });
    let peers = json!([{ "podSelector": selector, "namespaceSelector": {} },
                       { "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } }]);
    let ports = json!([
        { "protocol": "TCP", "port": 80, "endPort": 90 }, { "port": "http" }, { "protocol": "UDP" }
    ]);
    json!({
        "podSelector": selector, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": peers, "ports": ports }, {}], "egress": [{ "to": peers, "ports": ports }],
    })
}

#[test]
fn policies() {
    let cases = [
        ("bare", json!({})),
        ("an empty selector", json!({ "podSelector": {} })),
        (
            "nothing permitted",
            json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [] }),
        ),
        ("egress too", json!({ "podSelector": {}, "egress": [{}] })),
        ("everything", whole_policy()),
        ("a peer of nothing", json!({ "podSelector": {}, "ingress": [{ "from": [{}] }] })),
        (
            "both kinds of peer",
            json!({ "podSelector": {}, "ingress": [{ "from": [
                { "podSelector": {}, "ipBlock": { "cidr": "10.0.0.0/8" } }
            ] }] }),
        ),
        (
            "no port",
            json!({ "podSelector": {}, "ingress": [{ "ports": [
                { "port": 0 }, { "port": "", "protocol": "X" }
            ] }] }),
        ),
        ("no type", json!({ "podSelector": {}, "policyTypes": ["Sideways"] })),
        (
            "a bad range",
            json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "ten" } }] }] }),
        ),
        (
            "no operator",
            json!({ "podSelector": { "matchExpressions": [{ "key": "x", "operator": "" }] } }),
        ),
    ];
    for (name, spec) in cases {
        same(name, ObjectKind::NetworkPolicy, &policy(spec));
    }
}

/// An unknown field at each level; in protobuf, a field number that nobody knows.
#[test]
fn an_unknown_field_permits_nothing_wherever_it_is() {
    let places = [
        "/spec",
        "/spec/podSelector",
        "/spec/podSelector/matchExpressions/0",
        "/spec/ingress/0",
        "/spec/ingress/0/from/0",
        "/spec/ingress/0/from/0/podSelector",
        "/spec/ingress/0/from/0/podSelector/matchExpressions/0",
        "/spec/ingress/0/from/0/namespaceSelector",
        "/spec/ingress/0/from/1/ipBlock",
        "/spec/ingress/0/ports/0",
        "/spec/egress/0",
        "/spec/egress/0/to/1/ipBlock",
        "/spec/egress/0/ports/2",
    ];
    let understood = |(event, warnings): (Result<Option<Event>, String>, Vec<String>)| {
        let Ok(Some(Event::NetworkPolicy(_, Some(policy)))) = event else { panic!("{event:?}") };
        assert_eq!(policy.is_understood, warnings.is_empty());
        (policy, warnings)
    };
    assert!(
        understood(in_protobuf(ObjectKind::NetworkPolicy, &policy(whole_policy()))).0.is_understood
    );
    for place in places {
        let mut newer = policy(whole_policy());
        newer.pointer_mut(place).unwrap()["newField"] = json!({ "a": 1 });
        let (of_protobuf, warnings) = understood(in_protobuf(ObjectKind::NetworkPolicy, &newer));
        let json = newer.to_string();
        let (of_json, _) = understood(decoded(&RawObject::json(ObjectKind::NetworkPolicy, &json)));
        assert!(!of_protobuf.is_understood, "{place}");
        assert_eq!(of_protobuf, of_json, "{place}");
        assert!(warnings.iter().any(|warning| warning.contains("99")), "{place}: {warnings:?}");
    }
    // Outside of `spec`, an unknown field is skipped.
    let mut newer = policy(whole_policy());
    newer["metadata"]["newField"] = 7.into();
    newer["status"] = json!({ "conditions": [] });
    assert!(understood(in_protobuf(ObjectKind::NetworkPolicy, &newer)).0.is_understood);
}

#[test]
fn a_spec_that_breaks_off_isolates_all_pods_and_permits_nothing() {
    let mut message = protobuf::object("NetworkPolicy", &json!({ "metadata": metadata("p") }));
    message.extend([0x12, 4, 0x0a, 9, 1, 1]);
    let (event, warnings) = decoded(&RawObject::protobuf(ObjectKind::NetworkPolicy, &message));
    let Ok(Some(Event::NetworkPolicy(_, Some(policy)))) = event else { panic!("{event:?}") };
    assert!(!policy.is_understood);
    assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), Some(Vec::new())));
    assert_eq!(policy.pods, denizen_model::Selector::default());
    assert!(!warnings.is_empty());
}

#[test]
fn a_broken_object_is_named_and_the_field_too() {
    let mut message = protobuf::object("Service", &json!({ "metadata": metadata("web") }));
    message.extend([0x12, 2, 0x1a, 9]);
    let found = RawObject::protobuf(ObjectKind::Service, &message);
    let mut decoder = Decoder::new("node-1".into());
    let error = found.decode(&mut decoder, &mut Vec::new()).unwrap_err();
    let shown = denizen_text::describe(&error);
    assert_eq!(shown, "Service shop/web cannot be read: protobuf field 2: it breaks off");
    assert_eq!(found.key(&decoder).unwrap().to_string(), "Service shop/web");
}

/// Fields that every write changes do not count as a change; everything else does.
#[test]
fn a_digest_leaves_out_what_every_writer_changes() {
    let decoder = Decoder::new("node-1".into());
    let digest = |object: &Value| {
        let message = protobuf::object("Service", object);
        RawObject::protobuf(ObjectKind::Service, &message).digest(&decoder)
    };
    let before = json!({ "metadata": metadata("web"), "spec": { "clusterIP": "10.0.0.1" } });
    let mut after = before.clone();
    after["metadata"]["resourceVersion"] = "8".into();
    after["metadata"]["managedFields"][0]["manager"] = "another".into();
    assert_eq!(digest(&before), digest(&after));
    after["metadata"]["labels"]["app"] = "db".into();
    assert_ne!(digest(&before), digest(&after));
    let mut after = before.clone();
    after["spec"]["clusterIP"] = "10.0.0.2".into();
    assert_ne!(digest(&before), digest(&after));
}
