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
    max_dynamic_elements: Option<u32>,
}

impl<N: Copy> SetDeclaration<N> {
    /// A set with this name in the kernel. See
    /// [`Set::in_version`] for addresses in `key`.
    pub const fn new(set: N, name: &'static str, key: &'static [Field]) -> Self {
        Self { set, name, key, why: "", data: None, is_ranged: false, max_dynamic_elements: None }
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

    /// Packets put elements into it ([`Set::max_dynamic_elements`]).
    pub const fn filled_by_packets(self, max_elements: u32) -> Self {
        Self { max_dynamic_elements: Some(max_elements), ..self }
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// See [`Set::max_dynamic_elements`].
    pub fn max_dynamic_elements(&self) -> Option<u32> {
        self.max_dynamic_elements
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
            max_dynamic_elements: self.max_dynamic_elements,
        }
    }
}
