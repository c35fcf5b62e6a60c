//! The reference for the field numbers: messages that Kubernetes' own definitions encode.
//!
//! `k8s-pb` is generated from Kubernetes' `generated.proto`, and prost writes its messages. Neither
//! shares a line with the decoder, nor with the tests' own encoder. Each object here has all fields
//! that the decoder reads, with texts and numbers that occur once, so that two fields that are
//! mixed up differ from the same object in JSON.

mod policies;

use std::collections::BTreeMap;

use denizen_fixture::protobuf;
use k8s_pb::api::core::v1 as core;
use k8s_pb::api::discovery::v1 as discovery;
use k8s_pb::api::networking::v1 as networking;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;
use serde_json::{Value, json};

use super::{ObjectKind, RawObject, decoded};

/// Upstream's message and the same object in JSON decode to the same event.
fn agree(kind: ObjectKind, upstream: &impl Message, object: &Value) {
    let (message, json) = (upstream.encode_to_vec(), object.to_string());
    let from_message = decoded(&RawObject::protobuf(kind, &message));
    assert_eq!(from_message, decoded(&RawObject::json(kind, &json)), "{object}");
    assert!(matches!(from_message.0, Ok(Some(_))), "{from_message:?}");
}

/// [`protobuf::object`] writes only fields that upstream knows, with their types: prost drops what
/// it does not know, and fails on a wrong type.
fn writes_as_upstream<M: Message + Default>(kind: ObjectKind, object: &Value) {
    let written = protobuf::object(&kind.to_string(), object);
    let again = M::decode(written.as_slice()).expect("upstream reads it").encode_to_vec();
    assert_eq!(again.len(), written.len(), "{object}");
}

fn set(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// 2026-11-20T12:34:56Z.
fn time() -> Option<meta::Time> {
    Some(meta::Time { seconds: Some(1_795_178_096), nanos: Some(0) })
}

fn metadata(name: &str) -> meta::ObjectMeta {
    let managed = meta::ManagedFieldsEntry {
        manager: set("kubelet"),
        operation: set("Update"),
        api_version: set("v1"),
        time: time(),
        fields_type: set("FieldsV1"),
        fields_v1: Some(meta::FieldsV1 { raw: Some(b"{\"f:spec\":{}}".to_vec()) }),
        subresource: set("status"),
    };
    let owner = meta::OwnerReference {
        api_version: set("apps/v1"),
        kind: set("ReplicaSet"),
        name: set("owner"),
        uid: set("uid-of-owner"),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    meta::ObjectMeta {
        name: set(name),
        generate_name: set("generated-"),
        namespace: set("shop"),
        uid: set("uid-1"),
        resource_version: set("4711"),
        generation: Some(3),
        creation_timestamp: time(),
        deletion_grace_period_seconds: Some(30),
        labels: map([
            ("app", "web"),
            ("kubernetes.io/service-name", "web"),
            ("topology.kubernetes.io/zone", "zone-a"),
        ]),
        annotations: map([
            ("denizen.io/additional-addresses", "10.9.0.0/31"),
            ("kubernetes.io/config.mirror", "mirrored"),
            ("kube-router.io/service.scheduler", "rr"),
        ]),
        owner_references: vec![owner],
        finalizers: texts(["any/finalizer"]),
        managed_fields: vec![managed],
        ..meta::ObjectMeta::default()
    }
}

/// As [`metadata`], in JSON.
fn metadata_json(name: &str) -> Value {
    json!({
        "name": name, "generateName": "generated-", "namespace": "shop", "uid": "uid-1",
        "resourceVersion": "4711", "generation": 3, "creationTimestamp": "2026-11-20T12:34:56Z",
        "labels": { "app": "web", "kubernetes.io/service-name": "web",
                    "topology.kubernetes.io/zone": "zone-a" },
        "annotations": { "denizen.io/additional-addresses": "10.9.0.0/31",
                         "kubernetes.io/config.mirror": "mirrored",
                         "kube-router.io/service.scheduler": "rr" },
        "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner",
                              "uid": "uid-of-owner" }],
        "managedFields": [{ "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                            "time": "2026-11-20T12:34:56Z", "fieldsType": "FieldsV1",
                            "fieldsV1": { "f:spec": {} }, "subresource": "status" }],
    })
}

fn service_spec() -> core::ServiceSpec {
    let port =
        |name: &str, protocol: &str, port, node_port, target: IntOrString| core::ServicePort {
            name: set(name),
            protocol: set(protocol),
            app_protocol: set("kubernetes.io/h2c"),
            port: Some(port),
            target_port: Some(target),
            node_port: Some(node_port),
        };
    let number = IntOrString { r#type: Some(0), int_val: Some(8080), ..IntOrString::default() };
    let named = IntOrString { r#type: Some(1), str_val: set("dns"), ..IntOrString::default() };
    let affinity = core::ClientIpConfig { timeout_seconds: Some(77) };
    core::ServiceSpec {
        ports: vec![
            port("http", "TCP", 80, 30080, number),
            port("domain", "UDP", 53, 30053, named),
        ],
        selector: map([("app", "web")]),
        cluster_ip: set("10.0.0.1"),
        cluster_ips: texts(["10.0.0.1", "fd00::1"]),
        r#type: set("LoadBalancer"),
        external_ips: texts(["203.0.113.7"]),
        session_affinity: set("ClientIP"),
        load_balancer_ip: set("203.0.113.8"),
        load_balancer_source_ranges: texts(["198.51.100.0/24"]),
        external_name: set("not.used"),
        external_traffic_policy: set("Local"),
        health_check_node_port: Some(30100),
        publish_not_ready_addresses: Some(true),
        session_affinity_config: Some(core::SessionAffinityConfig { client_ip: Some(affinity) }),
        ip_families: texts(["IPv4", "IPv6"]),
        ip_family_policy: set("PreferDualStack"),
        allocate_load_balancer_node_ports: Some(true),
        load_balancer_class: set("any/class"),
        internal_traffic_policy: set("Local"),
        traffic_distribution: set("PreferClose"),
    }
}

#[test]
fn services() {
    let ingress = |ip: &str, mode: &str| core::LoadBalancerIngress {
        ip: set(ip),
        hostname: set("any.example"),
        ip_mode: set(mode),
        ports: Vec::new(),
    };
    let balanced = core::LoadBalancerStatus {
        ingress: vec![ingress("203.0.113.1", "VIP"), ingress("203.0.113.2", "Proxy")],
    };
    let service = core::Service {
        metadata: Some(metadata("web")),
        spec: Some(service_spec()),
        status: Some(core::ServiceStatus {
            load_balancer: Some(balanced),
            ..core::ServiceStatus::default()
        }),
    };
    let object = json!({
        "metadata": metadata_json("web"),
        "spec": {
            "ports": [
                { "name": "http", "protocol": "TCP", "appProtocol": "kubernetes.io/h2c", "port": 80,
                  "targetPort": 8080, "nodePort": 30080 },
                { "name": "domain", "protocol": "UDP", "appProtocol": "kubernetes.io/h2c",
                  "port": 53, "targetPort": "dns", "nodePort": 30053 },
            ],
            "selector": { "app": "web" }, "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1", "fd00::1"], "type": "LoadBalancer",
            "externalIPs": ["203.0.113.7"], "sessionAffinity": "ClientIP",
            "loadBalancerIP": "203.0.113.8", "loadBalancerSourceRanges": ["198.51.100.0/24"],
            "externalName": "not.used", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30100, "publishNotReadyAddresses": true,
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 77 } },
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
            "internalTrafficPolicy": "Local",
        },
        "status": { "loadBalancer": { "ingress": [
            { "ip": "203.0.113.1", "hostname": "any.example", "ipMode": "VIP" },
            { "ip": "203.0.113.2", "hostname": "any.example", "ipMode": "Proxy" },
        ] } },
    });
    agree(ObjectKind::Service, &service, &object);
    writes_as_upstream::<core::Service>(ObjectKind::Service, &object);
    // Only `clusterIP`, the older field for one address.
    let spec = core::ServiceSpec { cluster_ips: Vec::new(), ..service_spec() };
    let mut object = object;
    object["spec"]["clusterIPs"] = json!([]);
    agree(ObjectKind::Service, &core::Service { spec: Some(spec), ..service }, &object);
}

#[test]
fn slices() {
    type States = [Option<bool>; 3];
    let conditions = |[ready, serving, terminating]: States| {
        Some(discovery::EndpointConditions { ready, serving, terminating })
    };
    let endpoint = |address: &str, node: &str, states| discovery::Endpoint {
        addresses: texts([address, "192.0.2.99"]),
        conditions: conditions(states),
        hostname: set("web-0"),
        target_ref: Some(core::ObjectReference {
            kind: set("Pod"),
            namespace: set("shop"),
            name: set("web-0"),
            uid: set("uid-0"),
            ..core::ObjectReference::default()
        }),
        node_name: set(node),
        zone: set("zone-b"),
        hints: Some(discovery::EndpointHints {
            for_zones: vec![discovery::ForZone { name: set("zone-c") }],
            for_nodes: vec![discovery::ForNode { name: set("node-3") }],
        }),
        ..discovery::Endpoint::default()
    };
    let cases = [
        [None, None, None],
        [Some(true), Some(false), Some(false)],
        [Some(false), Some(true), Some(true)],
        [Some(false), Some(false), Some(true)],
    ];
    let port = |name: &str, protocol: &str, port| discovery::EndpointPort {
        name: set(name),
        protocol: set(protocol),
        port: Some(port),
        app_protocol: set("http"),
    };
    let nodes = ["node-1", "node-2", "node-1", "node-4"];
    let addresses = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"];
    let places = addresses.into_iter().zip(nodes).zip(cases);
    let slice = discovery::EndpointSlice {
        metadata: Some(metadata("web-1")),
        address_type: set("IPv4"),
        endpoints: places
            .clone()
            .map(|((address, node), states)| endpoint(address, node, states))
            .collect(),
        ports: vec![port("http", "TCP", 8080), port("domain", "UDP", 5353)],
    };
    let endpoint = |((address, node), [ready, serving, terminating]): ((&str, &str), States)| {
        json!({
            "addresses": [address, "192.0.2.99"],
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
            "hostname": "web-0", "nodeName": node, "zone": "zone-b",
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "uid-0" },
            "hints": { "forZones": [{ "name": "zone-c" }], "forNodes": [{ "name": "node-3" }] },
        })
    };
    let endpoints: Vec<Value> = places.map(endpoint).collect();
    let object = json!({
        "metadata": metadata_json("web-1"), "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 },
                  { "name": "domain", "protocol": "UDP", "port": 5353 }],
    });
    agree(ObjectKind::EndpointSlice, &slice, &object);
    writes_as_upstream::<discovery::EndpointSlice>(ObjectKind::EndpointSlice, &object);
}

#[test]
fn pods() {
    let port = |name: &str, port, protocol: &str| core::ContainerPort {
        name: set(name),
        host_port: Some(8000),
        container_port: Some(port),
        protocol: set(protocol),
        host_ip: set("192.0.2.7"),
    };
    let container = |name: &str, port, restart: Option<&str>| core::Container {
        name: set(name),
        image: set("any/image"),
        env: vec![core::EnvVar { name: set("A"), value: set("b"), value_from: None }],
        ports: vec![port],
        restart_policy: restart.map(str::to_owned),
        ..core::Container::default()
    };
    let spec = |node: &str, host_network| core::PodSpec {
        containers: vec![container("c", port("http", 8080, "TCP"), None)],
        init_containers: vec![
            container("sidecar", port("side", 9090, "UDP"), Some("Always")),
            container("once", port("never", 7070, "TCP"), None),
        ],
        ephemeral_containers: vec![core::EphemeralContainer::default()],
        restart_policy: set("OnFailure"),
        node_name: set(node),
        host_network: Some(host_network),
        host_pid: Some(true),
        scheduler_name: set("any-scheduler"),
        ..core::PodSpec::default()
    };
    let status = |phase: &str| core::PodStatus {
        phase: set(phase),
        host_ip: set("192.0.2.1"),
        host_ips: vec![
            core::HostIp { ip: set("192.0.2.1") },
            core::HostIp { ip: set("2001:db8::1") },
        ],
        pod_ip: set("10.1.0.1"),
        pod_ips: vec![core::PodIp { ip: set("10.1.0.1") }, core::PodIp { ip: set("fd00::7") }],
        nominated_node_name: set("node-9"),
        ..core::PodStatus::default()
    };
    let port = |name, port, protocol| {
        json!([{ "name": name, "hostPort": 8000, "containerPort": port, "protocol": protocol,
                 "hostIP": "192.0.2.7" }])
    };
    let container = |name, ports: &Value| {
        json!({ "name": name, "image": "any/image", "env": [{ "name": "A", "value": "b" }],
                "ports": ports })
    };
    let mut sidecar = container("sidecar", &port("side", 9090, "UDP"));
    sidecar["restartPolicy"] = "Always".into();
    for (node, host_network) in [("node-1", false), ("node-1", true), ("node-2", false)] {
        for phase in ["Pending", "Running", "Succeeded"] {
            let pod = core::Pod {
                metadata: Some(metadata("web-1")),
                spec: Some(spec(node, host_network)),
                status: Some(status(phase)),
            };
            let object = json!({
                "metadata": metadata_json("web-1"),
                "spec": {
                    "containers": [container("c", &port("http", 8080, "TCP"))],
                    "initContainers": [sidecar, container("once", &port("never", 7070, "TCP"))],
                    "restartPolicy": "OnFailure", "nodeName": node, "hostNetwork": host_network,
                },
                "status": {
                    "phase": phase, "hostIP": "192.0.2.1", "podIP": "10.1.0.1",
                    "hostIPs": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }],
                    "podIPs": [{ "ip": "10.1.0.1" }, { "ip": "fd00::7" }],
                },
            });
            agree(ObjectKind::Pod, &pod, &object);
            writes_as_upstream::<core::Pod>(ObjectKind::Pod, &object);
        }
    }
}

/// The fields for one address alone: servers before 1.16 write no `podIPs`, before 1.28 no
/// `hostIPs`.
#[test]
fn pods_of_older_servers() {
    let pod = core::Pod {
        metadata: Some(metadata("web-1")),
        spec: None,
        status: Some(core::PodStatus {
            host_ip: set("192.0.2.1"),
            pod_ip: set("10.1.0.1"),
            ..core::PodStatus::default()
        }),
    };
    let status = json!({ "hostIP": "192.0.2.1", "podIP": "10.1.0.1" });
    let object = json!({ "metadata": metadata_json("web-1"), "status": status });
    agree(ObjectKind::Pod, &pod, &object);
}

#[test]
fn nodes() {
    for name in ["node-1", "node-2"] {
        let taint = core::Taint {
            key: set("ToBeDeletedByClusterAutoscaler"),
            value: set("1"),
            effect: set("NoSchedule"),
            time_added: time(),
        };
        let address = |kind: &str, address: &str| core::NodeAddress {
            r#type: set(kind),
            address: set(address),
        };
        let condition = core::NodeCondition {
            r#type: set("NetworkUnavailable"),
            status: set("True"),
            reason: set("AnyReason"),
            message: set("any message"),
            ..core::NodeCondition::default()
        };
        let node = core::Node {
            metadata: Some(metadata(name)),
            spec: Some(core::NodeSpec {
                pod_cidr: set("10.1.0.0/24"),
                pod_cid_rs: texts(["10.1.0.0/24", "fd00:1::/64"]),
                provider_id: set("any://id"),
                unschedulable: Some(true),
                taints: vec![taint],
                ..core::NodeSpec::default()
            }),
            status: Some(core::NodeStatus {
                phase: set("Running"),
                conditions: vec![condition],
                addresses: vec![
                    address("InternalIP", "192.0.2.1"),
                    address("ExternalIP", "203.0.113.1"),
                    address("Hostname", "node-1.example"),
                ],
                ..core::NodeStatus::default()
            }),
        };
        let object = json!({
            "metadata": metadata_json(name),
            "spec": {
                "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"],
                "providerID": "any://id",
                "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "value": "1",
                             "effect": "NoSchedule" }],
            },
            "status": {
                "conditions": [{ "type": "NetworkUnavailable", "status": "True",
                                 "reason": "AnyReason" }],
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" },
                              { "type": "ExternalIP", "address": "203.0.113.1" },
                              { "type": "Hostname", "address": "node-1.example" }],
            },
        });
        agree(ObjectKind::Node, &node, &object);
        writes_as_upstream::<core::Node>(ObjectKind::Node, &object);
        // Only `podCIDR`, the older field for one range; and a Node that is being deleted.
        let (mut node, mut object) = (node, object);
        let spec = node.spec.as_mut().unwrap();
        (spec.pod_cid_rs, spec.taints) = (Vec::new(), Vec::new());
        node.metadata.as_mut().unwrap().deletion_timestamp = time();
        object["spec"] = json!({ "podCIDR": "10.1.0.0/24" });
        object["metadata"]["deletionTimestamp"] = "2026-11-20T12:34:56Z".into();
        agree(ObjectKind::Node, &node, &object);
    }
}

#[test]
fn namespaces_and_ranges() {
    let mut namespace =
        core::Namespace { metadata: Some(metadata("shop")), ..core::Namespace::default() };
    let mut object = json!({ "metadata": metadata_json("shop") });
    agree(ObjectKind::Namespace, &namespace, &object);
    namespace.metadata.as_mut().unwrap().deletion_timestamp = time();
    object["metadata"]["deletionTimestamp"] = "2026-11-20T12:34:56Z".into();
    agree(ObjectKind::Namespace, &namespace, &object);
    writes_as_upstream::<core::Namespace>(ObjectKind::Namespace, &object);
    let cidr = networking::ServiceCIDR {
        metadata: Some(metadata("kubernetes")),
        spec: Some(networking::ServiceCIDRSpec { cidrs: texts(["10.0.0.0/16", "fd00::/112"]) }),
        ..networking::ServiceCIDR::default()
    };
    let object = json!({ "metadata": metadata_json("kubernetes"),
                         "spec": { "cidrs": ["10.0.0.0/16", "fd00::/112"] } });
    agree(ObjectKind::ServiceCidr, &cidr, &object);
    writes_as_upstream::<networking::ServiceCIDR>(ObjectKind::ServiceCidr, &object);
}
