//! How many clients the kernel remembers for session affinity.

use super::affinity::MAPS;
use super::kernel::{Kernel, NftablesError};
use super::set::room;
use super::table::Table;
use crate::backend::why::Why;
use crate::backend::{Affinity, Clients};

/// Asks the kernel. Where no service has session affinity, nobody is remembered, and nothing asked.
pub fn clients<'a>(
    kernel: &mut Kernel,
    tables: impl Iterator<Item = &'a Table>,
) -> Result<Affinity, NftablesError> {
    let mut all = Affinity::default();
    for table in tables.filter(|table| table.has_affinity()) {
        let table_family = table.table_family;
        let [pods, within, briefly, not] = kernel.counted(
            table_family,
            [Why::RememberPod, Why::RememberWithinBudget, Why::RememberBriefly, Why::NotRemembered],
        )?;
        all.crowded.reserved += pods + within;
        all.crowded.briefly += briefly;
        all.crowded.not += not;
        for map in MAPS {
            let count = kernel.count(table_family, map);
            let count = count.map_err(|source| NftablesError::Netlink {
                table_family,
                doing: "count the clients in",
                source,
            })?;
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
