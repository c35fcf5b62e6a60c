//! A difference in two transactions.

use std::collections::BTreeSet;

use crate::batch::Batch;
use crate::bytes::Key;
use crate::content::Content;
use crate::difference::Delta;
use crate::rule::Chain;
use crate::set::{Element, Schema, SetId, Value};

/// First everything at once; then what nothing refers to any more ([`Content::is_garbage`]).
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
            // What is replaced is replaced at once.
            let added: BTreeSet<(SetId, Key)> =
                delta.add.iter().map(|element| (element.set, element.key)).collect();
            delta.delete.extend(then.extract_if(.., |key| added.contains(key)));
        }
        let mut steps = Self { first: delta, then: Delta { delete: then, ..Delta::default() } };
        steps.first.sort();
        steps.then.sort();
        steps
    }

    pub fn write_first(
        &self,
        batch: &mut Batch,
        schema: &Schema,
        chains: impl FnOnce() -> Vec<Chain>,
        content: &impl Content,
    ) {
        self.first.write_within(batch, schema, chains, |set| {
            let later = self.then.delete.iter().filter(|(id, _)| *id == set);
            let kept = later.map(|(set, key)| member(*set, *key));
            content.elements_of(set).into_iter().chain(kept).collect()
        });
    }

    pub fn write_then(
        &self,
        batch: &mut Batch,
        schema: &Schema,
        chains: impl FnOnce() -> Vec<Chain>,
        content: &impl Content,
    ) {
        self.then.write_within(batch, schema, chains, |set| content.elements_of(set));
    }
}

/// Of the sets of ranges that are made anew, those with garbage have no data.
fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}
