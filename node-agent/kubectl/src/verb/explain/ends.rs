//! Names and addresses, and which node they are on, as the API tells it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail, ensure};

use crate::cluster::{Api, NodeAgent};
use crate::objects::{self, PodObject, ServiceObject, SliceEndpoint, SliceObject, percent};
use crate::verb::policies::pod_object;

/// The sender of a connection.
#[derive(Debug)]
pub struct Sender {
    /// The name or address by which the agent of its node knows the sender.
    pub query: String,
    pub node: String,
    /// Its own addresses.
    pub ips: Vec<IpAddr>,
    /// It is a process of the node, or of a pod in the node's network.
    pub is_in_node_network: bool,
}

/// What the connection is addressed to.
#[derive(Debug)]
pub struct Destination {
    /// The name or address by which the sender's agent knows the destination.
    pub query: String,
    /// `NAMESPACE/NAME` of a service.
    service: Option<String>,
    /// Its cluster IPs.
    cluster_ips: Vec<IpAddr>,
    protocol: String,
}

/// Where an address is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressOwner {
    pub pod: Option<String>,
    pub node: Option<String>,
}

/// Where addresses are, as far as is known already.
#[derive(Debug, Default)]
pub struct AddressOwners(BTreeMap<IpAddr, AddressOwner>);

const PROTOCOLS: [&str; 5] = ["tcp", "udp", "sctp", "icmp", "icmpv6"];

impl Sender {
    /// If `to` is a node's address, it also tells which node gets the packets.
    pub async fn find(
        api: &Api,
        node_agents: &[NodeAgent],
        from: &str,
        via: Option<&str>,
        to: &str,
    ) -> anyhow::Result<Self> {
        let Ok(address) = from.parse::<IpAddr>() else {
            let pod = api.qualified(from);
            let object = pod_object(api, &pod).await?;
            return Self::of_pod(&object, &pod);
        };
        if let Some(node) = node_of(node_agents, address) {
            let (query, ips) = (from.to_owned(), vec![address]);
            return Ok(Self { query, node, ips, is_in_node_network: true });
        }
        if let Some(pod) = pod_at(api, address).await? {
            let sender = Self::of_pod(&pod, from)?;
            return Ok(Self { query: from.to_owned(), ips: vec![address], ..sender });
        }
        let target = split(to).0.parse::<SocketAddr>().ok();
        let at_node = target.and_then(|target| node_of(node_agents, target.ip()));
        let Some(node) = via.map(str::to_owned).or(at_node) else {
            bail!(
                "{from} is no pod's and no node's address: say --via NODE, which gets its packets"
            );
        };
        ensure!(
            node_agents.iter().any(|node_agent| node_agent.node == node),
            "there is no node {node}"
        );
        let (query, ips) = (from.to_owned(), vec![address]);
        Ok(Self { query, node, ips, is_in_node_network: false })
    }

    fn of_pod(pod: &PodObject, name: &str) -> anyhow::Result<Self> {
        let ips: Vec<IpAddr> = pod.ips().collect();
        let node = pod.spec.node_name.clone();
        ensure!(!node.is_empty(), "pod {name} is on no node yet");
        let first = *ips.first().with_context(|| format!("pod {name} has no address yet"))?;
        // Its node's agent knows a pod by name, but a pod in the node's network only by address.
        let query = if pod.spec.host_network { first.to_string() } else { name.to_owned() };
        Ok(Self { query, node, ips, is_in_node_network: pod.spec.host_network })
    }
}

impl Destination {
    pub async fn find(api: &Api, sender: &Sender, to: &str) -> anyhow::Result<Self> {
        let (end, protocol) = split(to);
        let suffix = protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
        let protocol = protocol.unwrap_or("tcp").to_owned();
        let is_address = end.parse::<SocketAddr>().is_ok() || end.parse::<IpAddr>().is_ok();
        if is_address {
            let (query, cluster_ips) = (format!("{end}{suffix}"), Vec::new());
            return Ok(Self { query, service: None, cluster_ips, protocol });
        }
        let end = api.qualified(end);
        let (name, port) = match end.rsplit_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (&*end, None),
        };
        if let Some(object) = service_object(api, name).await? {
            let (query, cluster_ips) = (format!("{end}{suffix}"), object.cluster_ips().collect());
            return Ok(Self { query, service: Some(name.to_owned()), cluster_ips, protocol });
        }
        let pod = pod_object(api, name).await;
        let pod = pod.with_context(|| format!("{name} is no service either"))?;
        let is_reachable = |ip: &IpAddr| sender.ips.iter().any(|of| of.is_ipv4() == ip.is_ipv4());
        let ip = pod.ips().find(is_reachable);
        let ip = ip.with_context(|| format!("pod {name} has no address of the sender's family"))?;
        let query = match port {
            Some(port) => {
                let port = port.parse().with_context(|| format!("{port:?} is no pod's port"))?;
                format!("{}{suffix}", SocketAddr::new(ip, port))
            }
            None => format!("{ip}{suffix}"),
        };
        Ok(Self { query, service: None, cluster_ips: Vec::new(), protocol })
    }

    /// `None` for a name, and for a ping.
    pub fn address(&self) -> Option<SocketAddr> {
        split(&self.query).0.parse().ok()
    }

    /// What packets are addressed to before a service's rules translate them.
    pub fn frontend(&self, sender: &Sender) -> Option<IpAddr> {
        let is_reachable = |ip: &IpAddr| sender.ips.iter().any(|of| of.is_ipv4() == ip.is_ipv4());
        let named = || self.cluster_ips.iter().copied().find(is_reachable);
        self.address().map(|address| address.ip()).or_else(named)
    }

    /// An endpoint, as `explain` takes it.
    pub fn text_of(&self, target: SocketAddr) -> String {
        format!("{target}/{}", self.protocol)
    }
}

impl AddressOwners {
    /// Where a service's endpoints are: one request for all of them.
    pub async fn of(api: &Api, destination: &Destination) -> anyhow::Result<Self> {
        let Some((namespace, name)) =
            destination.service.as_ref().and_then(|service| service.split_once('/'))
        else {
            return Ok(Self::default());
        };
        let namespace = percent(namespace);
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
        let selector = format!("kubernetes.io/service-name={name}");
        let slices: Vec<SliceObject> =
            objects::list(&api.client, &path, &[("labelSelector", &selector)])
                .await
                .context("cannot list endpoints (needs: list endpointslices)")?;
        let mut owners = BTreeMap::new();
        for endpoint in slices.into_iter().flat_map(|slice| slice.endpoints) {
            let SliceEndpoint { addresses, node_name: node, target_ref, .. } = endpoint;
            let pod = target_ref.filter(|target| target.kind == "Pod");
            let pod = pod.map(|target| format!("{}/{}", target.namespace, target.name));
            let ips = addresses.iter().filter_map(|address| address.parse().ok());
            owners
                .extend(ips.map(|ip| (ip, AddressOwner { pod: pod.clone(), node: node.clone() })));
        }
        Ok(Self(owners))
    }

    pub async fn find(
        &mut self,
        api: &Api,
        node_agents: &[NodeAgent],
        address: IpAddr,
    ) -> anyhow::Result<AddressOwner> {
        if let Some(owner) = self.0.get(&address).filter(|owner| owner.node.is_some()) {
            return Ok(owner.clone());
        }
        let owner = match node_of(node_agents, address) {
            Some(node) => AddressOwner { pod: None, node: Some(node) },
            None => {
                pod_at(api, address).await?.map(|pod| AddressOwner::of(&pod)).unwrap_or_default()
            }
        };
        self.0.insert(address, owner.clone());
        Ok(owner)
    }
}

impl AddressOwner {
    fn of(pod: &PodObject) -> Self {
        let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        Self { pod: Some(name), node: Some(pod.spec.node_name.clone()) }
    }
}

/// The part of `to` before the protocol, and the protocol.
fn split(to: &str) -> (&str, Option<&str>) {
    match to.rsplit_once('/') {
        Some((end, last)) if PROTOCOLS.contains(&&*last.to_ascii_lowercase()) => (end, Some(last)),
        Some(_) | None => (to, None),
    }
}

fn node_of(node_agents: &[NodeAgent], address: IpAddr) -> Option<String> {
    let is_its = |node_agent: &&NodeAgent| {
        let object = node_agent.object.as_ref();
        object.is_some_and(|node| node.internal_ips().any(|ip| ip == address))
    };
    node_agents.iter().find(is_its).map(|node_agent| node_agent.node.clone())
}

/// The pod with this address, while it runs; no pod in a node's network.
async fn pod_at(api: &Api, address: IpAddr) -> anyhow::Result<Option<PodObject>> {
    let selector = format!("status.podIP={address}");
    let pods: Vec<PodObject> =
        objects::list(&api.client, "/api/v1/pods", &[("fieldSelector", &selector)])
            .await
            .context("cannot look for the pod of an address (needs: list pods)")?;
    let has_ended = |pod: &PodObject| ["Succeeded", "Failed"].contains(&&*pod.status.phase);
    Ok(pods.into_iter().find(|pod| !pod.spec.host_network && !has_ended(pod)))
}

async fn service_object(api: &Api, name: &str) -> anyhow::Result<Option<ServiceObject>> {
    let (namespace, name) = name.split_once('/').context("a name is NAMESPACE/NAME")?;
    let path = format!("/api/v1/namespaces/{}/services/{}", percent(namespace), percent(name));
    match objects::get(&api.client, &path).await {
        Ok(service) => Ok(Some(service)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).context("cannot read the service (needs: get services)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_told_from_a_name() {
        let cases = [
            ("a/web:80", ("a/web:80", None)),
            ("web", ("web", None)),
            ("a/web:80/UDP", ("a/web:80", Some("UDP"))),
            ("10.0.0.1/icmp", ("10.0.0.1", Some("icmp"))),
            ("a/icmp-probe", ("a/icmp-probe", None)),
            ("[fd00::1]:53/udp", ("[fd00::1]:53", Some("udp"))),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text), expected, "{text}");
        }
    }
}
