//! Reads the rules' counters, and how many clients the kernel remembers for session affinity.

use super::affinity::MAPS;
use super::table::Table;
use crate::why::Why;
use crate::{Affinity, Clients, ServiceDropReason, ServiceDrops};
use denizen_nft::{Content, Kernel, NftError, Schema};

/// Reads the kernel's maps, unless no service has session affinity.
pub fn clients<'a>(
    kernel: &mut Kernel,
    tables: impl Iterator<Item = (&'a Schema, &'a Table)>,
) -> Result<Affinity, NftError> {
    let mut all = Affinity::default();
    for (schema, table) in tables.filter(|(_, table)| table.has_affinity()) {
        let [pods, within, briefly, not] = counted(
            kernel,
            schema,
            table,
            [Why::RememberPod, Why::RememberWithinBudget, Why::RememberBriefly, Why::NotRemembered],
        )?;
        all.crowded.reserved += pods + within;
        all.crowded.briefly += briefly;
        all.crowded.not += not;
        for map in MAPS {
            let count = kernel.count(schema, schema.set(map.id()));
            let count = count.map_err(|source| NftError::Netlink {
                family: schema.family,
                doing: "count the clients in",
                source,
            })?;
            if let Some((clients, room)) = count.zip(map.max_dynamic_elements()) {
                all.clients.push(Clients {
                    family: map.family(table.table_family).to_string(),
                    map: map.to_string(),
                    clients,
                    room,
                });
            }
        }
    }
    Ok(all)
}

/// Sums the packets that rules dropped or refused, and those that no look-up found an endpoint for.
pub fn dropped<'a>(
    kernel: &mut Kernel,
    tables: impl Iterator<Item = (&'a Schema, &'a Table)>,
) -> Result<(ServiceDrops, u64), NftError> {
    let (mut drops, mut missed) = (ServiceDrops::default(), 0);
    for (schema, table) in tables {
        let counted = kernel.packets_by_reason(schema, &table.chains(), |rule| {
            let is_missed = rule.why == Why::LookupRaced.text();
            if is_missed { Some(None) } else { ServiceDropReason::of_text(rule.why).map(Some) }
        });
        for (reason, packets) in counted? {
            match reason {
                Some(reason) => drops.add(reason, packets),
                None => missed += packets,
            }
        }
    }
    Ok((drops, missed))
}

/// Sums the packets that the rules for each of these reasons counted.
fn counted<const N: usize>(
    kernel: &mut Kernel,
    schema: &Schema,
    table: &Table,
    reasons: [Why; N],
) -> Result<[u64; N], NftError> {
    let mut sums = [0; N];
    let counted = kernel.packets_by_reason(schema, &table.chains(), |rule| {
        reasons.iter().position(|why| why.text() == rule.why)
    });
    for (reason, packets) in counted? {
        sums[reason] += packets;
    }
    Ok(sums)
}
