use denizen_model::Event;
use k8s_pb::api::networking::v1 as networking;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;
use serde_json::{Value, json};

use super::super::whole_policy;
use super::{
    ObjectKind, RawObject, agree, decoded, map, metadata, metadata_json, set, texts,
    writes_as_upstream,
};

fn policy(spec: networking::NetworkPolicySpec) -> networking::NetworkPolicy {
    networking::NetworkPolicy { metadata: Some(metadata("p")), spec: Some(spec) }
}

fn selector() -> meta::LabelSelector {
    let requirement = |key: &str, operator: &str, values| meta::LabelSelectorRequirement {
        key: set(key),
        operator: set(operator),
        values,
    };
    meta::LabelSelector {
        match_labels: map([("app", "web")]),
        match_expressions: vec![
            requirement("tier", "In", texts(["a", "b"])),
            requirement("x", "Exists", Vec::new()),
        ],
    }
}

/// The same as [`whole_policy`].
fn whole_spec() -> networking::NetworkPolicySpec {
    let peers = vec![
        networking::NetworkPolicyPeer {
            pod_selector: Some(selector()),
            namespace_selector: Some(meta::LabelSelector::default()),
            ip_block: None,
        },
        networking::NetworkPolicyPeer {
            ip_block: Some(networking::IpBlock {
                cidr: set("10.0.0.0/8"),
                except: texts(["10.1.0.0/16"]),
            }),
            ..networking::NetworkPolicyPeer::default()
        },
    ];
    let number = IntOrString { r#type: Some(0), int_val: Some(80), str_val: set("") };
    let named = IntOrString { r#type: Some(1), int_val: Some(0), str_val: set("http") };
    let ports = vec![
        networking::NetworkPolicyPort {
            protocol: set("TCP"),
            port: Some(number),
            end_port: Some(90),
        },
        networking::NetworkPolicyPort { port: Some(named), ..Default::default() },
        networking::NetworkPolicyPort { protocol: set("UDP"), ..Default::default() },
    ];
    let ingress =
        networking::NetworkPolicyIngressRule { from: peers.clone(), ports: ports.clone() };
    networking::NetworkPolicySpec {
        pod_selector: Some(selector()),
        policy_types: texts(["Ingress", "Egress"]),
        ingress: vec![ingress, networking::NetworkPolicyIngressRule::default()],
        egress: vec![networking::NetworkPolicyEgressRule { to: peers, ports }],
    }
}

#[test]
fn policies() {
    let object = |spec: Value| json!({ "metadata": metadata_json("p"), "spec": spec });
    let whole = object(whole_policy());
    agree(ObjectKind::NetworkPolicy, &policy(whole_spec()), &whole);
    writes_as_upstream::<networking::NetworkPolicy>(ObjectKind::NetworkPolicy, &whole);
    let message = policy(whole_spec()).encode_to_vec();
    let understood = decoded(&RawObject::protobuf(ObjectKind::NetworkPolicy, &message));
    let (Ok(Some(Event::NetworkPolicy(_, Some(read)))), warnings) = understood else {
        panic!("{understood:?}")
    };
    assert!(read.is_understood && warnings.is_empty(), "{warnings:?}");
    // An absent selector, an empty one and an empty rule differ.
    let any_peer = networking::NetworkPolicyPeer {
        pod_selector: Some(meta::LabelSelector::default()),
        ..networking::NetworkPolicyPeer::default()
    };
    let from = |peers| networking::NetworkPolicySpec {
        pod_selector: Some(meta::LabelSelector::default()),
        ingress: vec![networking::NetworkPolicyIngressRule { from: peers, ports: Vec::new() }],
        ..networking::NetworkPolicySpec::default()
    };
    let rule = |peers: Value| json!({ "podSelector": {}, "ingress": [{ "from": peers }] });
    let cases = [
        (networking::NetworkPolicySpec::default(), json!({})),
        (from(vec![any_peer]), rule(json!([{ "podSelector": {} }]))),
        (from(vec![networking::NetworkPolicyPeer::default()]), rule(json!([{}]))),
        (from(Vec::new()), rule(json!([]))),
    ];
    for (spec, written) in cases {
        agree(ObjectKind::NetworkPolicy, &policy(spec), &object(written));
    }
}
