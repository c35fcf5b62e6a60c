//! An API server with many pods, which makes each pod when it sends it.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use denizen_fixture::protobuf;
use denizen_tests::bench::objects::{self, LOCAL, REPLICAS, service, slice, tier};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// What the server has.
#[derive(Debug, Clone, Copy)]
pub struct ServedCluster {
    pub pods: usize,
    pub policies: usize,
    pub namespaces: usize,
    /// Changes of pods' statuses, after the list.
    pub updates: usize,
    /// Services, each with one EndpointSlice.
    pub services: usize,
    /// Whether the server offers JSON only, no protobuf.
    pub only_json: bool,
    /// Whether the server compresses lists for clients that accept gzip.
    pub gzip: bool,
}

/// Serves a cluster at a listener, forever. Returns a kubeconfig file for it, written into
/// `folder`.
pub fn start(cluster: ServedCluster, listener: TcpListener, folder: &Path) -> Result<PathBuf> {
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
type Count = fn(ServedCluster) -> usize;
type Make = fn(ServedCluster, usize) -> Value;

/// Answers a list, or a watch that brings the changes.
fn serve(stream: TcpStream, cluster: ServedCluster) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let (mut accepted, mut gzip) = (String::new(), false);
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        match line.to_lowercase() {
            header if header.starts_with("accept:") => accepted = header,
            header if header.starts_with("accept-encoding:") => gzip = header.contains("gzip"),
            _ => {}
        }
    }
    let in_protobuf = !cluster.only_json && accepted.contains("protobuf");
    let gzip = cluster.gzip && gzip;
    let content_type =
        if in_protobuf { "application/vnd.kubernetes.protobuf" } else { "application/json" };
    let mut to = BufWriter::with_capacity(1 << 16, stream);
    let asked = |plural: &str| request.contains(&format!("/{plural}?"));
    let Some((_, version, kind, count, make)) = KINDS.into_iter().find(|kind| asked(kind.0)) else {
        to.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
        return to.flush();
    };
    write!(to, "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n")?;
    to.write_all(if gzip { b"content-encoding: gzip\r\n\r\n" } else { b"\r\n" })?;
    // The field selector of the pods of one node.
    let of_node = request.contains("spec.nodeName");
    let cluster = match of_node {
        true => ServedCluster { pods: cluster.pods.min(LOCAL), updates: 0, ..cluster },
        false => cluster,
    };
    if !request.contains("watch=true") {
        let objects = (0..count(cluster)).map(|number| make(cluster, number));
        let mut to: Box<dyn Write> = match gzip {
            true => Box::new(GzEncoder::new(to, Compression::fast())),
            false => Box::new(to),
        };
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
    let ServedCluster { pods, updates, .. } = cluster;
    if kind == "Pod" && updates > 0 {
        for update in 1..=updates {
            send("MODIFIED", pod(cluster, update % pods, update))?;
        }
        send("DELETED", pod(cluster, pods - 1, updates))?;
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

/// In protobuf, lengths come first, so each object is made twice.
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

/// Ingress from two tiers of the namespace and one app of any, to two ports; egress to the
/// namespace, and to DNS anywhere.
fn policy(cluster: ServedCluster, number: usize) -> Value {
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

fn team(cluster: ServedCluster, app: usize) -> String {
    format!("team-{}", app % cluster.namespaces)
}

/// A pod of this cluster.
pub fn pod(cluster: ServedCluster, number: usize, ready: usize) -> Value {
    objects::pod(number, &namespace_of(cluster, number), ready)
}

/// The namespace of a pod.
pub fn namespace_of(cluster: ServedCluster, number: usize) -> String {
    team(cluster, number / REPLICAS)
}
