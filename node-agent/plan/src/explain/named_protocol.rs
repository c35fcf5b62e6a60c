//! The protocol of the packet that is asked about, as a person writes it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use super::packet_target::{PacketEnd, PacketTarget};
use denizen_model::{Family, Protocol, family_of};

/// The word after the last `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedProtocol {
    Ports(Protocol),
    /// `icmp` or `icmpv6`.
    Echo(Family),
}

impl NamedProtocol {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match &*text.to_ascii_lowercase() {
            "icmp" => Some(Self::Echo(Family::V4)),
            "icmpv6" => Some(Self::Echo(Family::V6)),
            _ => Protocol::parse(text).map(Self::Ports),
        }
    }

    /// Parses the part before the `/`.
    pub(super) fn end(self, text: &str) -> Option<PacketEnd> {
        match self {
            Self::Ports(protocol) => {
                let end: SocketAddr = text.parse().ok()?;
                let port = NonZeroU16::new(end.port())?;
                Some((end.ip().to_canonical(), PacketTarget::Port(protocol, port)))
            }
            Self::Echo(family) => {
                let address: IpAddr = text.parse().ok()?;
                let address = address.to_canonical();
                (family_of(address) == family).then_some((address, PacketTarget::Echo))
            }
        }
    }
}
