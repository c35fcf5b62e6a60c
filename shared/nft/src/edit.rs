//! The edits that turn the rules of a chain into the desired ones.

use std::sync::Arc;

use crate::batch::{Batch, RulePosition};
use crate::chain::Chain;
use crate::observed_chain::{ObservedChain, ObservedRule};
use crate::rule::Rule;

/// Rules to remove from a chain, and rules to add. The other rules stay, with their counters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    chain: Arc<str>,
    delete: Vec<u64>,
    /// Each with the handle of the rule that it is put before, which stays; `None`: at the end.
    add: Vec<(Option<u64>, Rule)>,
}

impl Edit {
    /// The edit from the chain as `seen` to `chain`. `wanted`: how `chain` would be seen.
    pub fn new(chain: &Chain, seen: &ObservedChain, wanted: &ObservedChain) -> Self {
        let mut edit = Self { chain: chain.name.clone(), delete: Vec::new(), add: Vec::new() };
        let common = lengths(&seen.rules, &wanted.rules);
        let (mut s, mut w) = (0, 0);
        while s < seen.rules.len() || w < wanted.rules.len() {
            let there = seen.rules.get(s).zip(seen.handles.get(s));
            match (there, wanted.rules.get(w)) {
                (Some((rule, _)), Some(other)) if rule == other => (s, w) = (s + 1, w + 1),
                (Some((_, handle)), _) if common[s + 1][w] == common[s][w] => {
                    edit.delete.push(*handle);
                    s += 1;
                }
                (there, _) => {
                    let before = there.map(|(_, handle)| *handle);
                    edit.add.push((before, chain.rules[w].clone()));
                    w += 1;
                }
            }
        }
        edit
    }

    /// Adds, then removes. A rule is only put before a rule that stays, so the order does not
    /// matter.
    pub fn write(&self, batch: &mut Batch, table: &str) {
        for (before, rule) in &self.add {
            let at = before.map_or(RulePosition::End, RulePosition::Before);
            let text = rule.comment(batch.family());
            batch.add_rule(table, &self.chain, rule, &text, at);
        }
        for handle in &self.delete {
            batch.delete_rule(table, &self.chain, *handle);
        }
    }
}

/// For each pair of indexes, the length of the longest common subsequence of the rules from there
/// on.
fn lengths(seen: &[ObservedRule], wanted: &[ObservedRule]) -> Vec<Vec<usize>> {
    let mut common = vec![vec![0; wanted.len() + 1]; seen.len() + 1];
    for s in (0..seen.len()).rev() {
        for w in (0..wanted.len()).rev() {
            common[s][w] = match seen[s] == wanted[w] {
                true => common[s + 1][w + 1] + 1,
                false => common[s + 1][w].max(common[s][w + 1]),
            };
        }
    }
    common
}

#[cfg(test)]
mod tests;
