//! A difference in two transactions.

use std::collections::BTreeSet;

use crate::bytes::Key;
use crate::content::Content;
use crate::difference::Delta;
use crate::set::SetId;

/// `garbage` removes the elements and chains that nothing refers to any more
/// ([`Content::is_garbage`], [`Delta::left_over`]), after `changes` has made all other changes at
/// once. Before 6.2 a kernel refuses to remove a chain in the batch that removes what refers to it.
#[derive(Debug)]
pub(crate) struct Steps {
    pub changes: Delta,
    pub garbage: Delta,
}

impl Steps {
    pub fn new(mut delta: Delta, content: &impl Content) -> Self {
        let mut garbage: Vec<(SetId, Key)> =
            delta.delete.extract_if(.., |(set, key)| content.is_garbage(*set, key)).collect();
        if !garbage.is_empty() {
            // An element that is replaced is removed and added in the same transaction.
            let added: BTreeSet<(SetId, Key)> =
                delta.add.iter().map(|element| (element.set, element.key)).collect();
            delta.delete.extend(garbage.extract_if(.., |key| added.contains(key)));
        }
        let left_over = std::mem::take(&mut delta.left_over);
        let garbage = Delta { delete: garbage, left_over, ..Delta::default() };
        let mut steps = Self { changes: delta, garbage };
        steps.changes.sort();
        steps.garbage.sort();
        steps
    }
}
