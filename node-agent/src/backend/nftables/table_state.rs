//! Whether a table should be there at all (a bridge's, where the ports of bridges matter), and what
//! is known of it.

use super::error::NftablesError;
use super::name::{ChainName, Known, TABLE, TableFamily};
use super::sync::{Nftables, Programmed};
use super::table::{Difference, Table};
use super::table_config::TableConfig;
use super::write::empty;
use crate::backend::Repair;
use denizen_nft::{Kernel, Observed, Schema};

impl Programmed {
    /// Nothing is known of it, and nothing wanted in it.
    pub(super) fn new(table_family: TableFamily) -> Self {
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

    /// Whether the table should be there.
    pub(super) fn is_wanted(&self) -> bool {
        match self.wanted.table_family {
            TableFamily::Ip(_) => true,
            TableFamily::Bridge => self.wanted.config().reads_ports(),
        }
    }

    /// Whether what an earlier run programmed in it has to stay until all services are known.
    pub(super) fn waits_for_services(&self) -> bool {
        match self.wanted.table_family {
            TableFamily::Ip(_) => !self.known.services,
            TableFamily::Bridge => false,
        }
    }

    /// Sees to it that a table that is not wanted is not there. An earlier run's IP tables, which
    /// may read what it tells, stay until all services are known, and so does it.
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
    /// Removes all tables.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cleanup(kernel: &mut Kernel) -> Result<usize, NftablesError> {
        remove_all(kernel, &[])
    }

    /// Removes all tables but those that are wanted here: what another backend, or another mode,
    /// left behind.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_others(&mut self) -> Result<usize, NftablesError> {
        let wanted = self.tables.iter().filter(|table| table.is_wanted());
        let wanted: Vec<TableFamily> = wanted.map(|table| table.wanted.table_family).collect();
        remove_all(&mut self.kernel, &wanted)
    }
}

impl<K> Nftables<K> {
    /// Whether any of its tables should be there.
    pub fn is_wanted(&self) -> bool {
        self.tables.iter().any(Programmed::is_wanted)
    }
}

/// Removes all tables but these; how many there were.
fn remove_all(kernel: &mut Kernel, but: &[TableFamily]) -> Result<usize, NftablesError> {
    let mut removed = 0;
    // What the bridge's tells means nothing without those that read it.
    for table_family in
        TableFamily::ALL.into_iter().rev().filter(|table_family| !but.contains(table_family))
    {
        removed += usize::from(remove(kernel, table_family)?);
    }
    Ok(removed)
}

/// Removes a table; whether it was there.
fn remove(kernel: &mut Kernel, table_family: TableFamily) -> Result<bool, NftablesError> {
    let schema = table_family.schema();
    let seen = kernel.observe(&schema)?;
    take_away(kernel, &schema, &seen)
}

/// First what chooses services, so that nobody is in there any more when the table goes. What
/// another process owns is not ours: denizen's tables have no owner, for they outlive the agent.
fn take_away(kernel: &mut Kernel, schema: &Schema, seen: &Observed) -> Result<bool, NftablesError> {
    let ours = seen.is_there() && seen.owner().is_none();
    if ours {
        empty(kernel, schema, seen, &[ChainName::Prerouting, ChainName::Output])?;
        kernel.write(schema.family, |batch| batch.delete_table(TABLE))?;
    }
    Ok(ours)
}
