//! Frontends: the addresses and ports at which a service is reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::outcome::Outcome;
use denizen_model::{Family, Protocol, ServicePortName, SessionAffinity, TrafficPolicy, family_of};

/// The destination address of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendAddress {
    Ip(IpAddr),
    /// Any of the node's own addresses that serve node ports.
    Node(Family),
}

/// What identifies a frontend: the destination of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey {
    pub address: FrontendAddress,
    pub protocol: Protocol,
    pub port: NonZeroU16,
}

impl FrontendKey {
    pub fn family(&self) -> Family {
        match self.address {
            FrontendAddress::Ip(ip) => family_of(ip),
            FrontendAddress::Node(family) => family,
        }
    }

    /// Its address; `None` for a node port, which has several.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.address {
            FrontendAddress::Ip(ip) => Some(ip),
            FrontendAddress::Node(_) => None,
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

/// What kind of address a frontend is. If two services claim one frontend, the kind that comes
/// first here wins: cluster IPs and node ports are allocated by the API server, the others are only
/// requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKind {
    /// One of `spec.clusterIPs`.
    ClusterIp,
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

/// Which connections get the node's address as their source when they are forwarded. (Hairpin
/// connections always do: that depends on the endpoint, not on the frontend.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// All but those of local pods: the answer must come back through this node, which is certain
    /// only for local pods.
    UnlessLocalPod,
    /// All: the traffic policy lets any node send to any endpoint.
    Always,
}

/// One frontend of one service port, decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// What packets are addressed to.
    pub key: FrontendKey,
    pub kind: FrontendKind,
    pub service_port: ServicePortName,
    /// The policy that applies at this frontend.
    pub policy: TrafficPolicy,
    /// The sources that may use it (`loadBalancerSourceRanges` of the frontend's family), sorted
    /// and without overlaps; `None` if all may. Packets of other sources are dropped.
    pub sources: Option<Arc<[IpNetwork]>>,
    /// What happens to connections. If [`Self::outside`] is set: to those of this node and its
    /// pods.
    pub inside: Outcome,
    /// Which of the connections that [`Self::inside`] decides are masqueraded.
    pub masquerade: Masquerade,
    /// What happens to connections from outside, if that differs (`externalTrafficPolicy: Local`).
    /// They are never masqueraded.
    pub outside: Option<Outcome>,
    pub affinity: SessionAffinity,
    /// When the service was created; the older of two that claim a frontend wins.
    pub created: Arc<str>,
}

impl Frontend {
    /// Whether a source may use it.
    pub fn permits(&self, source: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|sources| {
            let behind = sources.partition_point(|range| range.network() <= source);
            behind.checked_sub(1).is_some_and(|last| sources[last].contains(source))
        })
    }

    /// Claims on one frontend sort by this; the smallest wins. A total order of facts alone, so
    /// that every node and every restart names the same winner.
    pub fn rank(&self) -> impl Ord + '_ {
        (self.kind, self.created.is_empty(), &self.created, &self.service_port)
    }
}
