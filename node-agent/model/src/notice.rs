//! What the agent tells operators as Kubernetes events.

use std::sync::Arc;

use super::network_policy::PolicyName;
use super::service::ServiceName;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoticeSubject {
    Node,
    Service(ServiceName),
    NetworkPolicy(PolicyName),
    /// A ClusterNetworkPolicy.
    ClusterNetworkPolicy(Arc<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoticeReason {
    Starting,
    /// The agent's health cannot be served.
    HealthUnserved,
    /// The agent's metrics cannot be served.
    MetricsUnserved,
    /// The health-check node port of a Service cannot be served.
    HealthCheckUnserved,
    /// A part of a NetworkPolicy is not understood.
    InvalidNetworkPolicy,
    /// A part of a ClusterNetworkPolicy is not understood.
    InvalidClusterNetworkPolicy,
    /// Several ClusterNetworkPolicies of one tier have the same priority and select the same pod.
    SamePriority,
    /// Another node's podCIDR gets no route.
    RouteRejected,
    /// A Service asks for an address that the operator permits to no Service.
    AddressNotPermitted,
    /// A Service has too many external IPs and load balancer IPs for its number of ports.
    TooManyAddresses,
    /// A host port is not served as a pod asks for it.
    HostPortConflict,
    /// An address that a Service or a pod should have announced is not announced.
    NotAnnounced,
    /// An address of this Service is announced for another Service. Nodes without an endpoint of
    /// this Service drop its connections.
    SharedAddress,
}

/// One event for operators (`kubectl get events`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    pub about: NoticeSubject,
    pub reason: NoticeReason,
    /// Text for a person; empty if the reason suffices.
    pub text: String,
}

impl NoticeReason {
    /// The event's `reason`: kube-proxy's where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::HealthUnserved => "FailedToStartProxierHealthcheck",
            Self::MetricsUnserved => "FailedToStartMetricServer",
            Self::HealthCheckUnserved => "FailedToStartServiceHealthcheck",
            Self::InvalidNetworkPolicy => "InvalidNetworkPolicy",
            Self::InvalidClusterNetworkPolicy => "InvalidClusterNetworkPolicy",
            Self::SamePriority => "SamePriority",
            Self::RouteRejected => "RouteRejected",
            Self::AddressNotPermitted => "AddressNotPermitted",
            Self::TooManyAddresses => "TooManyAddresses",
            Self::HostPortConflict => "HostPortConflict",
            Self::NotAnnounced => "NotAnnounced",
            Self::SharedAddress => "SharedAddress",
        }
    }

    /// The event's `action`.
    pub fn action(self) -> &'static str {
        match self {
            Self::Starting | Self::HealthUnserved | Self::MetricsUnserved => "StartKubeProxy",
            Self::HealthCheckUnserved => "Listen",
            Self::InvalidNetworkPolicy | Self::InvalidClusterNetworkPolicy | Self::SamePriority => {
                "Enforce"
            }
            Self::RouteRejected => "Route",
            Self::AddressNotPermitted | Self::TooManyAddresses => "Serve",
            Self::HostPortConflict => "ServeHostPort",
            Self::NotAnnounced | Self::SharedAddress => "Announce",
        }
    }

    /// The event's `type`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Starting => "Normal",
            Self::HealthUnserved
            | Self::MetricsUnserved
            | Self::HealthCheckUnserved
            | Self::InvalidNetworkPolicy
            | Self::InvalidClusterNetworkPolicy
            | Self::SamePriority
            | Self::RouteRejected
            | Self::AddressNotPermitted
            | Self::TooManyAddresses
            | Self::HostPortConflict
            | Self::NotAnnounced
            | Self::SharedAddress => "Warning",
        }
    }
}
