//! Endpoint slices, cut down to what decides about packets.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::service::{Family, Protocol, ServiceName};

/// Namespace and name of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What may be sent to an endpoint. The API's three conditions, where a missing `ready` or
/// `serving` means true and a missing `terminating` false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// Gets new connections.
    Ready,
    /// Serving but terminating: the last resort, when no endpoint is ready (KEP-1669).
    Draining,
    /// Serving, though neither ready nor terminating: gets no new connections, and keeps those it
    /// has.
    Unready,
    /// Gets none, and those it had are lost.
    Down,
}

impl EndpointState {
    /// From `conditions`.
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

    /// Whether the connections it has are answered (kube-proxy's `IsServing`).
    pub fn serves(self) -> bool {
        match self {
            Self::Ready | Self::Draining | Self::Unready => true,
            Self::Down => false,
        }
    }
}

/// One entry of `endpoints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`; the API says that the others are not to be used.
    pub address: IpAddr,
    /// From `conditions`.
    pub state: EndpointState,
    /// `conditions.terminating`: of two entries for one address the one that runs counts.
    pub terminating: bool,
    /// `nodeName`. Missing means that the endpoint is on no node, and never local.
    pub node: Option<Arc<str>>,
    /// `hints.forZones[].name`.
    pub zone_hints: Vec<Arc<str>>,
    /// `hints.forNodes[].name`.
    pub node_hints: Vec<Arc<str>>,
}

/// One entry of `ports` that has a name and a number; others cannot be joined to a Service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Joins it to the Service's port.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where the endpoints listen.
    pub port: NonZeroU16,
}

/// An EndpointSlice of addresses (not of FQDNs) that names its Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Its name.
    pub name: SliceName,
    /// Label `kubernetes.io/service-name`.
    pub service: ServiceName,
    /// `addressType`.
    pub family: Family,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// `endpoints`.
    pub endpoints: Vec<SliceEndpoint>,
}
