//! Elements of the sets and maps: typed here, bytes for the kernel.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::name::{ChainName, SetName};
use super::set::{Part, address_len};
use crate::model::{Family, Protocol};
use crate::plan::{FrontendAddress, FrontendKey};
use ipnetwork::IpNetwork;

const LONGEST_KEY: usize = 44;

/// An element's key, as the kernel's registers hold it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    length: u8,
    bytes: [u8; LONGEST_KEY],
}

impl Key {
    /// No parts yet.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; LONGEST_KEY] };

    /// From what the kernel tells; `None` when it is longer than any key of ours.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut key = Self { length: u8::try_from(bytes.len()).ok()?, bytes: [0; LONGEST_KEY] };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }

    /// As the kernel wants it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(mut self, value: &[u8]) -> Self {
        let at = usize::from(self.length);
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.length += value.len().next_multiple_of(4) as u8;
        self
    }

    /// With an address.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) => self.push(&ip.octets()),
            IpAddr::V6(ip) => self.push(&ip.octets()),
        }
    }

    /// With a protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.push(&[protocol.number()])
    }

    /// With a port.
    pub fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }

    /// With a slot: a number that the kernel draws, so in its own byte order.
    pub fn slot(self, slot: u32) -> Self {
        self.push(&slot.to_ne_bytes())
    }

    /// With a number that is kept in a packet's priority.
    pub fn number(self, number: u32) -> Self {
        self.push(&number.to_ne_bytes())
    }

    /// The protocol, and the number in which the key ends, of a key of a set that has both.
    pub fn protocol_and_number(&self, set: SetName, family: Family) -> Option<(Protocol, u32)> {
        let before = set.shape().key.iter().take_while(|part| **part != Part::Protocol);
        let at = before.map(|part| part.words(family) as usize * 4).sum::<usize>();
        let (number, bytes) = (self.as_bytes().last_chunk()?, self.as_bytes().get(at)?);
        Some((Protocol::from_number(*bytes)?, u32::from_ne_bytes(*number)))
    }

    /// The frontend that a key of a set of frontends stands for.
    pub fn key(&self, set: SetName, family: Family) -> Option<FrontendKey> {
        let mut rest = self.as_bytes();
        let address = match set.shape().key.first() {
            Some(Part::Destination) => {
                let ip = read_address(family, rest)?;
                rest = rest.get(address_len(family)..)?;
                FrontendAddress::Ip(ip)
            }
            Some(_) | None => FrontendAddress::Node(family),
        };
        let protocol = Protocol::from_number(*rest.first()?)?;
        let port = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?).try_into().ok()?;
        Some(FrontendKey { address, protocol, port })
    }

    /// The frontend that an element with this key is about: where it is found, one of its
    /// endpoints, who may use it. `None` for the elements of other sets.
    pub fn frontend(&self, set: SetName, family: Family) -> Option<FrontendKey> {
        let is_of_one = matches!(
            set.shape().key,
            [Part::Protocol, Part::Port, ..] | [Part::Destination, Part::Protocol, Part::Port, ..]
        );
        is_of_one.then(|| self.key(set, family)).flatten()
    }

    /// With a range of sources. The kernel knows the range by its first and its last address: see
    /// [`Self::bounds`].
    pub fn range(self, range: IpNetwork) -> Self {
        self.address(range.network()).push(&[range.prefix()])
    }

    /// The first and the last key of a key that ends in a range.
    pub fn bounds(&self) -> (Self, Self) {
        let end = usize::from(self.length) - 4;
        let prefix = usize::from(self.bytes[end]);
        let mut first = *self;
        first.bytes[end..].fill(0);
        first.length = end as u8;
        let mut last = first;
        // The address stands last, and its length is what the family's keys of this shape leave for
        // it.
        let address = end - if end > 16 { 16 } else { 4 };
        for bit in prefix..(end - address) * 8 {
            last.bytes[address + bit / 8] |= 0x80 >> (bit % 8);
        }
        (first, last)
    }

    /// The key that has these bounds; `None` when they are not those of a prefix.
    pub fn from_bounds(first: &[u8], last: &[u8]) -> Option<Self> {
        let address = first.len().checked_sub(if first.len() > 16 { 16 } else { 4 })?;
        let differ =
            first.iter().zip(last).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>() as usize;
        let prefix = ((first.len() - address) * 8).checked_sub(differ)?;
        let key = Self::from_bytes(first)?.push(&[u8::try_from(prefix).ok()?]);
        (key.bounds().1.as_bytes() == last).then_some(key)
    }

    /// With an interface name, which the kernel holds to 15 bytes.
    pub fn interface(self, name: &str) -> Self {
        let mut padded = [0; 16];
        let length = name.len().min(15);
        padded[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.push(&padded)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x?})", self.as_bytes())
    }
}

/// What a key leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value {
    /// It is in the set.
    Member,
    /// On to a chain, not to come back.
    Goto(ChainName),
    /// An endpoint.
    Endpoint(SocketAddr),
    /// An endpoint's number.
    Number(u32),
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// In which set.
    pub set: SetName,
    /// Its key.
    pub key: Key,
    /// What the key leads to.
    pub value: Value,
    /// For a person who lists the set.
    pub comment: Option<Arc<str>>,
}

/// An endpoint as the kernel's registers hold it.
pub fn endpoint_bytes(endpoint: SocketAddr) -> Key {
    Key::EMPTY.address(endpoint.ip()).port(endpoint.port())
}

/// A key as nft writes it, its parts joined by ` . `.
pub struct KeyText<'a> {
    /// The set that the key is of.
    pub set: SetName,
    /// Its family.
    pub family: Family,
    /// The key.
    pub key: &'a Key,
}

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.key.as_bytes();
        for (n, part) in self.set.shape().key.iter().enumerate() {
            if n > 0 {
                f.write_str(" . ")?;
            }
            let range = if *part == Part::SourceRange { 4 } else { 0 };
            let taken = part.words(self.family) as usize * 4 + range;
            let (value, behind) = rest.split_at(taken.min(rest.len()));
            write_part(f, *part, self.family, value)?;
            rest = behind;
        }
        Ok(())
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, part: Part, family: Family, value: &[u8]) -> fmt::Result {
    match part {
        Part::Source | Part::Destination => match read_address(family, value) {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("?"),
        },
        Part::Protocol => {
            let number = value.first().copied().unwrap_or_default();
            match Protocol::from_number(number) {
                Some(protocol) => write!(f, "{protocol}"),
                None => write!(f, "{number}"),
            }
        }
        Part::Port => match value {
            [high, low, ..] => write!(f, "{}", u16::from_be_bytes([*high, *low])),
            _ => f.write_str("?"),
        },
        Part::SourceRange => match (read_address(family, value), value.get(address_len(family))) {
            (Some(address), Some(prefix)) => write!(f, "{address}/{prefix}"),
            _ => f.write_str("?"),
        },
        // As nft writes a traffic class: two halves.
        Part::Scratch => match value.try_into().map(u32::from_ne_bytes) {
            Ok(number) => write!(f, "{:04x}:{:04x}", number >> 16, number & 0xffff),
            Err(_) => f.write_str("?"),
        },
        Part::Slot => match value.try_into().map(u32::from_ne_bytes) {
            Ok(slot) => write!(f, "{slot}"),
            Err(_) => f.write_str("?"),
        },
        Part::Interface => {
            let name: Vec<u8> = value.iter().copied().take_while(|byte| *byte != 0).collect();
            write!(f, "\"{}\"", String::from_utf8_lossy(&name))
        }
    }
}

/// The address at the head of some bytes.
pub fn read_address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    let bytes = bytes.get(..address_len(family))?;
    Some(match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    })
}
