//! Service (`v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::{foreign_service, service};
pub(super) use self::convert::{port_number, protocol};
use super::Metadata;

/// A Service, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceObject {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: Option<ServiceSpec>,
    /// `status`: the load balancer's addresses.
    #[serde(default)]
    pub status: Option<ServiceStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The first of [`Self::cluster_ips`]; missing or empty if there is none.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// At most one for each family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    /// Addresses that somebody else routes to the nodes.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    /// The clients that may use the load balancer's addresses.
    pub load_balancer_source_ranges: Option<Vec<String>>,
    pub ports: Option<Vec<SpecPort>>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<String>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// `None` or `ClientIP`.
    pub session_affinity: Option<String>,
    /// Parameters of the session affinity.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// The node port at which a load balancer asks whether this node has endpoints.
    pub health_check_node_port: Option<i64>,
}

/// One entry of `spec.ports`. `targetPort` is not read: the slices have the resolved ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecPort {
    /// Matches the name of the slices' port; may be missing if it is the only port.
    pub name: Option<String>,
    /// TCP when missing.
    pub protocol: Option<String>,
    /// The port that clients connect to.
    pub port: Option<i64>,
    /// The port on the nodes' own addresses; 0 or missing if there is none.
    pub node_port: Option<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SessionAffinityConfig {
    /// Parameters of `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// How long a silent client keeps its endpoint, in seconds.
    pub timeout_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// What the load balancer reports.
    pub load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LoadBalancerStatus {
    /// Its addresses.
    pub ingress: Option<Vec<Ingress>>,
}

/// One entry of `status.loadBalancer.ingress`. Host names and ports are not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    pub ip: Option<String>,
    /// `VIP` (the default): packets arrive with that destination. `Proxy`: they do not.
    pub ip_mode: Option<String>,
}
