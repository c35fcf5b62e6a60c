//! EndpointSlices, reduced to the fields that affect packets.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::service::ServiceName;
use denizen_packet::{Family, Protocol};

/// Namespace and name of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which connections an endpoint gets, from the API's three conditions. A missing `ready` or
/// `serving` means true, a missing `terminating` false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// Gets new connections.
    Ready,
    /// Serving but terminating: gets new connections only if no endpoint is ready (KEP-1669).
    Draining,
    /// Serving, but neither ready nor terminating: gets no new connections, and keeps its existing
    /// ones.
    Unready,
    /// Gets no new connections, and its existing ones are lost.
    Down,
}

impl EndpointState {
    pub fn from_conditions(
        ready: Option<bool>,
        serving: Option<bool>,
        terminating: Option<bool>,
    ) -> Self {
        if ready.unwrap_or(true) {
            Self::Ready
        } else if !serving.unwrap_or(true) {
            Self::Down
        } else if terminating.unwrap_or(false) {
            Self::Draining
        } else {
            Self::Unready
        }
    }

    /// Whether it answers its existing connections (kube-proxy's `IsServing`).
    pub fn serves(self) -> bool {
        match self {
            Self::Ready | Self::Draining | Self::Unready => true,
            Self::Down => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`; the API says that the others must not be used.
    pub address: IpAddr,
    /// From `conditions`.
    pub state: EndpointState,
    /// `conditions.terminating`. Of two entries for one address, the one that is not terminating
    /// counts.
    pub terminating: bool,
    /// `nodeName`. If it is missing, the endpoint is on no node and never local.
    pub node: Option<Arc<str>>,
    /// `hints.forZones[].name`.
    pub zone_hints: Vec<Arc<str>>,
    /// `hints.forNodes[].name`.
    pub node_hints: Vec<Arc<str>>,
}

/// One entry of `ports` that has a name and a number; others match no service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Matches the name of the Service's port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The port at which the endpoints listen.
    pub port: NonZeroU16,
}

/// An EndpointSlice of addresses (not of FQDNs) that names its Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub name: SliceName,
    /// Label `kubernetes.io/service-name`.
    pub service: ServiceName,
    /// `addressType`.
    pub family: Family,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
}
