//! Service (`v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::{foreign_service, service};
pub(super) use self::convert::{port_number, protocol};
use super::{BorrowedText, Metadata};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

/// A Service, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceObject<'a> {
    #[serde(default, borrow)]
    pub metadata: Metadata<'a>,
    pub spec: Option<ServiceSpec<'a>>,
    /// The load balancer's addresses.
    pub status: Option<ServiceStatus<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec<'a> {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", borrow)]
    pub kind: Option<BorrowedText<'a>>,
    /// The first of [`Self::cluster_ips`]; missing or empty if there is none.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<BorrowedText<'a>>,
    /// At most one for each family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<BorrowedText<'a>>>,
    /// Addresses that somebody else routes to the nodes.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<BorrowedText<'a>>>,
    /// The clients that may use the load balancer's addresses.
    pub load_balancer_source_ranges: Option<Vec<BorrowedText<'a>>>,
    pub ports: Option<Vec<SpecPort<'a>>>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<BorrowedText<'a>>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<BorrowedText<'a>>,
    /// `None` or `ClientIP`.
    pub session_affinity: Option<BorrowedText<'a>>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// The node port at which a load balancer asks whether this node has endpoints.
    pub health_check_node_port: Option<i64>,
}

/// One entry of `spec.ports`. `targetPort` is not read: the slices have the resolved ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecPort<'a> {
    /// Matches the name of the slices' port; may be missing if it is the only port.
    #[serde(borrow)]
    pub name: Option<BorrowedText<'a>>,
    /// TCP when missing.
    pub protocol: Option<BorrowedText<'a>>,
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
pub struct ServiceStatus<'a> {
    #[serde(borrow)]
    pub load_balancer: Option<LoadBalancerStatus<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LoadBalancerStatus<'a> {
    /// The load balancer's addresses.
    #[serde(borrow)]
    pub ingress: Option<Vec<Ingress<'a>>>,
}

/// One entry of `status.loadBalancer.ingress`. Host names and ports are not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ingress<'a> {
    #[serde(borrow)]
    pub ip: Option<BorrowedText<'a>>,
    /// `VIP` (the default): packets arrive with that destination. `Proxy`: they do not.
    pub ip_mode: Option<BorrowedText<'a>>,
}

impl<'a> FromProtobuf<'a> for ServiceObject<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            2 => field.merge_into(&mut self.spec),
            3 => field.merge_into(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for ServiceSpec<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.push_into(&mut self.ports)?,
            3 => self.cluster_ip = Some(field.text()?),
            4 => self.kind = Some(field.text()?),
            5 => field.push_text(&mut self.external_ips)?,
            7 => self.session_affinity = Some(field.text()?),
            9 => field.push_text(&mut self.load_balancer_source_ranges)?,
            11 => self.external_traffic_policy = Some(field.text()?),
            12 => self.health_check_node_port = Some(field.number()?),
            14 => field.merge_into(&mut self.session_affinity_config)?,
            18 => field.push_text(&mut self.cluster_ips)?,
            22 => self.internal_traffic_policy = Some(field.text()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for SpecPort<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = Some(field.text()?),
            2 => self.protocol = Some(field.text()?),
            3 => self.port = Some(field.number()?),
            5 => self.node_port = Some(field.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for SessionAffinityConfig {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.merge_into(&mut self.client_ip),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for ClientIpConfig {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.timeout_seconds = Some(field.number()?);
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for ServiceStatus<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.merge_into(&mut self.load_balancer),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for LoadBalancerStatus<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.push_into(&mut self.ingress),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for Ingress<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.ip = Some(field.text()?),
            3 => self.ip_mode = Some(field.text()?),
            _ => {}
        }
        Ok(())
    }
}
