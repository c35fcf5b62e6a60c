//! Lookups of a packet's values in a set or map.

use crate::field::Field;

/// The packet's values of a key, looked up in a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The name of the set or map.
    pub set: &'static str,
    /// The fields that make the key.
    pub key: Vec<Field>,
    /// The field of which only a prefix counts.
    pub(crate) prefix: Option<FieldPrefix>,
}

impl Lookup {
    /// The same where only the first `bits` of this field count; the others are 0.
    pub fn prefix(self, field: Field, bits: u8) -> Self {
        Self { prefix: Some(FieldPrefix { field, bits, is_marked: false }), ..self }
    }

    /// The same where only the first `bits` of this field count, the next one is 1, and the others
    /// are 0: a set can have prefixes of several lengths, shorter than the field.
    pub fn marked_prefix(self, field: Field, bits: u8) -> Self {
        Self { prefix: Some(FieldPrefix { field, bits, is_marked: true }), ..self }
    }
}

/// A prefix of a field, in place of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldPrefix {
    pub field: Field,
    bits: u8,
    is_marked: bool,
}

impl FieldPrefix {
    /// The bits of the field that count.
    pub fn mask(self) -> Vec<u8> {
        prefix_mask(self.bits, self.field.size())
    }

    /// The bit after the prefix, if the lookup marks it.
    pub fn mark(self) -> Vec<u8> {
        let mut mark = vec![0; self.field.size()];
        if self.is_marked {
            mark[usize::from(self.bits / 8)] = 0x80 >> (self.bits % 8);
        }
        mark
    }

    pub fn is_marked(self) -> bool {
        self.is_marked
    }
}

/// The first `bits` of this many bytes.
pub(crate) fn prefix_mask(bits: u8, length: usize) -> Vec<u8> {
    let of_byte = |byte: usize| {
        let bits = usize::from(bits).saturating_sub(byte * 8).min(8) as u32;
        0xff_u8.checked_shl(8 - bits).unwrap_or(0)
    };
    (0..length).map(of_byte).collect()
}
