//! Reads protobuf messages as the Kubernetes API writes them. Pure.
//!
//! A message is walked field by field, and nothing of it is copied: a reader takes the fields that
//! it has a use for, and the rest is skipped by its length. Most of a pod is skipped.
//!
//! The API's messages are proto2 by gogo-proto. A field that is no pointer in Go is always written,
//! so an empty text means a missing one. Only varints and fields with a length occur; the two fixed
//! sizes are skipped, and groups, which nobody writes any more, are refused.

use std::fmt;

use thiserror::Error;

use crate::BorrowedText;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformation {
    #[error("it breaks off")]
    BreaksOff,
    #[error("a number has more than 64 bits")]
    LongNumber,
    #[error("a field has the number 0 or one that is too large")]
    FieldNumber,
    #[error("wire type {0} is not used by the Kubernetes API")]
    WireType(u8),
    #[error("a {found} in the place of a {expected}")]
    OtherType { expected: &'static str, found: &'static str },
    #[error("a text is not UTF-8")]
    NotUtf8,
    #[error("its content is compressed or encrypted")]
    Encoded,
}

/// A message that cannot be read, and where: the numbers of the fields that lead there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("protobuf{}: {problem}", Path(.path))]
pub struct ProtobufError {
    /// From the innermost field outwards.
    path: Vec<u32>,
    pub problem: Malformation,
}

struct Path<'a>(&'a [u32]);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, number) in self.0.iter().rev().enumerate() {
            write!(f, "{}{number}", if place == 0 { " field " } else { "." })?;
        }
        Ok(())
    }
}

impl From<Malformation> for ProtobufError {
    fn from(problem: Malformation) -> Self {
        Self { path: Vec::new(), problem }
    }
}

impl ProtobufError {
    fn within(mut self, number: u32) -> Self {
        self.path.push(number);
        self
    }
}

/// A message that is built from its fields.
pub trait FromProtobuf<'a>: Default {
    /// Takes one field, or ignores it.
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError>;

    /// Takes all fields of a message. A second message in the place of one adds to the first.
    fn merge(&mut self, message: &'a [u8]) -> Result<(), ProtobufError> {
        for field in Fields::of(message) {
            let field = field?;
            self.take(&field).map_err(|error| error.within(field.number))?;
        }
        Ok(())
    }

    /// Reads a message.
    fn decode(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut decoded = Self::default();
        decoded.merge(message)?;
        Ok(decoded)
    }
}

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field<'a> {
    pub number: u32,
    pub value: FieldValue<'a>,
}

/// A field's value, as far as a message says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldValue<'a> {
    Number(u64),
    /// A text, a message, or bytes.
    Bytes(&'a [u8]),
    /// 4 or 8 bytes of a type that the API does not use.
    Fixed(&'a [u8]),
}

impl<'a> Field<'a> {
    /// A signed number; the API writes negative ones of 32 bits as 64 bits.
    pub fn number(&self) -> Result<i64, ProtobufError> {
        match self.value {
            FieldValue::Number(number) => Ok(number.cast_signed()),
            FieldValue::Bytes(_) | FieldValue::Fixed(_) => Err(self.other_type("number").into()),
        }
    }

    pub fn flag(&self) -> Result<bool, ProtobufError> {
        Ok(self.number()? != 0)
    }

    pub fn bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            FieldValue::Bytes(bytes) => Ok(bytes),
            FieldValue::Number(_) | FieldValue::Fixed(_) => {
                Err(self.other_type("text or message").into())
            }
        }
    }

    pub fn text(&self) -> Result<BorrowedText<'a>, ProtobufError> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformation::NotUtf8)?;
        Ok(text.into())
    }

    pub fn message<M: FromProtobuf<'a>>(&self) -> Result<M, ProtobufError> {
        M::decode(self.bytes()?)
    }

    /// Adds to a message that may occur once.
    pub fn merge_into<M: FromProtobuf<'a>>(
        &self,
        message: &mut Option<M>,
    ) -> Result<(), ProtobufError> {
        message.get_or_insert_default().merge(self.bytes()?)
    }

    /// Adds to a list.
    pub fn push_into<M: FromProtobuf<'a>>(
        &self,
        list: &mut Option<Vec<M>>,
    ) -> Result<(), ProtobufError> {
        // Decoded where it stays in memory: some messages are large.
        let list = list.get_or_insert_default();
        let place = list.len();
        list.push(M::default());
        list[place].merge(self.bytes()?)
    }

    /// Adds to a list of texts.
    pub fn push_text(&self, list: &mut Option<Vec<BorrowedText<'a>>>) -> Result<(), ProtobufError> {
        list.get_or_insert_default().push(self.text()?);
        Ok(())
    }

    fn other_type(&self, expected: &'static str) -> Malformation {
        let found = match self.value {
            FieldValue::Number(_) => "number",
            FieldValue::Bytes(_) => "text or message",
            FieldValue::Fixed(_) => "value of fixed size",
        };
        Malformation::OtherType { expected, found }
    }
}

/// An entry of a map of texts.
#[derive(Debug, Default)]
pub struct MapEntry<'a> {
    pub key: BorrowedText<'a>,
    pub value: BorrowedText<'a>,
}

impl<'a> FromProtobuf<'a> for MapEntry<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.key = field.text()?,
            2 => self.value = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// The fields of a message, one after the other. The iterator ends with the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = match Head::of(self.rest) {
            Ok(Some(head)) => head.field(self.rest).ok_or(Malformation::BreaksOff),
            Ok(None) => Err(Malformation::BreaksOff),
            Err(problem) => Err(problem),
        };
        match field {
            Ok((field, rest)) => {
                self.rest = rest;
                Some(Ok(field))
            }
            Err(problem) => {
                self.rest = &[];
                Some(Err(problem.into()))
            }
        }
    }
}

/// The bytes before a field's value: its number and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub number: u32,
    wire_type: u8,
    /// Where the value begins.
    pub size: usize,
    /// The length of the value; `usize::MAX` stands for whatever no memory could hold.
    pub length: usize,
}

const NUMBER: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

/// Field numbers have 29 bits.
const LARGEST_FIELD: u64 = (1 << 29) - 1;

impl Head {
    /// The head of the field that `bytes` begin with; `None` if there are too few of them.
    pub fn of(bytes: &[u8]) -> Result<Option<Self>, Malformation> {
        let Some((key, size)) = number(bytes)? else { return Ok(None) };
        let field = key >> 3;
        if field == 0 || field > LARGEST_FIELD {
            return Err(Malformation::FieldNumber);
        }
        let wire_type = (key & 7) as u8;
        let (size, length) = match wire_type {
            NUMBER => match number(&bytes[size..])? {
                Some((_, length)) => (size, length),
                None => return Ok(None),
            },
            FIXED_64 => (size, 8),
            FIXED_32 => (size, 4),
            BYTES => match number(&bytes[size..])? {
                Some((length, more)) => {
                    (size + more, usize::try_from(length).unwrap_or(usize::MAX))
                }
                None => return Ok(None),
            },
            other => return Err(Malformation::WireType(other)),
        };
        Ok(Some(Self { number: field as u32, wire_type, size, length }))
    }

    /// Whether the value is a text or a message.
    pub fn has_bytes(&self) -> bool {
        self.wire_type == BYTES
    }

    /// The length of head and value together.
    pub fn whole(&self) -> usize {
        self.size.saturating_add(self.length)
    }

    /// The field that `bytes` begin with, and what follows it; `None` if it is not there as a
    /// whole.
    fn field<'a>(&self, bytes: &'a [u8]) -> Option<(Field<'a>, &'a [u8])> {
        let (field, rest) = bytes.split_at_checked(self.whole())?;
        let value = &field[self.size..];
        let value = match self.wire_type {
            NUMBER => FieldValue::Number(number(value).ok()??.0),
            BYTES => FieldValue::Bytes(value),
            _ => FieldValue::Fixed(value),
        };
        Some((Field { number: self.number, value }, rest))
    }
}

/// A number in 1 to 10 bytes, and how many they are; `None` if there are too few bytes.
#[inline]
fn number(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformation> {
    match bytes.first() {
        // One byte, as most keys and lengths have.
        Some(byte) if byte & 0x80 == 0 => Ok(Some((u64::from(*byte), 1))),
        Some(_) => long_number(bytes),
        None => Ok(None),
    }
}

fn long_number(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformation> {
    let mut number = 0_u64;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if place == 9 && bits > 1 {
            return Err(Malformation::LongNumber);
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((number, place + 1)));
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err(Malformation::LongNumber) }
}

/// Every object that is not part of another object begins with this.
const MAGIC: &[u8; 4] = b"k8s\0";

/// An object with the name of its type (`runtime.Unknown`).
#[derive(Debug, Default)]
pub struct Envelope<'a> {
    pub kind: BorrowedText<'a>,
    pub object: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Opens an envelope; `None` if `bytes` are not protobuf.
    pub fn open(bytes: &'a [u8]) -> Result<Option<Self>, ProtobufError> {
        bytes.strip_prefix(MAGIC).map(Self::decode).transpose()
    }
}

impl<'a> FromProtobuf<'a> for Envelope<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.kind = field.message::<TypeMeta<'a>>()?.kind,
            2 => self.object = field.bytes()?,
            3 if !field.bytes()?.is_empty() => return Err(Malformation::Encoded.into()),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct TypeMeta<'a> {
    pub kind: BorrowedText<'a>,
}

impl<'a> FromProtobuf<'a> for TypeMeta<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 2 {
            self.kind = field.text()?;
        }
        Ok(())
    }
}

/// Whether `bytes` begin as protobuf does; `None` if there are too few of them.
pub fn begins_protobuf(bytes: &[u8]) -> Option<bool> {
    bytes.get(..MAGIC.len()).map(|start| start == MAGIC)
}

/// The length of what [`begins_protobuf`] looks at.
pub const MAGIC_LENGTH: usize = MAGIC.len();
