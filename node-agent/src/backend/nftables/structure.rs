//! How a table's chains differ from those that should be there, and what makes them the same.
//! Elements stay: the services do not suffer for a rule that somebody added, and clients stay
//! remembered.

use std::collections::BTreeSet;

use super::dump::{Observed, wanted_chain};
use super::message::Batch;
use super::name::{SetName, TableFamily};
use super::rule::Chain;

/// Which chains differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Those that are not there: of size classes that came into use while nobody looked, or that
    /// somebody removed.
    pub missing: Vec<Chain>,
    /// Those with other rules than they should have.
    wrong: Vec<Chain>,
    /// Those that hang on a hook, and should not, or not so.
    misplaced: Vec<String>,
    /// Those that should not be there: of size classes that are no longer in use, or somebody
    /// else's. They go when nothing refers to them any more.
    pub left_over: Vec<String>,
}

impl Structure {
    /// Nothing that is there is otherwise than it should be.
    pub fn is_additive(&self) -> bool {
        self.wrong.is_empty() && self.misplaced.is_empty()
    }

    /// How many chains differ, besides those that are left over.
    pub fn count(&self) -> usize {
        let replaced = |name: &&String| !self.missing.iter().any(|c| c.name.to_string() == **name);
        self.missing.len() + self.wrong.len() + self.misplaced.iter().filter(replaced).count()
    }

    /// Makes the chains what they should be.
    pub fn write(&self, batch: &mut Batch) {
        batch.delete_chains(&self.misplaced);
        for chain in &self.wrong {
            batch.flush_chain(&chain.name.to_string());
        }
        for chain in &self.missing {
            batch.add_chain(chain);
        }
        for chain in self.missing.iter().chain(&self.wrong) {
            for rule in &chain.rules {
                batch.add_rule(chain.name, rule);
            }
        }
    }
}

impl Observed {
    /// What differs between the table's chains and these; `None` when the table cannot be kept,
    /// because its sets are not those that it should have.
    pub fn structure(&self, table_family: TableFamily, chains: &[Chain]) -> Option<Structure> {
        let sets = SetName::of(table_family).iter().all(|set| self.has_set(table_family, *set));
        let usable = self.table && self.flags == 0 && self.strange == 0 && sets;
        if !usable || self.sets.len() != SetName::of(table_family).len() {
            return None;
        }
        let mut structure = Structure::default();
        for chain in chains {
            let (name, wanted) = (chain.name.to_string(), wanted_chain(table_family, chain));
            match self.chains.get(&name) {
                None => structure.missing.push(chain.clone()),
                Some(seen) if seen.hook != wanted.hook => {
                    structure.misplaced.push(name);
                    structure.missing.push(chain.clone());
                }
                Some(seen) if seen.rules != wanted.rules => structure.wrong.push(chain.clone()),
                Some(_) => {}
            }
        }
        let wanted: BTreeSet<String> = chains.iter().map(|chain| chain.name.to_string()).collect();
        for (name, seen) in self.chains.iter().filter(|(name, _)| !wanted.contains(*name)) {
            let base_chain = if seen.hook.is_some() {
                &mut structure.misplaced
            } else {
                &mut structure.left_over
            };
            base_chain.push(name.clone());
        }
        Some(structure)
    }
}
