//! What a batch is made of: everything, or a difference.

use tracing::info;

use super::dump::Observed;
use super::kernel::{Kernel, NftablesError};
use super::message::Batch;
use super::name::{ChainName, Known, SetName, TableFamily};
use super::rule::Chain;
use super::table::{Delta, Table};
use crate::backend::Repair;

/// Everything, in place of whatever is there, at one instant.
pub(super) fn load(
    kernel: &mut Kernel,
    seen: &Observed,
    wanted: &Table,
    known: Known,
) -> Result<Repair, NftablesError> {
    let (table_family, chains) = (wanted.table_family, wanted.chains());
    let generation = empty(kernel, table_family, seen, &[ChainName::UnusedPort])?;
    let mut batch = kernel.batch(table_family, Some(generation));
    replace_structure(&mut batch, seen.table, table_family, &chains);
    let mut count = 0;
    // Set by set, and in no order within: sorting so many would take as long as planning them.
    let kept = seen.members(|set| !known.covers(set));
    for elements in wanted.elements_by_set().values().chain([&kept]) {
        batch.add_elements(elements);
        count += elements.len();
    }
    kernel.commit(table_family, batch)?;
    info!(family = %table_family, chains = chains.len(), elements = count, "ruleset programmed");
    Ok(Repair { rebuilt: true, chains: chains.len(), elements: count })
}

/// Table, chains, sets and rules, in place of whatever is there.
pub(super) fn replace_structure(
    batch: &mut Batch,
    present: bool,
    table_family: TableFamily,
    chains: &[Chain],
) {
    if present {
        batch.delete_table();
    }
    batch.add_table();
    for chain in chains {
        batch.add_chain(chain);
    }
    for (set, id) in SetName::of(table_family).iter().zip(1..) {
        batch.add_set(*set, id);
    }
    for chain in chains {
        for rule in &chain.rules {
            batch.add_rule(chain.name, rule);
        }
    }
}

/// New chains, then what goes, then what comes.
pub(super) fn write(batch: &mut Batch, chains: &[Chain], delta: &Delta) {
    for chain in chains {
        batch.add_chain(chain);
    }
    for chain in chains {
        for rule in &chain.rules {
            batch.add_rule(chain.name, rule);
        }
    }
    batch.delete_elements(&delta.delete);
    batch.add_elements(&delta.add);
}

/// Takes the rules out of `chains`, where they are there; the generation after that, as long as
/// nobody else commits.
///
/// At the instant in which a table goes, a packet that is in its chains goes on through all their
/// rules, finds their maps empty and their sets as they were (`nft_map_deactivate` in
/// net/netfilter/nf_tables_api.c), and so would be refused for want of a service at a cluster IP.
pub(super) fn empty(
    kernel: &mut Kernel,
    table_family: TableFamily,
    seen: &Observed,
    chains: &[ChainName],
) -> Result<u32, NftablesError> {
    let names = chains.iter().map(ToString::to_string);
    let full: Vec<String> = names
        .filter(|name| seen.chains.get(name).is_some_and(|chain| !chain.rules.is_empty()))
        .collect();
    kernel.write(table_family, |batch| full.iter().for_each(|name| batch.flush_chain(name)))?;
    Ok(seen.generation.wrapping_add(u32::from(!full.is_empty())))
}
