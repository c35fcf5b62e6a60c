//! What a user should know about host ports that are not served as requested.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::FrontendKind;
use denizen_model::{HostPort, Protocol, ServicePortName};

/// Why a host port is not served as requested.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPortRemark {
    /// A service has the port at an address of the node.
    Shadowed {
        /// The pod that requests it.
        pod: Arc<str>,
        /// The host port that it requests.
        requested: HostPort,
        /// The address.
        at: IpAddr,
        /// What the address is to the service.
        kind: FrontendKind,
        /// The service.
        by: ServicePortName,
    },
    /// A pod that was recorded later requests the same.
    Older {
        /// The pod that requests it.
        pod: Arc<str>,
        /// The host port that it requests.
        requested: HostPort,
        /// The pod that gets it.
        newer: Arc<str>,
    },
    /// The node does not have the address that is requested.
    NoAddress {
        /// The pod that requests it.
        pod: Arc<str>,
        /// The host port that it requests.
        requested: HostPort,
    },
    /// The pod has no address of the family.
    NoPodAddress {
        /// The pod that requests it.
        pod: Arc<str>,
        /// The host port that it requests.
        requested: HostPort,
    },
}

impl HostPortRemark {
    /// The pod, and what it requests.
    pub fn requested(&self) -> (&Arc<str>, HostPort) {
        match self {
            Self::Shadowed { pod, requested, .. }
            | Self::Older { pod, requested, .. }
            | Self::NoAddress { pod, requested }
            | Self::NoPodAddress { pod, requested } => (pod, *requested),
        }
    }

    /// The port that is requested.
    pub fn port(&self) -> (Protocol, NonZeroU16) {
        let (_, requested) = self.requested();
        (requested.protocol, requested.port)
    }

    /// Whether no pod gets what was requested, or perhaps the wrong one does. A service whose load
    /// balancer IP or external IP is also the node's address is meant to get the port.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Shadowed { kind, .. } => match kind {
                FrontendKind::NodePort | FrontendKind::ClusterIp => true,
                FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => false,
            },
            Self::Older { .. } | Self::NoAddress { .. } | Self::NoPodAddress { .. } => true,
        }
    }
}

impl fmt::Display for HostPortRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pod, requested) = self.requested();
        write!(f, "host port {requested} of {pod} ")?;
        match self {
            Self::Shadowed { at, kind, by, .. } => {
                write!(f, "is shadowed at {at} by {kind} of {by}")
            }
            Self::Older { newer, .. } => write!(f, "is served by {newer}, which is newer"),
            Self::NoAddress { .. } => {
                write!(f, "is not served: its hostIP is no address at which this node serves any")
            }
            Self::NoPodAddress { .. } => {
                write!(f, "is not served: the pod has no address of that family")
            }
        }
    }
}
