//! The objects that a test makes in its namespace. Pure.

use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{CLOSED, Newcomer, PORT, ServerClass, TestPod};

/// The pods' container.
pub const CONTAINER: &str = "probe";

/// The service that all servers are behind.
pub const SERVICE: &str = "servers";

/// The service that sends a pod to the server on its own node.
pub const LOCAL: &str = "local";

/// The label by which the test's namespaces are found.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "kubectl-denizen");

const ROLE: &str = "denizen.io/test-role";
const CLASS: &str = "denizen.io/test-class";
const FIRST: &str = "denizen.io/test-first";

/// The class of servers that the policy permits: in its rule, and in the servers' label.
const PERMITTED: &str = "permitted";

/// How long a newcomer tries its first connections.
const FIRST_TIME: &str = "3s";

/// A server's pod.
pub fn server(server: &TestPod, image: &str, lifetime: Duration) -> Value {
    let class = match server.class {
        ServerClass::Permitted => PERMITTED,
        ServerClass::Other => "other",
    };
    let first = if server.is_first { "yes" } else { "no" };
    let labels = json!({ ROLE: "server", CLASS: class, FIRST: first });
    let args = ["probe".to_owned(), "serve".to_owned(), format!("--name={}", server.name)];
    let ports = [PORT, CLOSED].map(|port| format!("--port={port}"));
    let args = args.into_iter().chain(ports).collect();
    pod(&server.name, &server.node, labels, image, args, lifetime)
}

/// A newcomer's pod.
pub fn newcomer(newcomer: &Newcomer, image: &str, lifetime: Duration) -> Value {
    let mut args = vec![
        "probe".to_owned(),
        "serve".to_owned(),
        format!("--name={}", newcomer.name),
        format!("--port={PORT}"),
        format!("--timeout={FIRST_TIME}"),
    ];
    args.extend(newcomer.first().iter().map(|probe| format!("--first={}", probe.to)));
    pod(&newcomer.name, &newcomer.node, json!({ ROLE: "newcomer" }), image, args, lifetime)
}

/// A pod that PodSecurity's `restricted` permits. The kubelet ends it after its lifetime, even if
/// nobody deletes it.
fn pod(
    name: &str,
    node: &str,
    labels: Value,
    image: &str,
    args: Vec<String>,
    lifetime: Duration,
) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "nodeName": node,
            "tolerations": [{ "operator": "Exists" }],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": lifetime.as_secs().max(1),
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65534, "runAsGroup": 65534,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": CONTAINER, "image": image,
                // The image is on the node already: the agent runs from it.
                "imagePullPolicy": "IfNotPresent",
                "args": args,
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
                "resources": { "requests": { "cpu": "5m", "memory": "16Mi" } },
            }],
        },
    })
}

/// Both services.
pub fn services() -> [Value; 2] {
    let ports = ["TCP", "UDP"].map(|protocol| {
        let name = protocol.to_lowercase();
        json!({ "name": name, "protocol": protocol, "port": PORT, "targetPort": PORT })
    });
    let service = |name: &str, spec: Value| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec,
        });
        service["spec"]["ipFamilyPolicy"] = "PreferDualStack".into();
        service["spec"]["ports"] = json!(ports);
        service
    };
    [
        service(SERVICE, json!({ "type": "NodePort", "selector": { ROLE: "server" } })),
        service(
            LOCAL,
            json!({
                "type": "ClusterIP", "internalTrafficPolicy": "Local",
                "selector": { ROLE: "server", FIRST: "yes" },
            }),
        ),
    ]
}

/// The policy that isolates newcomers: they may reach one port of servers, and only one class of
/// servers may reach them.
pub fn policy() -> Value {
    let port = json!([
        { "protocol": "TCP", "port": PORT }, { "protocol": "UDP", "port": PORT },
    ]);
    let pods =
        |key: &str, value: &str| json!([{ "podSelector": { "matchLabels": { key: value } } }]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "newcomers" },
        "spec": {
            "podSelector": { "matchLabels": { ROLE: "newcomer" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": pods(CLASS, PERMITTED), "ports": port }],
            "egress": [{ "to": pods(ROLE, "server"), "ports": port }],
        },
    })
}
