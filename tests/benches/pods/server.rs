//! An API server with many pods, which it makes as it sends them.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
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

/// Answers one watch: everything there is, then the changes.
fn serve(stream: TcpStream, cluster: Cluster) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut to = BufWriter::with_capacity(1 << 16, stream);
    write!(to, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")?;
    // `type` comes first, as a real server writes it.
    let mut send =
        |kind: &str, object: Value| writeln!(to, r#"{{"type":"{kind}","object":{object}}}"#);
    let Cluster { pods, policies, namespaces, updates } = cluster;
    let is_asked = |plural: &str| request.contains(&format!("/{plural}?"));
    let (kind, count, object): (_, _, fn(Cluster, usize) -> Value) = match () {
        () if is_asked("pods") => ("Pod", pods, |cluster, n| pod(cluster, n, 0)),
        () if is_asked("networkpolicies") => ("NetworkPolicy", policies, policy),
        () if is_asked("namespaces") => ("Namespace", namespaces, |_, n| namespace(n)),
        () if is_asked("services") => ("Service", 0, policy),
        () if is_asked("endpointslices") => ("EndpointSlice", 0, policy),
        () if is_asked("nodes") => ("Node", 0, policy),
        () => ("ServiceCIDR", 0, policy),
    };
    for number in 0..count {
        send("ADDED", object(cluster, number))?;
    }
    let annotations = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": "1", "annotations": annotations });
    send("BOOKMARK", json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata }))?;
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
