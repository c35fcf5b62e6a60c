//! What differs between a table and what it should be, and what makes them the same.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::batch::Batch;
use crate::bytes::Key;
use crate::edit::Edit;
use crate::observed::{Observed, wanted_chain};
use crate::rule::Chain;
use crate::set::{Element, Schema, SetId};

/// Elements to remove and elements to add. One that is replaced is in both lists; the kernel does
/// both at one instant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Chains to make before, which the elements lead to.
    pub chains: Vec<Chain>,
    /// What goes first.
    pub delete: Vec<(SetId, Key)>,
    /// Then what comes.
    pub add: Vec<Element>,
}

impl Delta {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.delete.is_empty() && self.add.is_empty()
    }

    /// Forgets everything, and keeps its memory.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.delete.clear();
        self.add.clear();
    }

    /// How many elements differ.
    pub fn count(&self) -> usize {
        self.add.len().max(self.delete.len())
    }

    /// Groups elements by set, so that each set's share messages, in an order that is always the
    /// same.
    pub fn sort(&mut self) {
        self.delete.sort_unstable();
        self.add.sort_unstable_by_key(|element| (element.set, element.key));
    }

    /// Adds what leads from some elements to others.
    pub fn extend(&mut self, now: Vec<Element>, wanted: Vec<Element>) {
        if now.is_empty() {
            return self.add.extend(wanted);
        }
        let mut stale: HashMap<(SetId, Key), Element> =
            now.into_iter().map(|element| ((element.set, element.key), element)).collect();
        for element in wanted {
            match stale.remove(&(element.set, element.key)) {
                Some(same) if same == element => {}
                Some(_) => {
                    self.delete.push((element.set, element.key));
                    self.add.push(element);
                }
                None => self.add.push(element),
            }
        }
        self.delete.extend(stale.into_keys());
    }

    /// Writes it: chains, what goes, then what comes.
    pub fn write(&self, batch: &mut Batch, schema: &Schema) {
        batch.add_chains(schema.name, &self.chains);
        batch.delete_elements(schema, &self.delete);
        batch.add_elements(schema, &self.add);
    }
}

/// How a table's chains differ from those that should be there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Those that are not there.
    missing: Vec<Chain>,
    /// Those with other rules than they should have.
    wrong: Vec<Edit>,
    /// Those that a hook calls, and should not, or another one should.
    misplaced: Vec<Arc<str>>,
    /// Those that should not be there. They go when nothing refers to them any more.
    left_over: Vec<Arc<str>>,
}

impl Structure {
    /// Whether nothing that is there is otherwise than it should be.
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

    /// Makes the chains what they should be. Elements stay: nobody suffers for a rule that somebody
    /// added, and what packets put into sets is kept. So do rules that are right, with what they
    /// have counted.
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

impl Observed {
    /// What differs between the table's chains and these; `None` when the table cannot be kept: it
    /// is not there, or its sets are not those that it should have.
    pub fn structure(&self, schema: &Schema, chains: &[Chain]) -> Option<Structure> {
        let is_usable = self.table && self.flags == 0 && self.strange == 0;
        if !is_usable || !self.has_sets(&schema.sets) {
            return None;
        }
        let mut structure = Structure::default();
        for chain in chains {
            let wanted = wanted_chain(schema.family, chain);
            match self.chains.get(&chain.name) {
                None => structure.missing.push(chain.clone()),
                Some(seen) if seen.hook != wanted.hook => {
                    structure.misplaced.push(chain.name.clone());
                    structure.missing.push(chain.clone());
                }
                Some(seen) if seen.rules != wanted.rules => {
                    structure.wrong.push(Edit::new(chain, seen, &wanted));
                }
                Some(_) => {}
            }
        }
        let wanted: BTreeSet<&Arc<str>> = chains.iter().map(|chain| &chain.name).collect();
        for (name, seen) in self.chains.iter().filter(|(name, _)| !wanted.contains(name)) {
            let list = match seen.hook {
                Some(_) => &mut structure.misplaced,
                None => &mut structure.left_over,
            };
            list.push(name.clone());
        }
        Some(structure)
    }

    /// What leads from the elements that are there to `wanted`, in the sets that `covers` names.
    pub fn difference(
        &self,
        wanted: impl Iterator<Item = Element>,
        covers: impl Fn(SetId) -> bool,
    ) -> Delta {
        let mut delta = Delta::default();
        let there = self.elements.keys().filter(|(set, _)| covers(*set));
        let mut unwanted: HashSet<&(SetId, Key)> = there.collect();
        for element in wanted.filter(|element| covers(element.set)) {
            let key = (element.set, element.key);
            let is_there = unwanted.remove(&key);
            if self.has(&element) {
                continue;
            }
            if is_there {
                delta.delete.push(key);
            }
            delta.add.push(element);
        }
        delta.delete.extend(unwanted);
        delta.sort();
        delta
    }

    /// Whether an element is there as it should be.
    fn has(&self, element: &Element) -> bool {
        self.elements.get(&(element.set, element.key)).is_some_and(|(value, comment)| {
            *comment == element.comment && value.as_ref() == Some(&element.value)
        })
    }
}
