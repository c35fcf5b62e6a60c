//! Frontends: the addresses and ports at which a service is reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::outcome::Outcome;
use crate::model::{Affinity, Family, Protocol, ServicePortName, TrafficPolicy, family_of};

/// Where packets to a frontend are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendAddress {
    /// To this address.
    Ip(IpAddr),
    /// To any of the node's own addresses that serve node ports.
    Node(Family),
}

/// What a packet must be addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey {
    /// Where to.
    pub address: FrontendAddress,
    /// With which protocol.
    pub protocol: Protocol,
    /// At which port.
    pub port: NonZeroU16,
}

impl FrontendKey {
    /// The family of the packets.
    pub fn family(&self) -> Family {
        match self.address {
            FrontendAddress::Ip(ip) => family_of(ip),
            FrontendAddress::Node(family) => family,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            FrontendAddress::Ip(ip) => {
                write!(f, "{}/{}", SocketAddr::new(ip, self.port.get()), self.protocol)
            }
            FrontendAddress::Node(_) => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

/// What kind of address a frontend is. Where two services claim one frontend, the kind that comes
/// first here wins: cluster IPs are allocated, the others only asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKind {
    /// One of `spec.clusterIPs`.
    ClusterIp,
    /// The node port.
    NodePort,
    /// One of `status.loadBalancer.ingress`.
    LoadBalancerIp,
    /// One of `spec.externalIPs`.
    ExternalIp,
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "cluster IP",
            Self::NodePort => "node port",
            Self::LoadBalancerIp => "load balancer IP",
            Self::ExternalIp => "external IP",
        })
    }
}

/// Whose source address is replaced by the node's when a connection is forwarded. (A pod that is
/// handed to itself always gets the node's address: that is decided by the endpoint, not by the
/// frontend.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// Everybody's but that of this node's own pods: the answer must come back through this node,
    /// and only a pod of this node is sure to be answered through it.
    UnlessLocalPod,
    /// Everybody's: the traffic policy lets any node send to any endpoint.
    Always,
}

/// One frontend of one service port, decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// What packets are addressed to.
    pub key: FrontendKey,
    /// What kind of address that is.
    pub kind: FrontendKind,
    /// Whose frontend it is.
    pub service_port: ServicePortName,
    /// The policy that applies at this frontend.
    pub policy: TrafficPolicy,
    /// Which sources may enter, where not all may (`loadBalancerSourceRanges`, of the frontend's
    /// family). Everybody else's packets are dropped.
    pub sources: Option<Arc<[IpNetwork]>>,
    /// What becomes of connections; where [`Self::outside`] differs, of those of this node and its
    /// pods.
    pub inside: Outcome,
    /// Whose source is replaced, of the connections that [`Self::inside`] decides.
    pub masquerade: Masquerade,
    /// What becomes of connections from elsewhere where that differs (`externalTrafficPolicy:
    /// Local`). They are never masqueraded.
    pub outside: Option<Outcome>,
    /// Whether a client is kept with one endpoint.
    pub affinity: Affinity,
    /// When the service was made; the older of two that claim a frontend wins.
    pub created: Arc<str>,
}

impl Frontend {
    /// Claims on one frontend sort by this; the smallest wins. A total order of facts alone, so
    /// that every node and every restart names the same winner.
    pub fn rank(&self) -> impl Ord + '_ {
        (self.kind, self.created.is_empty(), &self.created, &self.service_port)
    }
}
