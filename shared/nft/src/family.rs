//! Families of tables, and versions of IP.

use std::fmt;
use std::net::IpAddr;

use nix::libc;

/// The family of a table: which packets its chains see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 packets.
    Ip,
    /// IPv6 packets.
    Ip6,
    /// IP packets of both versions.
    Inet,
    /// ARP messages.
    Arp,
    /// Frames that come in through a port of a bridge, whatever they carry.
    Bridge,
}

impl Family {
    const ALL: [Self; 5] = [Self::Ip, Self::Ip6, Self::Inet, Self::Arp, Self::Bridge];

    /// The kernel's number: `NFPROTO_IPV4`, `NFPROTO_IPV6`, `NFPROTO_INET`, `NFPROTO_ARP` or
    /// `NFPROTO_BRIDGE`.
    pub fn number(self) -> u8 {
        let number = match self {
            Self::Ip => libc::NFPROTO_IPV4,
            Self::Ip6 => libc::NFPROTO_IPV6,
            Self::Inet => libc::NFPROTO_INET,
            Self::Arp => libc::NFPROTO_ARP,
            Self::Bridge => libc::NFPROTO_BRIDGE,
        };
        number as u8
    }

    /// The family with this number of the kernel's; `None` for those that Denizen does not use.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    /// As nft names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Arp => "arp",
            Self::Bridge => "bridge",
        })
    }
}

/// The version of an IP header and of the addresses in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The version of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bytes of an address.
    pub fn address_len(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// nft's name of the header.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// The kernel's number of the family ([`Field::IpFamily`](crate::Field::IpFamily)).
    pub fn family_number(self) -> u8 {
        Family::from(self).number()
    }

    /// The EtherType of frames that carry it.
    pub fn ether_type(self) -> u16 {
        match self {
            Self::V4 => 0x0800,
            Self::V6 => 0x86dd,
        }
    }
}

impl From<IpVersion> for Family {
    fn from(version: IpVersion) -> Self {
        match version {
            IpVersion::V4 => Self::Ip,
            IpVersion::V6 => Self::Ip6,
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
