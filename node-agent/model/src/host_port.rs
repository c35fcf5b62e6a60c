//! The host ports of this node's pods, as the runtime passed them to the CNI plugin.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use denizen_packet::{Family, Protocol, family_of};
use denizen_state::{HostPortFamily, HostPortProtocol};

/// One host port that a pod asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// The node's addresses at which it is requested.
    pub at: HostPortAddress,
    pub protocol: Protocol,
    /// The node's port.
    pub port: NonZeroU16,
    /// The pod's port.
    pub pod_port: NonZeroU16,
}

/// At which of the node's addresses a host port is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPortAddress {
    /// Every address of both families.
    Any,
    /// Every address of this family.
    AnyOf(Family),
    /// This address.
    Ip(IpAddr),
}

impl HostPortAddress {
    /// The families in which it is requested.
    pub fn families(self) -> impl Iterator<Item = Family> {
        Family::BOTH.into_iter().filter(move |family| match self {
            Self::Any => true,
            Self::AnyOf(only) => only == *family,
            Self::Ip(ip) => family_of(ip) == *family,
        })
    }
}

impl From<&denizen_state::HostPort> for HostPort {
    fn from(recorded: &denizen_state::HostPort) -> Self {
        let at = match (recorded.ip, recorded.family) {
            (Some(ip), _) => HostPortAddress::Ip(ip),
            (None, Some(HostPortFamily::Ipv4)) => HostPortAddress::AnyOf(Family::V4),
            (None, Some(HostPortFamily::Ipv6)) => HostPortAddress::AnyOf(Family::V6),
            (None, None) => HostPortAddress::Any,
        };
        let protocol = match recorded.protocol {
            HostPortProtocol::Tcp => Protocol::Tcp,
            HostPortProtocol::Udp => Protocol::Udp,
            HostPortProtocol::Sctp => Protocol::Sctp,
        };
        Self { at, protocol, port: recorded.port, pod_port: recorded.pod_port }
    }
}

impl fmt::Display for HostPort {
    /// As in `192.168.0.2:8080/tcp`, or `8080/tcp` at every address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, protocol) = (self.port, self.protocol);
        match self.at {
            HostPortAddress::Any => write!(f, "{port}/{protocol}"),
            HostPortAddress::AnyOf(Family::V4) => write!(f, "0.0.0.0:{port}/{protocol}"),
            HostPortAddress::AnyOf(Family::V6) => write!(f, "[::]:{port}/{protocol}"),
            HostPortAddress::Ip(ip) => {
                write!(f, "{}/{protocol}", SocketAddr::new(ip, port.get()))
            }
        }
    }
}
