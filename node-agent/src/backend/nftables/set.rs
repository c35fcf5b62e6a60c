//! The shapes of the sets and maps: what their keys and values are made of.

use super::name::{Facts, SetName};
use crate::model::Family;

/// A service address cannot have more endpoints than this: the slots are numbered with 16 bits.
pub const MOST_SLOTS: u32 = 65_535;

/// One part of a key: a value that is taken from a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
    /// Transport protocol.
    Protocol,
    /// Destination port.
    Port,
    /// A number that is drawn: the slot of an endpoint.
    Slot,
    /// Name of the input interface.
    Interface,
    /// A range that the source address is in: the address, and the length of the prefix. Only in a
    /// set, and there the last part.
    SourceRange,
    /// The packet's priority, in which session affinity keeps an endpoint's number for a moment.
    Scratch,
}

/// What an element holds besides its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Nothing: a set.
    None,
    /// A verdict.
    Verdict,
    /// An endpoint's address and port.
    Endpoint,
    /// An endpoint's number, for [`Part::Scratch`].
    Number,
}

/// The shape of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The key's parts, in order.
    pub key: &'static [Part],
    /// What the key leads to.
    pub data: Data,
}

impl SetName {
    /// What the set's elements look like.
    pub fn shape(self) -> Shape {
        use Part::{Destination, Interface, Port, Protocol, Scratch, Slot, Source, SourceRange};
        let (key, data): (&[Part], _) = match self {
            Self::Services | Self::LocalServices => (&[Destination, Protocol, Port], Data::Verdict),
            Self::Endpoints | Self::LocalEndpoints => {
                (&[Destination, Protocol, Port, Slot], Data::Endpoint)
            }
            Self::NodePorts | Self::LocalNodePorts => (&[Protocol, Port], Data::Verdict),
            Self::NodePortEndpoints | Self::LocalNodePortEndpoints => {
                (&[Protocol, Port, Slot], Data::Endpoint)
            }
            Self::ClusterIps | Self::NodePortAddresses => (&[Destination], Data::None),
            Self::LocalPods | Self::BridgedPods | Self::PodPorts | Self::PodPorts6 => {
                (&[Interface, Source], Data::None)
            }
            Self::Hairpin => (&[Source, Destination], Data::None),
            Self::RestrictedFrontends => (&[Destination, Protocol, Port], Data::None),
            Self::AllowedSources => (&[Destination, Protocol, Port, SourceRange], Data::None),
            // The number first: nft cannot write a rule that updates a set whose key begins with an
            // IPv6 address.
            Self::Affinity | Self::AffinityReserved | Self::AffinityBrief => {
                (&[Scratch, Source], Data::Number)
            }
            Self::AffinityBudget => (&[Scratch], Data::None),
            Self::AffinitySlots | Self::LocalAffinitySlots => {
                (&[Destination, Protocol, Port, Slot], Data::Number)
            }
            Self::AffinityEndpoints | Self::LocalAffinityEndpoints => {
                (&[Destination, Protocol, Port, Scratch], Data::Endpoint)
            }
            Self::NodePortAffinitySlots | Self::LocalNodePortAffinitySlots => {
                (&[Protocol, Port, Slot], Data::Number)
            }
            Self::NodePortAffinityEndpoints | Self::LocalNodePortAffinityEndpoints => {
                (&[Protocol, Port, Scratch], Data::Endpoint)
            }
        };
        Shape { key, data }
    }
}

/// How many elements the kernel lets packets put into a set; `None` for sets that packets do not
/// fill. About 100 bytes of the kernel's memory each.
pub fn room(set: SetName) -> Option<u32> {
    // A budget for as many service ports as there are numbers for.
    let is_small = matches!(set, SetName::AffinityBrief | SetName::AffinityBudget);
    // In the reserve, 128 service ports that use up their budget twice over: at once, and in the
    // time after.
    let room = if is_small { 1 << 16 } else { 1 << 18 };
    (set.filled_by() == Facts::Traffic).then_some(room)
}

/// The bytes that an address of this family has.
pub fn address_len(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

impl Part {
    /// Bytes that count, of those that it takes in a key.
    pub fn len(self, family: Family) -> usize {
        match self {
            Self::Source | Self::SourceRange | Self::Destination => address_len(family),
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Slot | Self::Scratch => 4,
            Self::Interface => 16,
        }
    }

    /// 32-bit registers that it takes in a key.
    pub fn words(self, family: Family) -> u32 {
        self.len(family).div_ceil(4) as u32
    }

    /// nft's number for the data type (`enum datatypes` in nft's datatype.h), by which `nft list`
    /// knows how to print it.
    fn data_type(self, family: Family) -> u32 {
        match self {
            Self::Source | Self::SourceRange | Self::Destination => address_type(family),
            Self::Protocol => 12,
            Self::Port => INET_SERVICE,
            Self::Slot => 4,
            Self::Interface => 41,
            Self::Scratch => CLASS_ID,
        }
    }
}

/// nft's number for verdicts as data; their length is the kernel's own affair.
pub const VERDICT: u32 = 0xffff_ff00;
const INET_SERVICE: u32 = 13;
const CLASS_ID: u32 = 23;

fn address_type(family: Family) -> u32 {
    match family {
        Family::V4 => 7,
        Family::V6 => 8,
    }
}

impl Shape {
    /// Bytes of a key.
    pub fn key_len(&self, family: Family) -> u32 {
        self.key.iter().map(|part| part.words(family) * 4).sum()
    }

    /// Six bits a part, the first highest.
    pub fn key_type(&self, family: Family) -> u32 {
        self.key.iter().fold(0, |whole, part| (whole << 6) | part.data_type(family))
    }

    /// The kernel's number for the data's type, and its length.
    pub fn data(&self, family: Family) -> Option<(u32, u32)> {
        let endpoint = (address_type(family) << 6) | INET_SERVICE;
        match self.data {
            Data::None => None,
            Data::Verdict => Some((VERDICT, 0)),
            Data::Endpoint => Some((endpoint, address_len(family) as u32 + 4)),
            Data::Number => Some((CLASS_ID, 4)),
        }
    }

    /// Whether the last part of a key is a range.
    pub fn is_ranged(&self) -> bool {
        self.key.contains(&Part::SourceRange)
    }

    /// Whether packets fill it.
    pub fn is_dynamic(&self) -> bool {
        self.key.first() == Some(&Part::Scratch)
    }

    /// `enum nft_set_flags`.
    pub fn flags(&self) -> u32 {
        const INTERVAL: u32 = 0x4;
        const MAP: u32 = 0x8;
        const TIMEOUT: u32 = 0x10;
        const DYNAMIC: u32 = 0x20;
        const CONCATENATION: u32 = 0x80;
        let map = if self.data == Data::None { 0 } else { MAP };
        let ranged = if self.is_ranged() { INTERVAL | CONCATENATION } else { 0 };
        let dynamic = if self.is_dynamic() { TIMEOUT | DYNAMIC } else { 0 };
        map | ranged | dynamic
    }

    /// What nft keeps beside the set (`NFTA_SET_USERDATA`), so that it lists keys by their
    /// expressions and reads its own listing back.
    pub fn user_data(&self, family: Family, comment: &str) -> Vec<u8> {
        const KEY_BYTE_ORDER: u8 = 0;
        const DATA_BYTE_ORDER: u8 = 1;
        const KEY_TYPEOF: u8 = 3;
        const DATA_TYPEOF: u8 = 4;
        const COMMENT: u8 = 7;
        const HOST_ENDIAN: u32 = 1;
        const BIG_ENDIAN: u32 = 2;
        let mut out = Vec::new();
        let order = match self.key {
            [Part::Scratch] => HOST_ENDIAN,
            [_] => BIG_ENDIAN,
            // A concatenation has no byte order of its own.
            _ => 0,
        };
        tlv(&mut out, KEY_BYTE_ORDER, &order.to_ne_bytes());
        let (data_order, data): (u32, &[Part]) = match self.data {
            Data::None | Data::Verdict => (0, &[]),
            Data::Endpoint => (0, &[Part::Destination, Part::Port]),
            Data::Number => (HOST_ENDIAN, &[Part::Scratch]),
        };
        if self.data != Data::None {
            tlv(&mut out, DATA_BYTE_ORDER, &data_order.to_ne_bytes());
        }
        tlv(&mut out, KEY_TYPEOF, &type_of(self.key, family));
        if !data.is_empty() {
            tlv(&mut out, DATA_TYPEOF, &type_of(data, family));
        }
        tlv(&mut out, COMMENT, &with_nul(comment));
        out
    }
}

/// nft's description of an expression: its kind (`enum expr_types`), and what identifies it.
fn type_of(parts: &[Part], family: Family) -> Vec<u8> {
    const CONCATENATION: u32 = 13;
    if let [part] = parts {
        return described(*part, family);
    }
    let mut each = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        tlv(&mut each, n as u8, &described(*part, family));
    }
    expression(CONCATENATION, &each)
}

fn described(part: Part, family: Family) -> Vec<u8> {
    const PAYLOAD: u32 = 7;
    const META: u32 = 9;
    const NUMGEN: u32 = 23;
    let numbers = |numbers: &[u32]| {
        let mut data = Vec::new();
        for (n, number) in numbers.iter().enumerate() {
            tlv(&mut data, n as u8, &number.to_ne_bytes());
        }
        data
    };
    // Payload: nft's number of the header (`enum proto_desc_id`) and of the field in it.
    let (header, source, destination) = match family {
        Family::V4 => (12, 11, 12),
        Family::V6 => (13, 8, 9),
    };
    match part {
        Part::Source | Part::SourceRange => expression(PAYLOAD, &numbers(&[header, source])),
        Part::Destination => expression(PAYLOAD, &numbers(&[header, destination])),
        Part::Port => expression(PAYLOAD, &numbers(&[11, 2])),
        Part::Protocol => expression(META, &numbers(&[16])),
        Part::Interface => expression(META, &numbers(&[6])),
        Part::Scratch => expression(META, &numbers(&[2])),
        // Random, among as many as a slot may ever be.
        Part::Slot => expression(NUMGEN, &numbers(&[1, MOST_SLOTS, 0])),
    }
}

fn expression(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    tlv(&mut out, 0, &kind.to_ne_bytes());
    tlv(&mut out, 1, data);
    out
}

/// nft's user data: type, length, value.
pub fn tlv(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    debug_assert!(value.len() <= usize::from(u8::MAX), "user data of {} bytes", value.len());
    out.extend_from_slice(&[kind, value.len() as u8]);
    out.extend_from_slice(value);
}

/// The first value of this kind in user data.
pub fn find_tlv(mut data: &[u8], kind: u8) -> Option<&[u8]> {
    while let [found, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *found == kind {
            return Some(value);
        }
        data = &rest[usize::from(*length)..];
    }
    None
}

/// A comment as nft stores it.
pub fn with_nul(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// As a comment can be: nft takes 128 bytes, the last of them zero, and has no way to write a quote
/// in one. A name with a quote would make the whole host's `nft list` unreadable to nft.
pub fn cut(text: &str) -> String {
    let harmless = |c: char| if c == '"' || c.is_control() { '?' } else { c };
    let mut text: String = text.chars().map(harmless).collect();
    text.truncate(text.floor_char_boundary(127));
    text
}
