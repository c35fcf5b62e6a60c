//! Differences between a table and its desired content, and the batches that remove them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::batch::Batch;
use crate::bytes::Key;
use crate::chain::Chain;
use crate::edit::Edit;
use crate::set::{Element, Schema, SetId};

/// Elements to remove and elements to add. An element that is replaced is in both lists; the kernel
/// does both at one instant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Chains to add first, since elements lead to them.
    pub chains: Vec<Chain>,
    /// Elements to remove first.
    pub delete: Vec<(SetId, Key)>,
    /// Elements to add then.
    pub add: Vec<Element>,
    /// Chains to remove, by a later transaction: elements led to them.
    pub left_over: BTreeSet<Arc<str>>,
}

impl Delta {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
            && self.delete.is_empty()
            && self.add.is_empty()
            && self.left_over.is_empty()
    }

    /// Forgets everything, and keeps its memory.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.delete.clear();
        self.add.clear();
        self.left_over.clear();
    }

    /// Adds chains. Chains that were to be removed stay instead.
    pub fn add_chains(&mut self, chains: Vec<Chain>) {
        self.chains.extend(chains.into_iter().filter(|chain| !self.left_over.remove(&chain.name)));
    }

    /// How many elements change: the longer of the two lists, so that replaced elements count once.
    pub fn count(&self) -> usize {
        self.add.len().max(self.delete.len())
    }

    /// Sorts elements by set and key: those of one set share messages, and the order is always the
    /// same.
    pub fn sort(&mut self) {
        self.delete.sort_unstable();
        self.add.sort_unstable_by_key(|element| (element.set, element.key));
    }

    /// Adds the difference between two lists of elements.
    ///
    /// Where both lists begin with the same keys in the same order, as they mostly do, no key is
    /// hashed.
    pub fn extend(&mut self, before: Vec<Element>, after: Vec<Element>) {
        let has_same_key = |(before, after): &(&Element, &Element)| {
            before.set == after.set && before.key == after.key
        };
        let aligned = before.iter().zip(&after).take_while(has_same_key).count();
        let (mut before, mut after) = (before.into_iter(), after.into_iter());
        for (before, after) in before.by_ref().zip(after.by_ref()).take(aligned) {
            self.replace(&before, after);
        }
        if before.len() == 0 {
            return self.add.extend(after);
        }
        if after.len() == 0 {
            return self.delete.extend(before.map(|element| (element.set, element.key)));
        }
        let mut stale: HashMap<(SetId, Key), Element> =
            before.map(|element| ((element.set, element.key), element)).collect();
        for element in after {
            match stale.remove(&(element.set, element.key)) {
                Some(before) => self.replace(&before, element),
                None => self.add.push(element),
            }
        }
        self.delete.extend(stale.into_keys());
    }

    /// Adds the difference between two elements of the same key.
    fn replace(&mut self, before: &Element, after: Element) {
        if *before != after {
            self.delete.push((after.set, after.key));
            self.add.push(after);
        }
    }

    /// Writes the difference: chains, removals, additions, and chains that are left over.
    pub fn write(&self, batch: &mut Batch, schema: &Schema) {
        batch.add_chains(schema.name, &self.chains);
        batch.delete_elements(schema, &self.delete);
        batch.add_elements(schema, &self.add);
        batch.delete_chains(schema.name, &self.left_over);
    }
}

/// How a table's chains differ from those that should be there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Chains that do not exist.
    pub(crate) missing: Vec<Chain>,
    /// Chains with wrong rules.
    pub(crate) wrong: Vec<Edit>,
    /// Chains that the wrong hook calls, or that no hook should call.
    pub(crate) misplaced: Vec<Arc<str>>,
    /// Superfluous chains. They are removed when nothing refers to them any more.
    pub(crate) left_over: Vec<Arc<str>>,
}

impl Structure {
    /// Whether chains and rules are only missing, none wrong.
    pub fn is_additive(&self) -> bool {
        self.wrong.is_empty() && self.misplaced.is_empty()
    }

    /// How many chains differ, besides those that are left over.
    pub fn count(&self) -> usize {
        let is_replaced = |name: &&Arc<str>| !self.missing.iter().any(|c| c.name == **name);
        self.missing.len() + self.wrong.len() + self.misplaced.iter().filter(is_replaced).count()
    }

    /// Chains that should not be there, and that rules may still refer to.
    pub fn left_over(&self) -> &[Arc<str>] {
        &self.left_over
    }

    /// Corrects the chains. Elements stay, also those that packets added, so the removal of a
    /// foreign rule interrupts no connection. Correct rules stay with their counters.
    pub fn write(&self, batch: &mut Batch, table: &str) {
        batch.delete_chains(table, &self.misplaced);
        for chain in &self.missing {
            batch.add_chain(table, chain);
        }
        for edit in &self.wrong {
            edit.write(batch, table);
        }
        for chain in &self.missing {
            batch.add_rules(table, chain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::Value;

    /// What a member is made of.
    type SetKeyComment = (u8, u32, &'static str);

    fn member((set, key, comment): SetKeyComment) -> Element {
        let key = Key::EMPTY.number(key);
        Element { set: SetId(set), key, value: Value::Member, comment: Some(comment.into()) }
    }

    #[test]
    fn a_difference_does_not_depend_on_the_order_of_elements() {
        let now = [(1, 1, "a"), (1, 2, "a"), (2, 1, "a")];
        let cases: [(&str, &[SetKeyComment]); 6] = [
            ("the same", &[(1, 1, "a"), (1, 2, "a"), (2, 1, "a")]),
            ("one replaced", &[(1, 1, "a"), (1, 2, "b"), (2, 1, "a")]),
            ("one more between others", &[(1, 1, "a"), (1, 3, "a"), (1, 2, "a"), (2, 1, "a")]),
            ("one fewer, one replaced", &[(1, 2, "a"), (2, 1, "b")]),
            ("another order", &[(2, 1, "b"), (1, 1, "a"), (1, 2, "a")]),
            ("none", &[]),
        ];
        for (name, wanted) in cases {
            let mut delta = Delta::default();
            delta.extend(now.map(member).into(), wanted.iter().copied().map(member).collect());
            let is_in = |all: &[SetKeyComment], element: &SetKeyComment| all.contains(element);
            let gone = now.iter().filter(|element| !is_in(wanted, element));
            let gone = gone.map(|(set, key, _)| (SetId(*set), Key::EMPTY.number(*key)));
            let come = wanted.iter().filter(|element| !is_in(&now, element)).copied().map(member);
            let mut expected =
                Delta { delete: gone.collect(), add: come.collect(), ..Delta::default() };
            expected.sort();
            delta.sort();
            assert_eq!(delta, expected, "{name}");
        }
    }
}
