//! Objects as a large cluster has them, for benches: of usual sizes, with fields that the agent
//! ignores.

use serde_json::{Value, json};

/// The node whose pods are the first [`LOCAL`] ones.
pub const NODE: &str = "node-1";
/// Pods of [`NODE`].
pub const LOCAL: usize = 250;

/// Pods of one Deployment.
pub const REPLICAS: usize = 20;

/// `managedFields`, which real objects have and the agent ignores.
fn managed(manager: &str, fields: usize) -> Value {
    let fields: serde_json::Map<String, Value> =
        (0..fields).map(|n| (format!("f:field{n}"), json!({ ".": {}, "f:name": {} }))).collect();
    json!([{ "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-20T12:00:00Z",
             "fieldsType": "FieldsV1", "fieldsV1": fields }])
}

/// A Service as Helm makes it: 1.5 kB.
pub fn service(number: usize) -> Value {
    let (app, address) = (format!("app-{number}"), service_ip(number));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": app, "namespace": format!("team-{}", number % 500), "uid": uid(number),
            "resourceVersion": (number + 1).to_string(), "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": { "app.kubernetes.io/name": app, "app.kubernetes.io/instance": format!("{app}-prod"),
                        "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "server-1.2.3" },
            "annotations": { "meta.helm.sh/release-name": app, "meta.helm.sh/release-namespace": "shop" },
            "managedFields": managed("helm", 18),
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "sessionAffinity": "None",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "selector": { "app.kubernetes.io/name": app },
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": "http" },
                      { "name": "metrics", "protocol": "TCP", "port": 9090, "targetPort": 9090 }],
        },
        "status": { "loadBalancer": {} },
    })
}

/// The EndpointSlice of [`service`] `number`, with 4 endpoints: 3 kB.
pub fn slice(number: usize) -> Value {
    let app = format!("app-{number}");
    let endpoint = |n: usize| {
        json!({
            "addresses": [ip(4 * number + n)], "zone": "zone-a",
            "nodeName": format!("node-{}", number % 5000),
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": name(4 * number + n),
                           "uid": uid(number) },
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{app}-x7k2p"), "namespace": format!("team-{}", number % 500), "uid": uid(number),
            "resourceVersion": (number + 1).to_string(), "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": { "kubernetes.io/service-name": app, "app.kubernetes.io/name": app,
                        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "2026-11-20T12:00:00Z" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Service", "name": app, "uid": uid(number) }],
            "managedFields": managed("kube-controller-manager", 14),
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 },
                  { "name": "metrics", "protocol": "TCP", "port": 9090 }],
        "endpoints": (0..4).map(endpoint).collect::<Vec<_>>(),
    })
}

fn service_ip(number: usize) -> String {
    format!("10.200.{}.{}", number >> 8 & 255, number & 255)
}

/// A pod as a cluster has them: 3 kB, of which the agent uses few bytes.
pub fn pod(number: usize, namespace: &str, ready: usize) -> Value {
    let app = number / REPLICAS;
    let env: Vec<Value> = (0..12)
        .map(|n| json!({ "name": format!("SETTING_{n}"), "value": "x".repeat(60) }))
        .collect();
    let fields: serde_json::Map<String, Value> =
        (0..30).map(|n| (format!("f:field{n}"), json!({ ".": {}, "f:name": {} }))).collect();
    let node = if number < LOCAL { 1 } else { 2 + number % 4999 };
    let host_ip = format!("172.16.{}.{}", node >> 8, node & 255);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name(number), "namespace": namespace,
            "uid": uid(number), "resourceVersion": (number + ready + 1).to_string(),
            "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": {
                "app.kubernetes.io/name": format!("app-{app}"),
                "app.kubernetes.io/instance": format!("app-{app}-prod"),
                "app.kubernetes.io/component": "server", "app.kubernetes.io/part-of": "shop",
                "tier": tier(app), "pod-template-hash": format!("7d4b9c{app}"),
            },
            "managedFields": [{ "manager": "kubelet", "fieldsV1": fields }],
        },
        "spec": {
            "nodeName": format!("node-{node}"),
            "containers": [{
                "name": "server", "image": "registry.example/shop/server:1.2.3", "env": env,
                "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            }],
        },
        "status": {
            "phase": "Running", "hostIP": host_ip, "hostIPs": [{ "ip": host_ip }],
            "podIP": ip(number), "podIPs": [{ "ip": ip(number) }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": ready.to_string() }],
        },
    })
}

/// The tier of an app, one of its pods' labels.
pub fn tier(app: usize) -> String {
    format!("tier-{}", app % 5)
}

/// The name of a pod.
pub fn name(number: usize) -> String {
    format!("app-{}-7d4b9c6f5d-{number:05}", number / REPLICAS)
}

/// The UID of a pod.
pub fn uid(number: usize) -> String {
    format!("0f9cbb8e-0000-4000-8000-{number:012}")
}

/// The address of a pod.
pub fn ip(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}
