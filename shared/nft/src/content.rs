//! The desired content of a table, which a client renders.

use crate::bytes::Key;
use crate::chain::Chain;
use crate::difference::Delta;
use crate::observed::Observed;
use crate::set::{Element, SetId};

/// The desired content of a table. A client renders it and decides nothing about how it gets into
/// the kernel: that is the [`Keeper`](crate::Keeper)'s.
pub trait Content {
    /// Every chain, each before the chains that refer to it.
    fn chains(&self) -> Vec<Chain>;

    /// Every element, in no order. They are made one by one: together they may take more memory
    /// than what they are made from.
    fn elements(&self) -> impl Iterator<Item = Element>;

    /// How much of the content is known.
    fn extent(&self) -> Extent {
        Extent::Whole
    }

    /// Whether the desired elements of a set are known. If not, the set keeps its elements.
    fn covers(&self, _set: SetId) -> bool {
        true
    }

    /// Whether nothing in the table refers to an element any more. Such an element is removed by a
    /// second transaction, after the one that changes everything else: a packet that has read what
    /// referred to the element still finds it.
    fn is_garbage(&self, _set: SetId, _key: &Key) -> bool {
        false
    }

    /// Chains that replace those of the same names before the existing table is replaced. While the
    /// kernel removes a table, packets still pass its chains and find its maps empty.
    fn before_replacing(&self, _seen: &Observed) -> Vec<Chain> {
        Vec::new()
    }

    /// The elements that others may have added and that stay when the table is replaced.
    fn foreign_members(&mut self, _seen: &Observed) -> Vec<Element> {
        Vec::new()
    }

    /// Reviews what is about to be changed, given what the kernel holds, and may change it. Returns
    /// how many of the removals do not count as drift, because other programs may add such
    /// elements.
    fn review(&mut self, _seen: &Observed, _delta: &mut Delta) -> usize {
        0
    }
}

/// How much of a table's content is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it: everything else in the table is removed.
    Whole,
    /// Some facts are missing: chains of an earlier run stay. If that run was another version,
    /// and `into_foreign` is set, elements are still put into sets that are as declared.
    Partly {
        /// Whether sets of another version's table get elements, if they are as declared.
        into_foreign: bool,
    },
}
