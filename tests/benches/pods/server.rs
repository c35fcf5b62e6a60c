//! An API server with many pods, which it makes as it sends them.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use denizen_fixture::protobuf;
use serde_json::{Value, json};

/// The node whose pods are the first [`LOCAL`] ones.
pub const NODE: &str = "node-1";
/// Pods of [`NODE`].
pub const LOCAL: usize = 250;

/// Pods of one Deployment.
const REPLICAS: usize = 20;
/// The pod whose deletion ends the changes.
const LAST: usize = 0;

/// What the server has.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    pub pods: usize,
    pub policies: usize,
    pub namespaces: usize,
    /// Changes of pods' statuses, after the list.
    pub updates: usize,
    /// Services, each with one EndpointSlice.
    pub services: usize,
    /// Whether it has no protobuf.
    pub only_json: bool,
}

/// Serves a cluster at a listener, without an end; a kubeconfig file in `folder` leads to it.
pub fn start(cluster: Cluster, listener: TcpListener, folder: &Path) -> Result<PathBuf> {
    let server = format!("http://{}", listener.local_addr()?);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "c", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    });
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, text.to_string())?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, cluster));
        }
    });
    Ok(kubeconfig)
}

/// The kinds, by their plural.
const KINDS: [(&str, &str, &str, Count, Make); 7] = [
    ("pods", "v1", "Pod", |cluster| cluster.pods, |cluster, n| pod(cluster, n, 0)),
    (
        "networkpolicies",
        "networking.k8s.io/v1",
        "NetworkPolicy",
        |cluster| cluster.policies,
        policy,
    ),
    ("namespaces", "v1", "Namespace", |cluster| cluster.namespaces, |_, n| namespace(n)),
    ("services", "v1", "Service", |cluster| cluster.services, |_, n| service(n)),
    (
        "endpointslices",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        |cluster| cluster.services,
        |_, n| slice(n),
    ),
    ("nodes", "v1", "Node", |_| 0, policy),
    ("servicecidrs", "networking.k8s.io/v1", "ServiceCIDR", |_| 0, policy),
];
type Count = fn(Cluster) -> usize;
type Make = fn(Cluster, usize) -> Value;

/// Answers a list, or a watch that brings the changes.
fn serve(stream: TcpStream, cluster: Cluster) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut accepted = String::new();
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        if line.to_lowercase().starts_with("accept:") {
            accepted = line;
        }
    }
    let in_protobuf = !cluster.only_json && accepted.contains("protobuf");
    let content_type =
        if in_protobuf { "application/vnd.kubernetes.protobuf" } else { "application/json" };
    let mut to = BufWriter::with_capacity(1 << 16, stream);
    write!(to, "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n")?;
    let asked = |plural: &str| request.contains(&format!("/{plural}?"));
    let Some((_, version, kind, count, make)) = KINDS.into_iter().find(|kind| asked(kind.0)) else {
        return to.flush();
    };
    if !request.contains("watch=true") {
        let objects = (0..count(cluster)).map(|number| make(cluster, number));
        return match in_protobuf {
            true => list_in_protobuf(&mut to, version, kind, objects),
            false => list_in_json(&mut to, version, kind, objects),
        };
    }
    let mut send = |event: &str, object: Value| match in_protobuf {
        true => {
            let object = protobuf::envelope(version, kind, &protobuf::object(kind, &object));
            to.write_all(&protobuf::event(event, &object))
        }
        // `type` comes first, as a real server writes it.
        false => writeln!(to, r#"{{"type":"{event}","object":{object}}}"#),
    };
    let Cluster { pods, updates, .. } = cluster;
    if kind == "Pod" && updates > 0 {
        for update in 1..=updates {
            send("MODIFIED", pod(cluster, update % pods, update))?;
        }
        send("DELETED", pod(cluster, LAST, updates))?;
    }
    to.flush()?;
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

fn list_in_json(
    to: &mut impl Write,
    version: &str,
    kind: &str,
    objects: impl Iterator<Item = Value>,
) -> std::io::Result<()> {
    let head = json!({ "kind": format!("{kind}List"), "apiVersion": version }).to_string();
    let metadata = json!({ "resourceVersion": "1" });
    write!(to, r#"{},"metadata":{metadata},"items":["#, head.trim_end_matches('}'))?;
    for (number, object) in objects.enumerate() {
        write!(to, "{}{object}", if number == 0 { "" } else { "," })?;
    }
    to.write_all(b"]}")?;
    to.flush()
}

/// Lengths come first, so each object is made twice.
fn list_in_protobuf(
    to: &mut impl Write,
    version: &str,
    kind: &str,
    objects: impl Iterator<Item = Value> + Clone,
) -> std::io::Result<()> {
    let metadata = [0x0a, 3, 0x12, 1, b'1'];
    let item = |object: Value| {
        let item = protobuf::object(kind, &object);
        [&[0x12], varint(item.len()).as_slice(), &item].concat()
    };
    let length = metadata.len() + objects.clone().map(|object| item(object).len()).sum::<usize>();
    let list = format!("{kind}List");
    let types = [
        &[0x0a, version.len() as u8],
        version.as_bytes(),
        &[0x12, list.len() as u8],
        list.as_bytes(),
    ];
    let types = types.concat();
    to.write_all(b"k8s\0")?;
    to.write_all(&[0x0a, types.len() as u8])?;
    to.write_all(&types)?;
    to.write_all(&[0x12])?;
    to.write_all(&varint(length))?;
    to.write_all(&metadata)?;
    for object in objects {
        to.write_all(&item(object))?;
    }
    to.write_all(&[0x1a, 0, 0x22, 0])?;
    to.flush()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// What real objects have, and nobody uses.
fn managed(manager: &str, fields: usize) -> Value {
    let fields: serde_json::Map<String, Value> =
        (0..fields).map(|n| (format!("f:field{n}"), json!({ ".": {}, "f:name": {} }))).collect();
    json!([{ "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-20T12:00:00Z",
             "fieldsType": "FieldsV1", "fieldsV1": fields }])
}

/// A Service as Helm makes it: 1.5 kB.
fn service(number: usize) -> Value {
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

/// Its EndpointSlice, with 4 endpoints: 3 kB.
fn slice(number: usize) -> Value {
    let app = format!("app-{number}");
    let endpoint = |n: usize| {
        json!({
            "addresses": [ip(4 * number + n)], "nodeName": format!("node-{}", number % 5000), "zone": "zone-a",
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": name(4 * number + n), "uid": uid(number) },
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
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }, { "name": "metrics", "protocol": "TCP", "port": 9090 }],
        "endpoints": (0..4).map(endpoint).collect::<Vec<_>>(),
    })
}

fn service_ip(number: usize) -> String {
    format!("10.200.{}.{}", number >> 8 & 255, number & 255)
}

/// A pod as a cluster has them: 3 kB, of which few bytes are used.
pub fn pod(cluster: Cluster, number: usize, ready: usize) -> Value {
    let app = number / REPLICAS;
    let env: Vec<Value> = (0..12)
        .map(|n| json!({ "name": format!("SETTING_{n}"), "value": "x".repeat(60) }))
        .collect();
    let fields: serde_json::Map<String, Value> =
        (0..30).map(|n| (format!("f:field{n}"), json!({ ".": {}, "f:name": {} }))).collect();
    let node = if number < LOCAL { NODE.to_owned() } else { format!("node-{}", 2 + number % 4999) };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name(number), "namespace": team(cluster, app),
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
            "nodeName": node,
            "containers": [{
                "name": "server", "image": "registry.example/shop/server:1.2.3", "env": env,
                "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            }],
        },
        "status": {
            "phase": "Running", "podIP": ip(number), "podIPs": [{ "ip": ip(number) }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": ready.to_string() }],
        },
    })
}

/// Ingress from two tiers of the namespace and one app of any, to two ports; egress to the
/// namespace, and to DNS anywhere.
fn policy(cluster: Cluster, number: usize) -> Value {
    let is_tier = |n: usize| json!({ "podSelector": { "matchLabels": { "tier": tier(n) } } });
    let app = json!({ "matchLabels": { "app.kubernetes.io/name": format!("app-{number}") } });
    let ports: Vec<Value> = [8080, 9090].map(|port| json!({ "port": port })).into();
    let dns = ["UDP", "TCP"].map(|protocol| json!({ "port": 53, "protocol": protocol }));
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {
            "name": format!("policy-{number}"), "namespace": team(cluster, number),
            "resourceVersion": "1",
        },
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": [
                    is_tier(number), is_tier(number + 1),
                    { "namespaceSelector": {}, "podSelector": app },
                ],
                "ports": ports,
            }],
            "egress": [{ "to": [{ "podSelector": {} }] }, { "ports": dns }],
        },
    })
}

fn namespace(number: usize) -> Value {
    let name = format!("team-{number}");
    let labels = json!({ "kubernetes.io/metadata.name": name });
    let metadata = json!({ "name": name, "labels": labels, "resourceVersion": "1" });
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

fn tier(app: usize) -> String {
    format!("tier-{}", app % 5)
}

fn team(cluster: Cluster, app: usize) -> String {
    format!("team-{}", app % cluster.namespaces)
}

/// The namespace of a pod.
pub fn namespace_of(cluster: Cluster, number: usize) -> String {
    team(cluster, number / REPLICAS)
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
