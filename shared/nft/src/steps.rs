//! A difference in two transactions.

use std::collections::BTreeSet;

use crate::bytes::Key;
use crate::content::Content;
use crate::difference::Delta;
use crate::set::SetId;

/// `then` removes the elements that nothing refers to any more ([`Content::is_garbage`]); `first`
/// makes all other changes at once.
#[derive(Debug)]
pub(crate) struct Steps {
    pub first: Delta,
    pub then: Delta,
}

impl Steps {
    pub fn new(mut delta: Delta, content: &impl Content) -> Self {
        let mut then: Vec<(SetId, Key)> =
            delta.delete.extract_if(.., |(set, key)| content.is_garbage(*set, key)).collect();
        if !then.is_empty() {
            // An element that is replaced is removed and added in the same transaction.
            let added: BTreeSet<(SetId, Key)> =
                delta.add.iter().map(|element| (element.set, element.key)).collect();
            delta.delete.extend(then.extract_if(.., |key| added.contains(key)));
        }
        let mut steps = Self { first: delta, then: Delta { delete: then, ..Delta::default() } };
        steps.first.sort();
        steps.then.sort();
        steps
    }
}
