//! A folder of manifests. Each change replaces one whole file, as the agent would see `kubectl
//! apply`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::packets::probe::Protocol;

/// The folder that an agent under test watches.
#[derive(Debug, Clone)]
pub struct Manifests {
    folder: PathBuf,
}

/// One port of a service, and of its endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Port {
    /// Its name in both objects.
    pub name: &'static str,
    /// Over which protocol.
    pub protocol: Protocol,
    /// The port that clients connect to.
    pub port: u16,
    /// The port that endpoints listen at.
    pub target: u16,
    /// The node port, for a service of type `NodePort`.
    pub node_port: Option<u16>,
}

impl Manifests {
    /// The folder, made when it is not there.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The folder's path, as the agent's `--manifests` takes it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Replaces the file `name` by one with `objects`, in one step.
    pub fn put(&self, name: &str, objects: &[Value]) -> Result<()> {
        let documents: Vec<_> = objects.iter().map(Value::to_string).collect();
        self.put_text(name, &documents.join("\n---\n"))
    }

    /// The same for text in YAML.
    pub fn put_text(&self, name: &str, text: &str) -> Result<()> {
        // The agent must never see half a file; it ignores names with a leading dot.
        let beside = self.folder.join(format!(".{name}.new"));
        fs::write(&beside, text)?;
        fs::rename(&beside, self.folder.join(format!("{name}.yaml")))?;
        Ok(())
    }

    /// Removes the file `name`.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder.join(format!("{name}.yaml"));
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }
}

impl Port {
    /// A TCP port of a service whose endpoints listen at `target`.
    pub const fn tcp(name: &'static str, port: u16, target: u16) -> Self {
        Self { name, protocol: Protocol::Tcp, port, target, node_port: None }
    }

    /// The same over another protocol.
    #[must_use]
    pub const fn over(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// The same with a node port.
    #[must_use]
    pub const fn at_node(self, node_port: u16) -> Self {
        Self { node_port: Some(node_port), ..self }
    }

    fn of_service(&self) -> Value {
        let mut port = json!({
            "name": self.name, "protocol": self.protocol, "port": self.port, "targetPort": self.target,
        });
        if let Some(node_port) = self.node_port {
            port["nodePort"] = node_port.into();
        }
        port
    }
}

/// A Service in namespace `default`: of type `NodePort` if a port has one, else `ClusterIP`.
pub fn service(name: &str, cluster_ips: &[IpAddr], ports: &[Port]) -> Value {
    let kind =
        if ports.iter().any(|port| port.node_port.is_some()) { "NodePort" } else { "ClusterIP" };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "type": kind, "clusterIP": cluster_ips.first(), "clusterIPs": cluster_ips,
            "ipFamilies": cluster_ips.iter().map(|address| family(*address)).collect::<Vec<_>>(),
            "ipFamilyPolicy": if cluster_ips.len() > 1 { "RequireDualStack" } else { "SingleStack" },
            "ports": ports.iter().map(Port::of_service).collect::<Vec<_>>(),
        },
    })
}

/// An EndpointSlice of the service `name` with ready endpoints of one family, each given by its
/// address and its node's name.
pub fn slice(name: &str, ports: &[Port], endpoints: &[(IpAddr, &str)]) -> Value {
    let kind = endpoints.first().map_or("IPv4", |(address, _)| family(*address));
    let endpoint = |(address, node): &(IpAddr, &str)| json!({ "addresses": [address], "nodeName": node, "conditions": { "ready": true } });
    let port =
        |port: &Port| json!({ "name": port.name, "protocol": port.protocol, "port": port.target });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default", "name": format!("{name}-{}", kind.to_lowercase()),
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": kind,
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// A Node with these addresses, in a zone unless that is empty.
pub fn node(name: &str, addresses: &[IpAddr], zone: &str) -> Value {
    let mut labels = json!({ "kubernetes.io/hostname": name });
    if !zone.is_empty() {
        labels["topology.kubernetes.io/zone"] = zone.into();
    }
    let address = |address: &IpAddr| json!({ "type": "InternalIP", "address": address });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": labels },
        "status": { "addresses": addresses.iter().map(address).collect::<Vec<_>>() },
    })
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
