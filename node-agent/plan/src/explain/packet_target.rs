//! Where the packet that is asked about goes.

use std::net::IpAddr;
use std::num::NonZeroU16;

use denizen_model::Protocol;

/// The destination port, or a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PacketTarget {
    /// A protocol with ports, and the destination port.
    Port(Protocol, NonZeroU16),
    /// An echo request, as `ping` sends it: ICMP or ICMPv6, by the family of the addresses.
    Echo,
}

/// A destination: an address, and a port or a ping.
pub(super) type PacketEnd = (IpAddr, PacketTarget);
