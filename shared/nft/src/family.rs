//! Families of tables.

use std::fmt;

use denizen_packet::Family;
use nix::libc;

/// The family of a table: which packets its chains see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableFamily {
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

impl TableFamily {
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

    /// The family's name in nft's language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Arp => "arp",
            Self::Bridge => "bridge",
        }
    }

    /// The family with this number of the kernel's; `None` for a family that Denizen does not use.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for TableFamily {
    /// As nft names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ip,
            Family::V6 => Self::Ip6,
        }
    }
}
