//! The few fields of Kubernetes objects that count. Other fields, such as a node's list of images,
//! are not kept.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Objects of one page of a list.
const PAGE: &str = "500";

/// An object's name, and what else is in `metadata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub creation_timestamp: String,
    pub deletion_timestamp: Option<String>,
    pub owner_references: Vec<OwnerReference>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    pub kind: String,
    pub name: String,
    pub controller: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub metadata: Metadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub taints: Vec<Taint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub effect: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

impl NodeObject {
    pub fn is_linux(&self) -> bool {
        self.metadata.labels.get("kubernetes.io/os").is_none_or(|os| os == "linux")
    }

    /// The condition `Ready`; `None` if the kubelet has not reported it.
    pub fn is_ready(&self) -> Option<bool> {
        let ready = self.status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        Some(ready.status == "True")
    }

    /// The addresses inside the cluster.
    pub fn internal_ips(&self) -> impl Iterator<Item = IpAddr> {
        let internal = self.status.addresses.iter().filter(|of| of.kind == "InternalIP");
        internal.filter_map(|of| of.address.parse().ok())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodObject {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: String,
    pub host_network: bool,
    pub containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub args: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: String,
    pub reason: String,
    pub message: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    pub container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    pub state: ContainerState,
    pub last_state: ContainerState,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub running: Option<Value>,
    pub waiting: Option<Waiting>,
    pub terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    pub exit_code: i32,
    pub reason: String,
}

impl PodObject {
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.status.pod_ips.iter().filter_map(|of| of.ip.parse().ok())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceObject {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub node_port: Option<u16>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<PodIp>,
}

impl ServiceObject {
    /// Whether agents program connections to the service: a headless service is only a DNS name.
    pub fn has_frontend(&self) -> bool {
        self.spec.cluster_ip.parse::<IpAddr>().is_ok()
    }

    /// The node port of the port of this name, once it has one.
    pub fn node_port(&self, name: &str) -> Option<u16> {
        let port = self.spec.ports.iter().find(|port| port.name == name)?;
        port.node_port.filter(|port| *port > 0)
    }

    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        let balanced = self.status.load_balancer.ingress.iter().map(|of| &of.ip);
        let others = self.spec.external_ips.iter().chain(balanced);
        self.cluster_ips().chain(others.filter_map(|ip| ip.parse().ok()))
    }

    pub fn cluster_ips(&self) -> impl Iterator<Item = IpAddr> {
        let all = self.spec.cluster_ips.iter().chain([&self.spec.cluster_ip]);
        all.filter_map(|ip| ip.parse().ok())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SliceObject {
    pub metadata: Metadata,
    pub endpoints: Vec<SliceEndpoint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    pub addresses: Vec<String>,
    pub node_name: Option<String>,
    pub target_ref: Option<TargetRef>,
    pub conditions: EndpointConditions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
}

impl SliceEndpoint {
    /// Whether the endpoint is ready, which is the default.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready != Some(false)
    }
}

#[derive(Deserialize)]
struct ListPage<T> {
    #[serde(default)]
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: String,
}

/// All objects of a list.
pub async fn list<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    selectors: &[(&str, &str)],
) -> Result<Vec<T>, kube::Error> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let mut query = vec![("limit", PAGE)];
        query.extend(selectors);
        query.extend((!next.is_empty()).then_some(("continue", &*next)));
        let page: ListPage<T> = get(client, &format!("{path}?{}", encoded(&query))).await?;
        all.extend(page.items);
        next = page.metadata.next;
        if next.is_empty() {
            return Ok(all);
        }
    }
}

/// One object, or a page.
pub async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, kube::Error> {
    let request = http::Request::get(path).body(Vec::new());
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// Makes an object. Returns it as the server has it.
pub async fn create<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    object: &Value,
) -> Result<T, kube::Error> {
    send(client, http::Request::post(path), object).await
}

/// Deletes an object, as these `DeleteOptions` say.
pub async fn delete(client: &Client, path: &str, options: &Value) -> Result<(), kube::Error> {
    send::<Value>(client, http::Request::delete(path), options).await.map(drop)
}

async fn send<T: DeserializeOwned>(
    client: &Client,
    request: http::request::Builder,
    body: &Value,
) -> Result<T, kube::Error> {
    let request = request.header(http::header::CONTENT_TYPE, "application/json");
    let body = body.to_string().into_bytes();
    client.request(request.body(body).map_err(kube::Error::HttpError)?).await
}

/// The server's answer as text.
pub async fn get_text(client: &Client, path: &str) -> anyhow::Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    client.request_text(request).await.with_context(|| format!("cannot read {path}"))
}

fn encoded(query: &[(&str, &str)]) -> String {
    let pair = |(key, value): &(&str, &str)| format!("{key}={}", percent(value));
    query.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Percent-encodes a part of a path, or a value of a query.
pub fn percent(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let each = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_a_url_is_escaped() {
        assert_eq!(percent("a-b.c_9~"), "a-b.c_9~");
        assert_eq!(percent("../x?y=1&z#ü"), "..%2Fx%3Fy%3D1%26z%23%C3%BC");
        assert_eq!(encoded(&[("a", "x=y"), ("b", "1")]), "a=x%3Dy&b=1");
    }

    #[test]
    fn objects_without_most_fields_are_read() {
        let node: NodeObject = serde_json::from_str(r#"{"metadata":{"name":"n"}}"#).unwrap();
        assert!(node.is_linux() && node.is_ready().is_none());
        let pod: PodObject = serde_json::from_str(
            r#"{"spec":{"nodeName":"n"},"status":{"podIPs":[{"ip":"10.0.0.1"},{"ip":"x"}]}}"#,
        )
        .unwrap();
        assert_eq!(pod.ips().count(), 1);
    }
}
