//! A client's table of its sets.

use crate::field::Field;
use crate::set::{DataType, Set, SetId};

/// How a set is declared: a row in a client's table of its sets, in the order in which they are
/// made.
#[derive(Debug, Clone, Copy)]
pub struct SetDeclaration<N> {
    /// The client's name for it.
    pub set: N,
    name: &'static str,
    key: &'static [Field],
    why: &'static str,
    data: Option<&'static [Field]>,
    is_ranged: bool,
    room: Option<u32>,
}

impl<N: Copy> SetDeclaration<N> {
    /// A set with this name in the kernel. See
    /// [`Set::in_version`] for addresses in `key`.
    pub const fn new(set: N, name: &'static str, key: &'static [Field]) -> Self {
        Self { set, name, key, why: "", data: None, is_ranged: false, room: None }
    }

    /// What it is for, beside it on the node.
    pub const fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    /// A map to values of these fields.
    pub const fn to(self, data: &'static [Field]) -> Self {
        Self { data: Some(data), ..self }
    }

    /// The same set as a map to chains: its values are verdicts.
    pub const fn to_chains(self) -> Self {
        self.to(&[])
    }

    /// Its elements are ranges ([`Set::is_ranged`]).
    pub const fn ranged(self) -> Self {
        Self { is_ranged: true, ..self }
    }

    /// Packets put elements into it ([`Set::room`]).
    pub const fn filled_by_packets(self, room: u32) -> Self {
        Self { room: Some(room), ..self }
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// See [`Set::room`].
    pub fn room(&self) -> Option<u32> {
        self.room
    }

    /// The set, which the driver knows by this number.
    pub fn declared(&self, id: SetId) -> Set {
        Set {
            id,
            name: self.name,
            comment: self.why,
            key: self.key.into(),
            is_ranged: self.is_ranged,
            data: match self.data {
                None => DataType::None,
                Some([]) => DataType::Verdict,
                Some(fields) => DataType::Fields(fields.into()),
            },
            room: self.room,
        }
    }
}
