//! Values as nft writes them, and as its registers hold them: numbers, and names of interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, bail, ensure};

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atom {
    Number(u128),
    Name(String),
}

/// A concatenation.
pub type Key = Vec<Atom>;

/// nft's data types, as far as the reader knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NftType {
    Ipv4,
    Ipv6,
    Protocol,
    Port,
    Icmpv6Type,
    Interface,
    EtherType,
    /// An Ethernet address.
    Ether,
    /// Whom a frame is addressed to.
    PacketType,
    /// A traffic class: `major:minor`, in hexadecimal.
    Class,
    Mark,
    /// Bits of conntrack's state.
    State,
    /// Bits of conntrack's status.
    Status,
    /// The result of `fib … type`.
    RouteType,
    Integer,
    Verdict,
}

/// Whom a frame is addressed to: the kernel's `PACKET_…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketType {
    /// This machine.
    Host = 0,
    /// All stations.
    Broadcast = 1,
    /// A group of stations.
    Multicast = 2,
    /// Another station. Frames that a bridge forwards from port to port count as such.
    Other = 3,
}

/// What a value is compared with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    Is(Atom),
    Between(u128, u128),
    Begins(String),
}

/// `NF_CT_STATE_BIT` of the kernel's `enum ip_conntrack_info`.
pub const ESTABLISHED: u128 = 1 << 1;
pub const RELATED: u128 = 1 << 2;
pub const NEW: u128 = 1 << 3;

/// TCP's flags SYN and ACK (RFC 9293).
pub const TCP_SYN: u128 = 0x02;
pub const TCP_ACK: u128 = 0x10;

/// IANA's number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// The kernel's `ETH_P_IP` and `ETH_P_IPV6`.
pub const ETHER_IPV4: u128 = 0x0800;
pub const ETHER_IPV6: u128 = 0x86dd;
/// `ETH_P_ARP`.
const ETHER_ARP: u128 = 0x0806;

/// `IPS_SEEN_REPLY`, `IPS_CONFIRMED` and `IPS_DST_NAT` of the kernel's `enum ip_conntrack_status`.
pub const SEEN_REPLY: u128 = 1 << 1;
pub const CONFIRMED: u128 = 1 << 3;
pub const DST_NAT: u128 = 1 << 5;

/// `RTN_LOCAL` and `RTN_UNICAST` of rtnetlink.
pub const LOCAL: u128 = 2;
pub const UNICAST: u128 = 1;

impl NftType {
    /// The type that nft calls by this name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "ipv4_addr" => Self::Ipv4,
            "ipv6_addr" => Self::Ipv6,
            "inet_proto" => Self::Protocol,
            "inet_service" => Self::Port,
            "ifname" => Self::Interface,
            "ether_addr" => Self::Ether,
            "classid" => Self::Class,
            "mark" => Self::Mark,
            "integer" => Self::Integer,
            "verdict" => Self::Verdict,
            other => bail!("the type {other} is not known"),
        })
    }

    /// One value.
    pub fn atom(self, text: &str) -> Result<Atom> {
        let number = match self {
            Self::Ipv4 => {
                u128::from(u32::from(text.parse::<Ipv4Addr>().context("an IPv4 address")?))
            }
            Self::Ipv6 => u128::from(text.parse::<Ipv6Addr>().context("an IPv6 address")?),
            Self::Protocol => match text {
                "tcp" => 6,
                "udp" => 17,
                "sctp" => 132,
                other => integer(other).context("a protocol")?,
            },
            Self::EtherType => match text {
                "ip" => ETHER_IPV4,
                "ip6" => ETHER_IPV6,
                "arp" => ETHER_ARP,
                other => integer(other).context("what a frame carries")?,
            },
            Self::Ether => text.split(':').try_fold(0, |address, byte| -> Result<u128> {
                Ok(address << 8 | u128::from(u8::from_str_radix(byte, 16).context("a byte")?))
            })?,
            Self::PacketType => match text {
                "host" => PacketType::Host as u128,
                "broadcast" => PacketType::Broadcast as u128,
                "multicast" => PacketType::Multicast as u128,
                "other" => PacketType::Other as u128,
                // As nft writes the ends of a range.
                other => integer(other).context("the type of frame")?,
            },
            Self::State => text.split(',').try_fold(0, |bits, name| match name {
                "established" => Ok(bits | ESTABLISHED),
                "related" => Ok(bits | RELATED),
                other => bail!("the state {other} is not known"),
            })?,
            Self::Interface => return Ok(Atom::Name(text.to_owned())),
            Self::Class => class(text)?,
            Self::Status => match text {
                "seen-reply" => SEEN_REPLY,
                "confirmed" => CONFIRMED,
                "dnat" => DST_NAT,
                other => integer(other).context("the status of a connection")?,
            },
            Self::RouteType => match text {
                "local" => LOCAL,
                "unicast" => UNICAST,
                other => bail!("the type of address {other} is not known"),
            },
            Self::Port | Self::Icmpv6Type | Self::Mark | Self::Integer => integer(text)?,
            Self::Verdict => bail!("{text} where a value was expected"),
        };
        Ok(Atom::Number(number))
    }

    /// One value, a range, a prefix, or a name that ends in a wildcard.
    pub fn pattern(self, text: &str) -> Result<Pattern> {
        if self == Self::Interface {
            return Ok(match text.strip_suffix('*') {
                Some(begin) => Pattern::Begins(begin.to_owned()),
                None => Pattern::Is(self.atom(text)?),
            });
        }
        if let Some((address, length)) = text.split_once('/') {
            ensure!([Self::Ipv4, Self::Ipv6].contains(&self), "a prefix of {self:?}");
            let bits = if self == Self::Ipv4 { 32 } else { 128 };
            let Atom::Number(address) = self.atom(address)? else {
                bail!("an address is a number");
            };
            let free = bits - length.parse::<u32>()?;
            let rest = 1_u128.checked_shl(free).map_or(u128::MAX, |size| size - 1);
            return Ok(Pattern::Between(address & !rest, address | rest));
        }
        let has_ranges = [Self::Ipv4, Self::Ipv6, Self::Port, Self::Icmpv6Type, Self::PacketType];
        if has_ranges.into_iter().chain([Self::Ether]).any(|kind| kind == self)
            && let Some((first, last)) = text.split_once('-')
        {
            let (first, last) = (self.atom(first)?.number()?, self.atom(last)?.number()?);
            ensure!(first <= last, "the range {text} goes backwards");
            return Ok(Pattern::Between(first, last));
        }
        Ok(Pattern::Is(self.atom(text)?))
    }
}

impl Pattern {
    pub fn fits(&self, atom: &Atom) -> bool {
        match (self, atom) {
            (Self::Is(wanted), atom) => wanted == atom,
            (Self::Between(least, most), Atom::Number(number)) => (least..=most).contains(&number),
            (Self::Begins(begin), Atom::Name(name)) => name.starts_with(begin),
            (Self::Between(..), Atom::Name(_)) | (Self::Begins(_), Atom::Number(_)) => false,
        }
    }

    /// Whether some value matches both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Is(atom), pattern) | (pattern, Self::Is(atom)) => pattern.fits(atom),
            (Self::Between(a, b), Self::Between(c, d)) => a <= d && c <= b,
            (Self::Begins(a), Self::Begins(b)) => a.starts_with(b) || b.starts_with(a),
            (Self::Between(..), Self::Begins(_)) | (Self::Begins(_), Self::Between(..)) => false,
        }
    }
}

impl Atom {
    pub fn of(address: IpAddr) -> Self {
        Self::Number(match address {
            IpAddr::V4(ip) => u32::from(ip).into(),
            IpAddr::V6(ip) => ip.into(),
        })
    }

    pub fn number(&self) -> Result<u128> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => bail!("{name} where a number was expected"),
        }
    }
}

/// `none` is no class; else two hexadecimal halves.
fn class(text: &str) -> Result<u128> {
    if text == "none" {
        return Ok(0);
    }
    let (major, minor) = text.split_once(':').with_context(|| format!("{text}: no class"))?;
    let half =
        |text| u16::from_str_radix(text, 16).with_context(|| format!("{text}: no half of a class"));
    Ok(u128::from(half(major)?) << 16 | u128::from(half(minor)?))
}

fn integer(text: &str) -> Result<u128> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.with_context(|| format!("{text}: no number"))
}
