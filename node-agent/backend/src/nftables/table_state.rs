//! Whether a table is wanted at all (the bridge's only if the ports of bridges
//! matter, ARP's only with virtual servers), and removal
//! of those that are not.

use super::error::NftablesError;
use super::name::{ChainName, Known, ServiceTable, TABLE};
use super::sync::{Nftables, Programmed};
use super::table::{Difference, Table};
use super::table_config::TableConfig;
use super::write::empty;
use crate::Repair;
use denizen_nft::{Kernel, Observed, Schema};

impl Programmed {
    /// Nothing is known of it, and nothing is wanted in it.
    pub(super) fn new(table_family: ServiceTable) -> Self {
        Self {
            wanted: Table::new(table_family, TableConfig::default()),
            pending: Difference::default(),
            unknown: true,
            looked: None,
            known: Known::default(),
            left_frontends: Vec::new(),
            rejected: Vec::new(),
        }
    }

    /// Whether the table is wanted.
    pub(super) fn is_wanted(&self) -> bool {
        match self.wanted.table_family {
            ServiceTable::Ip(_) => true,
            ServiceTable::Bridge => self.wanted.config().reads_ports(),
            ServiceTable::Arp => self.wanted.config().by_ipvs,
        }
    }

    /// Whether an earlier run's content must stay until all services are known.
    pub(super) fn waits_for_services(&self) -> bool {
        match self.wanted.table_family {
            ServiceTable::Ip(_) => !self.known.services,
            ServiceTable::Arp | ServiceTable::Bridge => false,
        }
    }

    /// Removes a table that is not wanted. An earlier run's bridge table stays until all services
    /// are known, because that run's IP tables, which may read its mark, stay until then too.
    pub(super) fn remove(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        self.pending = Difference::default();
        if !self.unknown || !self.known.services {
            return Ok(Repair::default());
        }
        let schema = &self.wanted.schema;
        let seen = kernel.observe(schema)?;
        let mark = kernel.mark(&seen);
        let removed = take_away(kernel, schema, &seen)?;
        self.looked = Some(mark);
        self.unknown = false;
        Ok(Repair { rebuilt: removed, ..Repair::default() })
    }
}

impl Nftables {
    /// Removes all tables but those that are wanted here: what another backend, or another mode,
    /// left behind. ARP's stays until [`Self::remove_arp`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_others(&mut self) -> Result<usize, NftablesError> {
        let wanted = self.tables.iter().filter(|table| table.is_wanted());
        let wanted = wanted.map(|table| table.wanted.table_family);
        let wanted: Vec<ServiceTable> = wanted.chain([ServiceTable::Arp]).collect();
        remove_all(&mut self.kernel, &wanted)
    }

    /// Removes all tables but ARP's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_all_but_arp(kernel: &mut Kernel) -> Result<usize, NftablesError> {
        remove_all(kernel, &[ServiceTable::Arp])
    }

    /// Removes ARP's table, which the backend ipvs left: when the addresses of virtual servers are
    /// no longer routed here, and neighbours no longer told that they are.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_arp(kernel: &mut Kernel) -> Result<usize, NftablesError> {
        Ok(usize::from(remove(kernel, ServiceTable::Arp)?))
    }
}

impl<K> Nftables<K> {
    /// Whether any of its tables is wanted.
    pub fn is_wanted(&self) -> bool {
        self.tables.iter().any(Programmed::is_wanted)
    }
}

/// Removes all tables but these; how many there were.
fn remove_all(kernel: &mut Kernel, but: &[ServiceTable]) -> Result<usize, NftablesError> {
    let mut removed = 0;
    // The bridge's mark means nothing without the tables that read it.
    for table_family in
        ServiceTable::ALL.into_iter().rev().filter(|table_family| !but.contains(table_family))
    {
        removed += usize::from(remove(kernel, table_family)?);
    }
    Ok(removed)
}

/// Removes a table; whether it was there.
fn remove(kernel: &mut Kernel, table_family: ServiceTable) -> Result<bool, NftablesError> {
    let schema = table_family.schema();
    let seen = kernel.observe(&schema)?;
    take_away(kernel, &schema, &seen)
}

/// First the chains that choose services, so that no packet is in them when the table is removed. A
/// table with an owner process is not ours: denizen's tables have none, because they outlive the
/// agent.
fn take_away(kernel: &mut Kernel, schema: &Schema, seen: &Observed) -> Result<bool, NftablesError> {
    let ours = seen.is_there() && seen.owner().is_none();
    if ours {
        empty(kernel, schema, seen, &[ChainName::Prerouting, ChainName::Output])?;
        kernel.write(schema.family, |batch| batch.delete_table(TABLE))?;
    }
    Ok(ours)
}
