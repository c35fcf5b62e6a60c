//! Fills a batch with a whole table, or with a difference.

use std::sync::Arc;

use tracing::info;

use super::error::NftablesError;
use super::name::{ChainName, Known, SetName};
use super::rule::{Action, Rule, chain};
use super::table::Table;
use crate::Repair;
use crate::why::Why;
use denizen_nft::{Kernel, Observed, Schema};

/// Replaces the whole table in one transaction, behind [`refuse_nothing`].
pub(super) fn load(
    kernel: &mut Kernel,
    seen: &Observed,
    wanted: &Table,
    known: Known,
) -> Result<Repair, NftablesError> {
    let (schema, chains) = (&wanted.schema, wanted.lowered_chains());
    let generation = refuse_nothing(kernel, wanted, seen)?;
    let mut batch = kernel.batch(schema.family, Some(generation));
    batch.replace_table(seen.is_there(), schema, &chains);
    let mut count = 0;
    // Set by set, unsorted: sorting would take as long as planning.
    let kept = seen.members(|set| !known.covers(SetName::of_id(set)));
    for elements in wanted.elements_by_set().values().chain([&kept]) {
        batch.add_elements(schema, elements);
        count += elements.len();
    }
    kernel.commit(batch)?;
    info!(family = %schema.family, chains = chains.len(), elements = count, "ruleset programmed");
    Ok(Repair { rebuilt: true, chains: chains.len(), elements: count })
}

/// Drops what a table that will be replaced refuses at unused ports. Returns the generation
/// afterwards, if nobody else commits.
///
/// While a table is removed, a packet in its chains still passes all their rules. It finds the maps
/// empty but the sets as they were (`nft_map_deactivate` in net/netfilter/nf_tables_api.c), so a
/// packet to a cluster IP would be refused as if no service had it. It must not pass either: its
/// connection would stay untranslated, and where the address is routed to this node for IPVS, a
/// port of the node's own would answer.
fn refuse_nothing(
    kernel: &mut Kernel,
    wanted: &Table,
    seen: &Observed,
) -> Result<u32, NftablesError> {
    let name = ChainName::UnusedPort;
    if !seen.has_rules(&name.to_string()) {
        return Ok(seen.generation());
    }
    let drop = Rule::new(Why::NeverUndone, [], [Action::Count, Action::Drop]);
    let chains = wanted.lowered(&[chain(name, Why::UnusedPort, vec![drop])]);
    let schema = &wanted.schema;
    kernel.write(schema.family, |batch| {
        chains.iter().for_each(|chain| batch.flush_chain(schema.name, &chain.name));
        batch.add_chains(schema.name, &chains);
    })?;
    Ok(seen.generation().wrapping_add(1))
}

/// Removes the rules of those `chains` that exist. Nobody is translated or refused from then on.
pub(super) fn empty(
    kernel: &mut Kernel,
    schema: &Schema,
    seen: &Observed,
    chains: &[ChainName],
) -> Result<(), NftablesError> {
    Ok(kernel.write(schema.family, |batch| {
        full(seen, chains).iter().for_each(|name| batch.flush_chain(schema.name, name));
    })?)
}

/// The names of those `chains` that are there and have rules.
pub(super) fn full(seen: &Observed, chains: &[ChainName]) -> Vec<Arc<str>> {
    let names = chains.iter().map(|chain| chain.to_string().into());
    names.filter(|name: &Arc<str>| seen.has_rules(name)).collect()
}
