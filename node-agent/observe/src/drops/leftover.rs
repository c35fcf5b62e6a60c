//! Removes the rules that sample dropped packets when no agent is left to do it.

use std::collections::BTreeSet;

use denizen_nft::{Kernel, TableFamily};

use super::WatchError;
use denizen_backend::firewall;
use denizen_backend::nftables;

/// Removes every sampling rule from the tables of an agent that was killed while drops were
/// watched. What is dropped stays dropped.
///
/// # Errors
///
/// [`WatchError`], also if an agent that starts at the same time has removed them.
pub fn remove_samples(kernel: &mut Kernel) -> Result<(), WatchError> {
    let tables = kernel.chains(None, |chain| {
        let table = [nftables::TABLE, firewall::TABLE]
            .into_iter()
            .find(|table| chain.table() == Some(table));
        chain.family().zip(table)
    })?;
    let tables: BTreeSet<(TableFamily, &'static str)> = tables.into_iter().collect();
    for (family, table) in tables {
        let samples = kernel.rules(family, table, None, |rule| {
            let shows = rule.expressions().any(|expression| expression.traces());
            rule.chain().filter(|_| shows).map(Into::into).zip(rule.handle())
        })?;
        kernel.write(family, |batch| {
            samples.iter().for_each(|(chain, handle)| batch.delete_rule(table, chain, *handle));
        })?;
    }
    Ok(())
}
