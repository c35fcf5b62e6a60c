//! Keys and data of elements, as the kernel's registers hold them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use denizen_packet::Family;

/// Up to `N` bytes in place: what is in the kernel's registers, in whole 32-bit words.
///
/// Invariant: the bytes behind `length` are zero.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct Bytes<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

/// An element's key: its fields in order. The longest one has two IPv6 addresses, or an address and
/// an interface's name, and three numbers.
pub type Key = Bytes<44>;

/// What a key leads to in a map: at most an IPv6 address and a number.
pub type Data = Bytes<20>;

impl<const N: usize> Bytes<N> {
    /// Without fields.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; N] };

    /// What the kernel sent; `None` if it is longer than any key or data of ours.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // A key of one short field is sent without the padding that fills its register.
        let length = u8::try_from(bytes.len().next_multiple_of(4)).ok()?;
        let mut whole = Self { length, bytes: [0; N] };
        whole.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(whole)
    }

    /// What the kernel is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(mut self, value: &[u8]) -> Self {
        let at = usize::from(self.length);
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.length += value.len().next_multiple_of(4) as u8;
        self
    }

    /// Appends an address, as a field of its own.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) => self.push(&ip.octets()),
            IpAddr::V6(ip) => self.push(&ip.octets()),
        }
    }

    /// Appends an Ethernet address, as a field of its own.
    pub fn ether(self, address: [u8; 6]) -> Self {
        self.push(&address)
    }

    /// With a number of one byte: a protocol, a type.
    pub fn byte(self, number: u8) -> Self {
        self.push(&[number])
    }

    /// With a number of two bytes in network order: a port, an EtherType.
    pub fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }

    /// With a number in the host's byte order: a mark, a priority, a number that the kernel draws.
    pub fn number(self, number: u32) -> Self {
        self.push(&number.to_ne_bytes())
    }

    /// With a name of an interface, which the kernel holds to 15 bytes.
    pub fn interface(self, name: &str) -> Self {
        let mut padded = [0; 16];
        let length = name.len().min(15);
        padded[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.push(&padded)
    }
}

impl Key {
    /// Makes the key, which is an address, a range from it up to `last`, for a set of ranges.
    pub fn up_to_address(self, last: IpAddr) -> Self {
        self.address(last)
    }

    /// The first and the last address of a key that is a range of this version's addresses.
    pub(crate) fn bounds(&self, version: Family) -> (Self, Self) {
        let length = version.address_len();
        let (first, last) = self.bytes[..length * 2].split_at(length);
        (Self::EMPTY.push(first), Self::EMPTY.push(last))
    }

    /// The key after this one, as a number in network order; `None` after the greatest key.
    pub(crate) fn successor(mut self) -> Option<Self> {
        for byte in self.bytes[..usize::from(self.length)].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return Some(self);
            }
        }
        None
    }

    /// The greatest key of this length.
    pub(crate) fn greatest(mut self) -> Self {
        self.bytes[..usize::from(self.length)].fill(0xff);
        self
    }

    /// The key before this one; `None` before zero.
    pub(crate) fn predecessor(mut self) -> Option<Self> {
        for byte in self.bytes[..usize::from(self.length)].iter_mut().rev() {
            *byte = byte.wrapping_sub(1);
            if *byte != 0xff {
                return Some(self);
            }
        }
        None
    }

    /// The range with these bounds; `None` if they are not addresses of this version.
    pub(crate) fn from_bounds(version: Family, first: &Self, last: &Self) -> Option<Self> {
        let is_address = |key: &Self| usize::from(key.length) == version.address_len();
        (is_address(first) && is_address(last)).then(|| first.push(last.as_bytes()))
    }
}

/// Compares only the bytes in use: most keys are a third as long as the longest, and keys are
/// compared and hashed for every element.
impl<const N: usize> PartialEq for Bytes<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> Hash for Bytes<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

/// The address that some bytes begin with.
pub fn read_address(version: Family, bytes: &[u8]) -> Option<IpAddr> {
    Some(match version {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)),
    })
}
