//! Sets and maps, and the table that has them: what a client declares.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::bytes::{Data, Key, read_address};
use crate::family::TableFamily;
use crate::field::{ByteOrder, Field, write_value};
use crate::lookup::Lookup;
use crate::user_data::{expression, find_tlv, tlv, with_nul};
use denizen_packet::Family;

/// A client's number for one of its sets: the client chooses it, different from the numbers of the
/// table's other sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub u8);

/// A table as its client declares it, without chains and elements.
///
/// A restarted client, which remembers nothing, recognises its table by family and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// The family, which decides which packets its chains see.
    pub family: TableFamily,
    /// The table's name, unique in its family.
    pub name: &'static str,
    /// What it is for, beside it on the node.
    pub comment: &'static str,
    /// Its sets, in the order in which they are made.
    pub sets: Vec<Set>,
}

/// A set or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// The client's number of it.
    pub id: SetId,
    /// Its name in the kernel.
    pub name: &'static str,
    /// What it is for, beside it on the node.
    pub comment: &'static str,
    /// The fields that a key consists of.
    pub key: Vec<Field>,
    /// Whether elements are ranges of the key's only field, an address ([`Key::up_to_address`]).
    /// The ranges do not overlap.
    ///
    /// The kernel has sets of ranges of several fields too, but a lookup in such a set goes through
    /// every element that has the packet's values in the first fields, and a change through all
    /// elements. A set with prefixes as elements ([`Lookup::prefix`]) takes their place.
    pub is_ranged: bool,
    /// What a key leads to.
    pub data: DataType,
    /// How many elements packets may add, each with a timeout: about 100 bytes of the kernel's
    /// memory each. `None` if only the client adds elements.
    pub max_dynamic_elements: Option<u32>,
}

/// What an element holds besides its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataType {
    /// Nothing: a set.
    None,
    /// A verdict.
    Verdict,
    /// Values of these fields.
    Fields(Vec<Field>),
}

/// What a key leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing: the key is a member of a set.
    Member,
    /// The verdict to go to the chain of this name, and not to return.
    Goto(Arc<str>),
    /// Values of the fields that the map's data consists of.
    Data(Data),
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The set that it is in.
    pub set: SetId,
    /// The values of the key's fields.
    pub key: Key,
    /// What the key leads to.
    pub value: Value,
    /// For a person who lists the set.
    pub comment: Option<Arc<str>>,
}

impl Schema {
    /// The set with this number. It exists: a client's elements are in sets that the client
    /// declared.
    pub fn set(&self, id: SetId) -> &Set {
        let found = self.sets.iter().find(|set| set.id == id);
        found.expect("an element's set is one that the table's schema has")
    }

    /// The sets whose elements are compared. Sets that packets fill are not compared. Reading many
    /// elements would take minutes: for every piece of a dump the kernel counts from the first
    /// element.
    pub(crate) fn compared(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter(|set| set.max_dynamic_elements.is_none())
    }
}

/// nft's number for verdicts as data. Their length is the kernel's own affair.
pub(crate) const VERDICT: u32 = 0xffff_ff00;

/// Where nft keeps a set's comment (`NFTNL_UDATA_SET_COMMENT`).
const COMMENT: u8 = 7;

/// nft's number for the type of a concatenation: six bits a field, the first highest.
fn type_of(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |whole, field| (whole << 6) | field.data_type().0)
}

fn len_of(fields: &[Field]) -> u32 {
    fields.iter().map(|field| field.words() * 4).sum()
}

/// A concatenation has no byte order of its own.
fn byte_order_of(fields: &[Field]) -> u32 {
    match fields {
        [field] => match field.byte_order() {
            ByteOrder::Host => 1,
            ByteOrder::Network => 2,
        },
        _ => 0,
    }
}

fn description_of(fields: &[Field]) -> Vec<u8> {
    const CONCATENATION: u32 = 13;
    if let [field] = fields {
        return field.description();
    }
    let mut each = Vec::new();
    for (n, field) in fields.iter().enumerate() {
        tlv(&mut each, n as u8, &field.description());
    }
    expression(CONCATENATION, &each)
}

impl Set {
    /// The same set with addresses of this version in its keys and values.
    pub fn in_version(mut self, version: Family) -> Self {
        let fields = match &mut self.data {
            DataType::None | DataType::Verdict => &mut Vec::new(),
            DataType::Fields(fields) => fields,
        };
        for field in self.key.iter_mut().chain(fields) {
            *field = field.in_version(version);
        }
        self
    }

    /// A lookup of the packet's values of the key.
    pub fn lookup(&self) -> Lookup {
        self.lookup_of(self.key.clone())
    }

    /// A lookup of other fields than the declared ones. They must have the same sizes.
    pub fn lookup_of(&self, key: Vec<Field>) -> Lookup {
        Lookup { set: self.name, key, prefix: None }
    }

    /// Like [`Self::lookup`], but the key's random number is drawn below `below`.
    pub fn draw(&self, below: u32) -> Lookup {
        let is_random = |field: &Field| matches!(field, Field::Random(_));
        let drawn = self
            .key
            .iter()
            .map(|field| if is_random(field) { Field::Random(below) } else { *field });
        self.lookup_of(drawn.collect())
    }

    /// nft's number for the key's type, and the key's length.
    pub(crate) fn key_type(&self) -> (u32, u32) {
        let length = match self.key[..] {
            // Only a key of several fields is padded to whole registers.
            [field] => field.size() as u32,
            _ => len_of(&self.key),
        };
        (type_of(&self.key), length)
    }

    /// nft's number for the data's type, and the data's length.
    pub(crate) fn data_type(&self) -> Option<(u32, u32)> {
        match &self.data {
            DataType::None => None,
            DataType::Verdict => Some((VERDICT, 0)),
            DataType::Fields(fields) => Some((type_of(fields), len_of(fields))),
        }
    }

    /// The version of the addresses, if the elements are ranges.
    pub(crate) fn range(&self) -> Option<Family> {
        let field = self.key.first().filter(|_| self.is_ranged)?;
        field.address()
    }

    /// `enum nft_set_flags`.
    pub(crate) fn flags(&self) -> u32 {
        const INTERVAL: u32 = 0x4;
        const MAP: u32 = 0x8;
        const TIMEOUT: u32 = 0x10;
        const DYNAMIC: u32 = 0x20;
        let map = if self.data == DataType::None { 0 } else { MAP };
        let ranged = if self.is_ranged { INTERVAL } else { 0 };
        let dynamic = if self.max_dynamic_elements.is_some() { TIMEOUT | DYNAMIC } else { 0 };
        map | ranged | dynamic
    }

    /// What nft keeps beside the set (`NFTA_SET_USERDATA`), so that it lists keys by their
    /// expressions and reads its own listing back.
    pub(crate) fn user_data(&self) -> Vec<u8> {
        const KEY_BYTE_ORDER: u8 = 0;
        const DATA_BYTE_ORDER: u8 = 1;
        const KEY_TYPEOF: u8 = 3;
        const DATA_TYPEOF: u8 = 4;
        let data: &[Field] = match &self.data {
            DataType::None | DataType::Verdict => &[],
            DataType::Fields(fields) => fields,
        };
        let mut out = Vec::new();
        tlv(&mut out, KEY_BYTE_ORDER, &byte_order_of(&self.key).to_ne_bytes());
        if self.data != DataType::None {
            tlv(&mut out, DATA_BYTE_ORDER, &byte_order_of(data).to_ne_bytes());
        }
        tlv(&mut out, KEY_TYPEOF, &description_of(&self.key));
        if !data.is_empty() {
            tlv(&mut out, DATA_TYPEOF, &description_of(data));
        }
        tlv(&mut out, COMMENT, &with_nul(self.comment));
        out
    }

    /// A key as nft writes it, its fields joined by ` . `.
    pub fn key_text<'a>(&'a self, key: &'a Key) -> impl fmt::Display + 'a {
        FieldsText { fields: &self.key, range: self.range(), bytes: key.as_bytes() }
    }
}

/// User data of a set without the comment, which another release may word differently.
pub(crate) fn without_comment(user_data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for kind in 0..COMMENT {
        if let Some(value) = find_tlv(user_data, kind) {
            tlv(&mut out, kind, value);
        }
    }
    out
}

/// Values of fields as nft writes them.
pub(crate) struct FieldsText<'a> {
    pub fields: &'a [Field],
    pub range: Option<Family>,
    pub bytes: &'a [u8],
}

impl fmt::Display for FieldsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.bytes.get(len_of(self.fields) as usize..).unwrap_or_default();
        let mut at = 0;
        for (n, field) in self.fields.iter().enumerate() {
            if n > 0 {
                f.write_str(" . ")?;
            }
            let value = self.bytes.get(at..).unwrap_or_default();
            write_value(*field, f, value)?;
            at += field.words() as usize * 4;
        }
        match self.range {
            Some(version) => write_end(f, version, self.bytes, end),
            None => Ok(()),
        }
    }
}

/// The end of a range of addresses as nft writes it: a prefix length if the range is a prefix.
fn write_end(
    f: &mut fmt::Formatter<'_>,
    version: Family,
    first: &[u8],
    last: &[u8],
) -> fmt::Result {
    let (Some(first), Some(last)) = (read_address(version, first), read_address(version, last))
    else {
        return Ok(());
    };
    let differ = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => u128::from(u32::from(first) ^ u32::from(last)),
        (IpAddr::V6(first), IpAddr::V6(last)) => u128::from(first) ^ u128::from(last),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return Ok(()),
    };
    let host_bits = differ.count_ones();
    let prefix = version.address_len() as u32 * 8 - host_bits;
    let is_prefix = differ.checked_add(1).is_none_or(u128::is_power_of_two);
    match (host_bits, is_prefix && trailing_zeros(first) >= host_bits) {
        (0, _) => Ok(()),
        (_, true) => write!(f, "/{prefix}"),
        (_, false) => write!(f, "-{last}"),
    }
}

fn trailing_zeros(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => u32::from(address).trailing_zeros(),
        IpAddr::V6(address) => u128::from(address).trailing_zeros(),
    }
}

/// An address and a port, or another number in network order, as a map's data holds them.
pub fn endpoint(address: IpAddr, port: u16) -> Data {
    Data::EMPTY.address(address).port(port)
}

/// The address and the port in a map's data; `None` if the data is something else.
pub fn read_endpoint(version: Family, data: &Data) -> Option<(IpAddr, u16)> {
    let bytes = data.as_bytes();
    let port = bytes.get(version.address_len()..)?.first_chunk()?;
    Some((read_address(version, bytes)?, u16::from_be_bytes(*port)))
}
