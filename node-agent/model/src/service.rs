//! Services, reduced to the fields that affect packets.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use denizen_packet::{Family, Protocol, family_of};
use ipnetwork::IpNetwork;

/// Namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ServiceName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One port of a Service. Endpoints, affinity and load balancing belong to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    pub service: ServiceName,
    /// The port's name; empty for the only port of a Service.
    pub port: Arc<str>,
    /// Two ports may share a name only if their protocols differ.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => self.service.fmt(f),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

/// `externalTrafficPolicy` and `internalTrafficPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrafficPolicy {
    /// To any endpoint of the cluster.
    #[default]
    Cluster,
    /// Only to endpoints on this node.
    Local,
}

/// `sessionAffinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionAffinity {
    /// Every connection is balanced independently.
    #[default]
    None,
    /// A client's connections go to the endpoint of its last one, until it has been silent for this
    /// many seconds.
    ClientIp {
        /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
        seconds: u32,
    },
}

/// `spec.loadBalancerSourceRanges`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceRanges {
    /// The entries that can be read, of both families, in the order written.
    pub ranges: Vec<IpNetwork>,
    /// Some entry cannot be read. It may have been meant for either family.
    pub unreadable: bool,
}

impl SourceRanges {
    /// The only sources that may use a load balancer IP of this family; `None` if every source may.
    ///
    /// Each family is restricted by its own ranges alone, as in kube-proxy. An entry that cannot be
    /// read admits nobody. If there is one, a family without a range is closed: the owner meant to
    /// restrict something, and it may have been this family.
    pub fn of(&self, family: Family) -> Option<Vec<IpNetwork>> {
        let of_family = |range: &&IpNetwork| family_of(range.ip()) == family;
        let ranges: Vec<IpNetwork> = self.ranges.iter().filter(of_family).copied().collect();
        let is_open = ranges.is_empty() && !self.unreadable;
        let allows_all = ranges.iter().any(|range| range.prefix() == 0);
        (!is_open && !allows_all).then_some(ranges)
    }
}

impl From<Vec<IpNetwork>> for SourceRanges {
    fn from(ranges: Vec<IpNetwork>) -> Self {
        Self { ranges, unreadable: false }
    }
}

/// One entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Matches the name of the slices' port; empty for an unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The port on the cluster IP, external IPs and load balancer IPs.
    pub port: NonZeroU16,
    /// The port on the node's own addresses, if one is allocated.
    pub node_port: Option<NonZeroU16>,
}

/// A Service with at least one cluster IP. Headless and ExternalName Services never get here, nor
/// do those that `service.kubernetes.io/service-proxy-name` gives to another proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub name: ServiceName,
    /// `spec.clusterIPs`, of both families.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip`, without those whose `ipMode` is `Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Those whose `ipMode` is `Proxy`: the load balancer rewrites the destination, so no packet
    /// arrives with it.
    pub proxied_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: SourceRanges,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.sessionAffinity`.
    pub affinity: SessionAffinity,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
    /// `metadata.creationTimestamp` as the API writes it (RFC 3339 in UTC, so it sorts); empty in
    /// hand written manifests. The older of two Services that claim one address and port wins.
    pub created: Arc<str>,
    /// What its annotations say about IPVS's scheduler.
    pub scheduler: Option<Box<RequestedScheduler>>,
    /// Label `denizen.io/announce` is `false`: its addresses are not announced.
    pub opts_out: bool,
}

/// A Service that `service.kubernetes.io/service-proxy-name` gives to another proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignService {
    /// The label's value.
    pub proxy: Arc<str>,
    /// `spec.clusterIPs`, of both families.
    pub cluster_ips: Vec<IpAddr>,
}

/// kube-router's annotations, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedScheduler {
    /// `kube-router.io/service.scheduler`.
    pub name: Option<Arc<str>>,
    /// `kube-router.io/service.schedflags`.
    pub flags: Option<Arc<str>>,
}
