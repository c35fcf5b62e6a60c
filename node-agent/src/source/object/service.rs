//! Service (`v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::service;
pub(super) use self::convert::{port_number, protocol};
use super::Metadata;

/// A Service, cut down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Service {
    /// What every object has.
    #[serde(default)]
    pub metadata: Metadata,
    /// What is wanted.
    #[serde(default)]
    pub spec: Option<ServiceSpec>,
    /// What is: the addresses that a load balancer was given.
    #[serde(default)]
    pub status: Option<ServiceStatus>,
}

/// `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The first of [`Self::cluster_ips`]; `None` or empty where there is none.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// One for each family at most.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    /// Addresses that somebody else routes to the nodes.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    /// Who may use the load balancer's addresses.
    pub load_balancer_source_ranges: Option<Vec<String>>,
    /// What it serves.
    pub ports: Option<Vec<ServicePort>>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<String>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// `None` or `ClientIP`.
    pub session_affinity: Option<String>,
    /// Its parameters.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// Where a load balancer asks whether this node has endpoints.
    pub health_check_node_port: Option<i64>,
}

/// One entry of `spec.ports`. `targetPort` is not read: the slices say it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Joins it to the slices' ports; may be missing where it is the only one.
    pub name: Option<String>,
    /// TCP when missing.
    pub protocol: Option<String>,
    /// Where clients connect to.
    pub port: Option<i64>,
    /// On the nodes' own addresses; 0 or missing where there is none.
    pub node_port: Option<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SessionAffinityConfig {
    /// For `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// How long a client that is silent is remembered.
    pub timeout_seconds: Option<i64>,
}

/// `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// What the load balancer told.
    pub load_balancer: Option<LoadBalancerStatus>,
}

/// `status.loadBalancer`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LoadBalancerStatus {
    /// Where it can be reached.
    pub ingress: Option<Vec<Ingress>>,
}

/// One entry of `status.loadBalancer.ingress`. Host names and ports are not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// Its address, where it has one.
    pub ip: Option<String>,
    /// `VIP` (also when missing): packets arrive with that destination. `Proxy`: they do not.
    pub ip_mode: Option<String>,
}
