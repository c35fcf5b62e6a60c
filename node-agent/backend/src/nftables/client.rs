//! What the rules have counted, and how many clients the kernel remembers for session affinity.

use std::collections::HashMap;

use super::affinity::MAPS;
use super::error::NftablesError;
use super::set::room;
use super::table::Table;
use crate::why::Why;
use crate::{Affinity, Clients};
use denizen_nft::{Kernel, RuleId};

/// Reads the kernel's maps, unless no service has session affinity.
pub fn clients<'a>(
    kernel: &mut Kernel,
    tables: impl Iterator<Item = &'a Table>,
) -> Result<Affinity, NftablesError> {
    let mut all = Affinity::default();
    for table in tables.filter(|table| table.has_affinity()) {
        let table_family = table.table_family;
        let [pods, within, briefly, not] = counted(
            kernel,
            table,
            [Why::RememberPod, Why::RememberWithinBudget, Why::RememberBriefly, Why::NotRemembered],
        )?;
        all.crowded.reserved += pods + within;
        all.crowded.briefly += briefly;
        all.crowded.not += not;
        for map in MAPS {
            let count = kernel.count(&table.schema, table.schema.set(map.id()));
            let count =
                count.map_err(NftablesError::netlink(table_family, "count the clients in"))?;
            if let Some((clients, room)) = count.zip(room(map)) {
                all.clients.push(Clients {
                    family: map.family(table_family).to_string(),
                    map: map.to_string(),
                    clients,
                    room,
                });
            }
        }
    }
    Ok(all)
}

/// Sums the packets that the rules for each of these reasons counted.
///
/// # Errors
/// [`NftablesError::Driver`].
pub fn counted<const N: usize>(
    kernel: &mut Kernel,
    table: &Table,
    reasons: [Why; N],
) -> Result<[u64; N], NftablesError> {
    // Another chain may have an equal rule for another reason.
    let mut wanted: HashMap<(String, RuleId), usize> = HashMap::new();
    let (table_family, schema) = (table.table_family, &table.schema);
    for chain in table.chains() {
        for rule in &chain.rules {
            if let Some(reason) = reasons.iter().position(|why| *why == rule.why) {
                let id = rule.lowered(table_family).id(schema.family);
                wanted.insert((chain.name.to_string(), id), reason);
            }
        }
    }
    let mut sums = [0; N];
    let read = kernel.rules(schema.family, schema.name, None, |rule| {
        let (chain, id) = (rule.chain()?.to_owned(), rule.id()?);
        Some((*wanted.get(&(chain, id))?, rule.packets()))
    });
    for (reason, packets) in read.map_err(NftablesError::netlink(table_family, "read"))? {
        sums[reason] += packets;
    }
    Ok(sums)
}
