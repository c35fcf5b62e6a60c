//! What a user should know about host ports that are not served as asked for.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::FrontendKind;
use denizen_model::{HostPort, Protocol, ServicePortName};

/// Why a host port is not served as asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPortRemark {
    /// A service has the port at an address of the node.
    Shadowed {
        /// The pod that asks.
        pod: Arc<str>,
        /// What it asks for.
        asked: HostPort,
        /// The address.
        at: IpAddr,
        /// What the address is to the service.
        kind: FrontendKind,
        /// The service.
        by: ServicePortName,
    },
    /// A pod that was recorded later asks for the same.
    Older {
        /// The pod that asks.
        pod: Arc<str>,
        /// What it asks for.
        asked: HostPort,
        /// The pod that gets it.
        newer: Arc<str>,
    },
    /// The node does not have the address that is asked for.
    NoAddress {
        /// The pod that asks.
        pod: Arc<str>,
        /// What it asks for.
        asked: HostPort,
    },
    /// The pod has no address of the family.
    NoPodAddress {
        /// The pod that asks.
        pod: Arc<str>,
        /// What it asks for.
        asked: HostPort,
    },
}

impl HostPortRemark {
    /// The pod that asks, and what it asks for.
    pub fn asked(&self) -> (&Arc<str>, HostPort) {
        match self {
            Self::Shadowed { pod, asked, .. }
            | Self::Older { pod, asked, .. }
            | Self::NoAddress { pod, asked }
            | Self::NoPodAddress { pod, asked } => (pod, *asked),
        }
    }

    /// The port that is asked for.
    pub fn port(&self) -> (Protocol, NonZeroU16) {
        let (_, asked) = self.asked();
        (asked.protocol, asked.port)
    }

    /// Whether nobody gets what was asked for, or the wrong one may: an address that a load
    /// balancer's IP shares with the node is meant to be the service's.
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
        let (pod, asked) = self.asked();
        write!(f, "host port {asked} of {pod} ")?;
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
