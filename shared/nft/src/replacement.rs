//! Sets that are made anew, because that costs less than to remove elements from them.
//!
//! To remove a range of several fields, the kernel compares it with every range that was added
//! before (`pipapo_get_boundaries` in net/netfilter/nft_set_pipapo.c): one of 8,000 costs 20 ms.
//! Meanwhile nobody else can change any table. To flush the set costs as much. But a set that goes
//! as a whole costs nothing, and one that is filled costs about 10 us for each range.

use crate::batch::Batch;
use crate::difference::Delta;
use crate::rule::{Assigned, Chain, Lookup, Statement};
use crate::set::{Element, Schema, SetId};

/// Up to this many ranges are removed one by one, whatever the set's size.
const FEW: usize = 4;

/// Whether a set is made anew from which some ranges are removed, and which then has `left`. To add
/// a range costs as much as to compare it with a few others.
fn is_made_anew(removed: usize, left: usize) -> bool {
    const ADDED: usize = 4;
    const FIXED: usize = 1_000;
    removed > FEW && removed * (removed + left) > ADDED * left + FIXED
}

/// The sets that are made anew by this difference, with what they then hold.
pub(crate) fn made_anew(
    delta: &Delta,
    schema: &Schema,
    after: impl Fn(SetId) -> Vec<Element>,
) -> Vec<(SetId, Vec<Element>)> {
    let sets = schema.sets.iter().filter(|set| set.is_ranged_concatenation());
    let anew = sets.filter_map(|set| {
        let removed = delta.delete.iter().filter(|(id, _)| *id == set.id).count();
        let left = if removed > FEW { after(set.id) } else { return None };
        is_made_anew(removed, left.len()).then_some((set.id, left))
    });
    anew.collect()
}

/// Puts new sets in place of those that are there.
pub(crate) fn make_anew(
    batch: &mut Batch,
    schema: &Schema,
    chains: &[Chain],
    sets: &[(SetId, Vec<Element>)],
) {
    let names: Vec<&str> = sets.iter().map(|(id, _)| schema.set(*id).name).collect();
    let chains: Vec<&Chain> = chains.iter().filter(|chain| looks_up(chain, &names)).collect();
    chains.iter().for_each(|chain| batch.flush_chain(schema.name, &chain.name));
    sets.iter().for_each(|(id, _)| batch.delete_set(schema, schema.set(*id).name));
    for ((id, elements), number) in sets.iter().zip(1..) {
        batch.add_set(schema.name, schema.set(*id), number);
        batch.add_elements(schema, elements);
    }
    chains.iter().for_each(|chain| batch.add_rules(schema.name, chain));
}

/// Whether a chain looks one of these sets up.
fn looks_up(chain: &Chain, sets: &[&str]) -> bool {
    let statements = chain.rules.iter().flat_map(|rule| &rule.statements);
    statements.filter_map(looked_up).any(|lookup| sets.contains(&lookup.set))
}

fn looked_up(statement: &Statement) -> Option<&Lookup> {
    match statement {
        Statement::In(lookup)
        | Statement::NotIn(lookup)
        | Statement::GoWhere(lookup)
        | Statement::Dnat(_, lookup)
        | Statement::Assign(_, Assigned::Found(lookup)) => Some(lookup),
        Statement::Equals(..)
        | Statement::NotEquals(..)
        | Statement::Between(..)
        | Statement::BeginsWith(..)
        | Statement::Within(..)
        | Statement::Bits { .. }
        | Statement::Xtables { .. }
        | Statement::Assign(_, Assigned::Zero | Assigned::And(_) | Assigned::Or(_))
        | Statement::Update(..)
        | Statement::Masquerade
        | Statement::Redirect(..)
        | Statement::Counter
        | Statement::Limit(..)
        | Statement::Trace
        | Statement::Reject(..)
        | Statement::Verdict(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_made_anew_where_that_is_cheaper() {
        let cases = [
            // Removed, left, made anew.
            (0, 20_000, false),
            (1, 20_000, false),
            (4, 20_000, false),
            (5, 20_000, true),
            (300, 20_000, true),
            (5, 100, false),
            (40, 10, true),
            (300, 0, true),
        ];
        for (removed, left, expected) in cases {
            assert_eq!(is_made_anew(removed, left), expected, "{removed} of {left} and those");
        }
    }
}
