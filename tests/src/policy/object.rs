//! The objects, with the fields that policies use, as they are in the API and in manifests. Nothing
//! is defaulted or checked here: invalid values stay as they were written.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::selector::LabelSelector;
use super::tier::ClusterNetworkPolicy;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// All that decides which packets are permitted.
#[derive(Debug, Clone, Default)]
pub struct PolicyWorld {
    /// The nodes that pods run on.
    pub nodes: Vec<NodeObject>,
    /// The namespaces.
    pub namespaces: Vec<NamespaceObject>,
    /// The pods, of every node.
    pub pods: Vec<PodObject>,
    /// The policies.
    pub policies: Vec<NetworkPolicy>,
    /// ClusterNetworkPolicies.
    pub tiers: Vec<ClusterNetworkPolicy>,
}

/// A node, reduced to what policy knows of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeObject {
    /// Its name.
    pub name: String,
    /// Its addresses, of both families.
    pub addresses: Vec<IpAddr>,
    /// Its labels.
    pub labels: Labels,
    /// The ranges that its pods get their addresses from.
    pub pod_cidrs: Vec<String>,
}

/// `metadata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Empty for a Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID; empty in manifests that give none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// RFC 3339, in UTC, so that later ones sort last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Present while the object is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
}

/// A Namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceObject {
    /// Name and labels.
    pub metadata: ObjectMeta,
}

/// A Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodObject {
    /// Names and labels.
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// `spec` of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it runs on.
    pub node_name: String,
    /// Whether it uses the node's network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// The init containers, sidecars among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Its containers.
    pub containers: Vec<Container>,
}

/// A container of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// `Always` makes a sidecar of an init container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// The ports that it declares.
    pub ports: Vec<ContainerPort>,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// TCP if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Its number.
    pub container_port: u16,
}

/// `status` of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// Its addresses, of both families.
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

/// One of a Pod's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIp {
    /// The address.
    pub ip: IpAddr,
}

/// A NetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Its names.
    pub metadata: ObjectMeta,
    pub spec: PolicySpec,
}

/// `spec` of a NetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// The pods of its namespace that it selects.
    pub pod_selector: LabelSelector,
    /// `Ingress` and `Egress`; may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_types: Option<Vec<String>>,
    /// What may reach those pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<PolicyRule>>,
    /// What those pods may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<PolicyRule>>,
}

/// An entry of `ingress`, with `from`, or of `egress`, with `to`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    /// The permitted sources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<PolicyPeer>>,
    /// The permitted destinations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<PolicyPeer>>,
    /// The permitted destination ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PolicyPort>>,
}

/// An entry of `from` or `to`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPeer {
    /// The selected pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// The selected namespaces of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// The selected addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// A block of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The block.
    pub cidr: String,
    /// Ranges within the block that are excluded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// An entry of `ports`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPort {
    /// TCP if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Every port if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<PortNumber>,
    /// The last port of a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_port: Option<i64>,
}

/// A port's number, or the name of container ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortNumber {
    /// A number, as it was written.
    Number(i64),
    /// A name.
    Name(String),
}

impl PolicyWorld {
    /// Namespaces, pods and policies as manifests.
    pub fn manifests(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        let mut add = |version: &str, kind: &str, object: Value| {
            let mut manifest = json!({ "apiVersion": version, "kind": kind });
            for (key, value) in object.as_object().into_iter().flatten() {
                manifest[key] = value.clone();
            }
            objects.push(manifest);
        };
        let value = "an object has only keys that are texts";
        for it in &self.namespaces {
            add("v1", "Namespace", serde_json::to_value(it).expect(value));
        }
        for it in &self.pods {
            add("v1", "Pod", serde_json::to_value(it).expect(value));
        }
        for it in &self.policies {
            add("networking.k8s.io/v1", "NetworkPolicy", serde_json::to_value(it).expect(value));
        }
        for it in &self.tiers {
            let object = serde_json::to_value(it).expect(value);
            add("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", object);
        }
        // Node objects only matter to ClusterNetworkPolicies.
        for NodeObject { name, addresses, labels, pod_cidrs } in
            self.nodes.iter().filter(|_| !self.tiers.is_empty())
        {
            let addresses =
                addresses.iter().map(|ip| json!({ "type": "InternalIP", "address": ip }));
            let object = json!({
                "metadata": { "name": name, "labels": labels },
                "spec": { "podCIDRs": pod_cidrs },
                "status": { "addresses": addresses.collect::<Vec<_>>() },
            });
            add("v1", "Node", object);
        }
        objects
    }

    /// The pod with this name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodObject> {
        self.pods.iter().find(|pod| pod.metadata.is(namespace, name))
    }

    /// Adds `policy`, or replaces the policy with its name.
    pub fn put_policy(&mut self, policy: NetworkPolicy) {
        let ObjectMeta { namespace, name, .. } = &policy.metadata;
        self.policies.retain(|other| !other.metadata.is(namespace, name));
        self.policies.push(policy);
    }
}

impl ObjectMeta {
    /// Whether it has this namespace and name.
    pub fn is(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.name == name
    }
}
