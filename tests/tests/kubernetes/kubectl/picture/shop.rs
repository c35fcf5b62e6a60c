//! A shop as the API and its nodes' agents tell of it, well or ill; and a cluster of many pods.

use anyhow::Result;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

/// A name that a browser would run, were it not escaped; it would give itself away by the title.
pub const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShopFault {
    Nothing,
    /// A NetworkPolicy keeps a pod from the database.
    Policy,
    /// A service has no endpoint that is ready, one's is silent, and a node's agent crashes.
    Endpoint,
}

/// The pods: their owner's kind and name, their number, and their node.
const WORKLOADS: [(&str, &str, usize, usize); 10] = [
    ("Deployment", "storefront", 3, 1),
    ("Deployment", "cart", 2, 2),
    ("Deployment", "catalog", 2, 3),
    ("Deployment", "checkout", 2, 1),
    ("Deployment", "payment", 1, 2),
    ("Deployment", "search", 2, 3),
    ("StatefulSet", "db", 1, 2),
    ("StatefulSet", "cache", 1, 3),
    ("Job", "batch", 1, 1),
    ("DaemonSet", "log-agent", 3, 1),
];

/// The services, in front of the workloads of the same name: the port's name, and its number.
const SERVICES: [(&str, &str, u16); 8] = [
    ("storefront", "http", 80),
    ("cart", "http", 80),
    ("catalog", "grpc", 9000),
    ("checkout", "http", 80),
    ("payment", "http", 80),
    ("search", "http", 9200),
    ("db", "postgres", 5432),
    ("cache", "redis", 6379),
];

/// Who asks which service, and how many connections that are.
const CALLS: [(&str, &str, usize); 13] = [
    ("storefront", "cart", 14),
    ("storefront", "catalog", 120),
    ("storefront", "checkout", 6),
    ("storefront", "search", 30),
    ("cart", "cache", 40),
    ("cart", "db", 4),
    ("catalog", "db", 9),
    ("catalog", "cache", 25),
    ("catalog", "search", 11),
    ("checkout", "payment", 3),
    ("checkout", "db", 5),
    ("checkout", "cart", 6),
    ("payment", "db", 2),
];

pub struct ShopObjects {
    fault: ShopFault,
}

fn pod_ip(workload: usize, at: usize) -> String {
    format!("10.0.{}.{}", WORKLOADS[workload].3, 10 * workload + at)
}

fn pod_name(name: &str, at: usize) -> String {
    format!("shop/{name}-{at}")
}

fn workload(name: &str) -> usize {
    WORKLOADS.iter().position(|(_, own, ..)| *own == name).expect("it is in the list")
}

fn service_at(name: &str) -> usize {
    SERVICES.iter().position(|(own, ..)| *own == name).expect("it is in the list")
}

fn service_ip(name: &str) -> String {
    format!("10.96.0.{}", service_at(name) + 1)
}

fn end(address: String, port: u16, name: &str) -> Value {
    json!({ "address": format!("{address}:{port}"), "name": name })
}

impl ShopObjects {
    pub fn new(fault: ShopFault) -> Self {
        Self { fault }
    }

    pub fn put(&self, workstation: &Workstation) -> Result<()> {
        for node in 1..=3 {
            let name = format!("n{node}");
            workstation.node(&name, &format!("192.168.0.{node}"))?;
            workstation.agent(&name, &json!({ "running": {} }), &[])?;
        }
        if self.fault == ShopFault::Endpoint {
            workstation.agent(
                "n3",
                &json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
                &[],
            )?;
        }
        for (at, (kind, name, number, node)) in WORKLOADS.iter().enumerate() {
            for pod in 0..*number {
                workstation.api.put(&pod_object(
                    "shop",
                    kind,
                    name,
                    pod,
                    &pod_ip(at, pod),
                    *node,
                ))?;
            }
        }
        for (name, port, number) in SERVICES {
            let is_dead = self.fault == ShopFault::Endpoint && name == "payment";
            let at = workload(name);
            let ips: Vec<String> = (0..WORKLOADS[at].2).map(|pod| pod_ip(at, pod)).collect();
            service(workstation, "shop", name, &service_ip(name), (port, number), &ips, !is_dead)?;
        }
        let fault = self.fault;
        workstation.execute(move |node, _| {
            let node: usize = node.trim_start_matches('n').parse().unwrap_or_default();
            Execution::relays(move |request| answer(fault, node, request))
        });
        Ok(())
    }
}

pub fn pod_object(
    namespace: &str,
    kind: &str,
    owner: &str,
    pod: usize,
    ip: &str,
    node: usize,
) -> Value {
    let containers = json!([{ "name": "main", "image": "x" }]);
    let (kind, name) = match kind {
        "Deployment" => ("ReplicaSet", format!("{owner}-5d8f")),
        kind => (kind, owner.to_owned()),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": format!("{owner}-{pod}"),
            "labels": { "app": owner, "pod-template-hash": "5d8f" },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name },
            ] },
        "spec": { "nodeName": format!("n{node}"), "containers": containers },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
    })
}

pub fn service(
    workstation: &Workstation,
    namespace: &str,
    name: &str,
    ip: &str,
    (port, number): (&str, u16),
    endpoints: &[String],
    is_ready: bool,
) -> Result<()> {
    workstation.api.put(&json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "clusterIP": ip, "clusterIPs": [ip],
            "ports": [{ "name": port, "port": number }] },
    }))?;
    let endpoint = |ip: &String| json!({ "addresses": [ip], "conditions": { "ready": is_ready } });
    workstation.api.put(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "namespace": namespace, "name": format!("{name}-1"),
            "labels": { "kubernetes.io/service-name": name } },
        "addressType": "IPv4",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{ "name": port, "port": number }],
    }))
}

/// What a node's agent says.
fn answer(fault: ShopFault, node: usize, request: &Value) -> Value {
    let answer = match request.as_object().and_then(|request| request.keys().next()) {
        Some(key) if key == "connections" => {
            let connections = connections(fault, node);
            json!({ "total": connections.len(), "connections": connections })
        }
        Some(key) if key == "drops" => json!({ "drops": drops(fault) }),
        Some(key) if key == "dropped" => {
            json!({ "dropped": dropped(fault, node), "hasMore": false })
        }
        Some(key) if key == "explain" => json!({ "verdict": "drop", "steps": [
            { "what": "firewall", "why": "no policy permits this" }], "policies": [
            { "direction": "egress", "pod": "shop/batch-0", "result": "refused",
              "isolatedBy": ["shop/db-only"] }] }),
        Some(_) | None => return json!({ "error": "not asked for" }),
    };
    json!({ "answer": answer })
}

/// Each connection is in the table of the client's node.
fn connections(fault: ShopFault, node: usize) -> Vec<Value> {
    let mut all = Vec::new();
    for (call, (from, to, count)) in CALLS.iter().enumerate() {
        if fault == ShopFault::Endpoint && *to == "payment" {
            continue;
        }
        let (client, target) = (workload(from), workload(to));
        let (_, port, number) = SERVICES[service_at(to)];
        let is_silent = fault == ShopFault::Endpoint && (*from, *to) == ("cart", "cache");
        for at in 0..*count {
            let (pod, endpoint) = (at % WORKLOADS[client].2, at % WORKLOADS[target].2);
            let from_port = 30_000 + (100 * call + at) as u16;
            if WORKLOADS[client].3 == node {
                all.push(json!({
                    "protocol": "tcp", "state": if is_silent { "syn_sent" } else { "established" },
                    "client": end(pod_ip(client, pod), from_port, &pod_name(from, pod)),
                    "destination": { "address": format!("{}:{number}", service_ip(to)) },
                    "service": format!("shop/{to}:{port}"),
                    "endpoint": end(pod_ip(target, endpoint), number, &pod_name(to, endpoint)),
                }));
            }
        }
    }
    if node == 1 {
        for at in 0..20 {
            all.push(json!({
                "protocol": "tcp", "state": "established",
                "client": { "address": format!("203.0.113.{at}:4000") },
                "destination": { "address": "192.168.0.1:30080", "name": "this node" },
                "service": "shop/storefront:http",
                "endpoint": end(pod_ip(0, at % 3), 80, &pod_name("storefront", at % 3)),
            }));
        }
        all.push(json!({
            "protocol": "tcp", "client": end("192.168.0.1".into(), 5000, "this node"),
            "destination": end(pod_ip(0, 0), 8081, "shop/storefront-0"),
        }));
        all.push(json!({
            "protocol": "tcp", "state": "established",
            "client": end(pod_ip(9, 0), 5001, "shop/log-agent-0"),
            "destination": { "address": "198.51.100.7:443" },
        }));
        all.push(json!({
            "protocol": "tcp", "state": "established",
            "client": end(pod_ip(8, 0), 5002, "shop/batch-0"),
            "destination": { "address": "10.96.9.9:80" }, "service": format!("shop/{HOSTILE}:http"),
        }));
    }
    all
}

const NOT_PERMITTED: &str = "no policy permits this to reach the pod";
const NO_ENDPOINT: &str = "no endpoints: refuse at once";

fn drops(fault: ShopFault) -> Value {
    match fault {
        ShopFault::Nothing => json!([]),
        ShopFault::Policy => json!([{ "table": "ip denizen-firewall", "verdict": "dropped",
            "reason": NOT_PERMITTED, "packets": 1234 }]),
        ShopFault::Endpoint => json!([{ "table": "ip denizen", "verdict": "refused",
            "reason": NO_ENDPOINT, "packets": 77 }]),
    }
}

fn dropped(fault: ShopFault, node: usize) -> Value {
    match (fault, node) {
        (ShopFault::Policy, 2) => json!([{
            "verdict": "dropped", "reason": NOT_PERMITTED, "policy": "shop/db-only",
            "table": "ip denizen-firewall", "packets": 9, "protocol": "tcp",
            "source": end(pod_ip(8, 0), 41_000, "shop/batch-0"),
            "destination": end("10.0.2.60".into(), 5432, "shop/db-0"),
        }]),
        (ShopFault::Endpoint, 1) => json!([{
            "verdict": "refused", "reason": NO_ENDPOINT, "table": "ip denizen", "packets": 5,
            "protocol": "tcp", "source": end(pod_ip(3, 0), 41_001, "shop/checkout-0"),
            "destination": { "address": format!("{}:80", service_ip("payment")) },
            "service": "shop/payment:http",
        }]),
        (_, _) => json!([]),
    }
}

/// So many pods in thirty namespaces, on fifty nodes. Each workload has five pods, and asks the
/// service of others.
pub fn many_pods(workstation: &Workstation, pods: usize) -> Result<()> {
    const NODES: usize = 50;
    const PODS: usize = 5;
    const NAMESPACES: usize = 30;
    (0..NODES).try_for_each(|node| workstation.node_with_agent(&format!("n{node}")))?;
    let workloads = pods / PODS;
    let own = move |at: usize| {
        (format!("ns-{:02}", at % NAMESPACES), format!("app-{:02}", at / NAMESPACES))
    };
    let ip = |at: usize, pod: usize| format!("10.{}.{}.{}", pod, at / 250, at % 250 + 1);
    let cluster_ip = |at: usize| format!("10.96.{}.{}", at / 250, at % 250 + 1);
    for at in 0..workloads {
        let (namespace, name) = own(at);
        for pod in 0..PODS {
            let node = (at * PODS + pod) % NODES;
            workstation.api.put(&pod_object(
                &namespace,
                "Deployment",
                &name,
                pod,
                &ip(at, pod),
                node,
            ))?;
        }
        service(workstation, &namespace, &name, &cluster_ip(at), ("http", 80), &[ip(at, 0)], true)?;
    }
    // The last of a namespace ask its store.
    let store_of = |at: usize| at % NAMESPACES + NAMESPACES * 19;
    workstation.execute(move |node, _| {
        let node: usize = node.trim_start_matches('n').parse().unwrap_or_default();
        let answer = move |request: &Value| {
            let connection = |number: usize| {
                let at = (node + NODES * number) % workloads;
                // Some ask others of their namespace, a step further on; some ask all alike.
                let to = match number % 4 {
                    0 => at / 200 % 3,
                    _ if at / NAMESPACES >= 12 => store_of(at),
                    step => at + NAMESPACES * 2 * step,
                };
                let to = to % workloads;
                let ((from_space, from), (to_space, to_name)) = (own(at), own(to));
                json!({
                    "protocol": "tcp", "state": "established",
                    "client": end(ip(at, number % PODS), 1024 + number as u16,
                        &format!("{from_space}/{from}-{}", number % PODS)),
                    "destination": { "address": format!("{}:80", cluster_ip(to)) },
                    "service": format!("{to_space}/{to_name}:http"),
                    "endpoint": end(ip(to, 0), 8080, &format!("{to_space}/{to_name}-0")),
                })
            };
            match request.get("connections") {
                Some(query) => {
                    let shown = query["limit"].as_u64().unwrap_or_default().min(2000) as usize;
                    let all: Vec<Value> = (0..shown).map(connection).collect();
                    json!({ "answer": { "total": 20_000, "connections": all } })
                }
                None => json!({ "answer": {} }),
            }
        };
        Execution::relays(answer)
    });
    Ok(())
}
