//! Whether a table should be there at all (a bridge's, where the ports of bridges matter), and what
//! is known of it.

use super::dump::Observed;
use super::kernel::{Kernel, NftablesError};
use super::message::Batch;
use super::name::{ChainName, Known, Layer};
use super::shape::Shape;
use super::sync::{Nftables, Programmed};
use super::table::{Delta, Table};
use super::write::empty;
use crate::backend::Repair;

impl Programmed {
    /// Nothing is known of it, and nothing wanted in it.
    pub(super) fn new(layer: Layer) -> Self {
        Self {
            wanted: Table::new(layer, Shape::default()),
            pending: Delta::default(),
            unknown: true,
            looked: None,
            known: Known::default(),
            left_frontends: Vec::new(),
            rejected: Vec::new(),
        }
    }

    /// Whether the table should be there.
    pub(super) fn is_wanted(&self) -> bool {
        match self.wanted.layer {
            Layer::Ip(_) => true,
            Layer::Bridge => self.wanted.shape().detector.knows_ports(),
        }
    }

    /// Whether what an earlier run programmed in it has to stay until all services are known.
    pub(super) fn waits_for_services(&self) -> bool {
        match self.wanted.layer {
            Layer::Ip(_) => !self.known.services,
            Layer::Bridge => false,
        }
    }

    /// Sees to it that a table that is not wanted is not there. An earlier run's IP tables, which
    /// may read what it tells, stay until all services are known, and so does it.
    pub(super) fn remove(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        self.pending = Delta::default();
        if !self.unknown || !self.known.services {
            return Ok(Repair::default());
        }
        let layer = self.wanted.layer;
        let seen = kernel.observe(layer)?;
        let mark = kernel.mark(&seen);
        let removed = take_away(kernel, layer, &seen)?;
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
        let wanted: Vec<Layer> = wanted.map(|table| table.wanted.layer).collect();
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
fn remove_all(kernel: &mut Kernel, but: &[Layer]) -> Result<usize, NftablesError> {
    let mut removed = 0;
    // What the bridge's tells means nothing without those that read it.
    for layer in Layer::ALL.into_iter().rev().filter(|layer| !but.contains(layer)) {
        removed += usize::from(remove(kernel, layer)?);
    }
    Ok(removed)
}

/// Removes a table; whether it was there.
fn remove(kernel: &mut Kernel, layer: Layer) -> Result<bool, NftablesError> {
    let seen = kernel.observe(layer)?;
    take_away(kernel, layer, &seen)
}

/// First what chooses services, so that nobody is in there any more when the table goes. What
/// another process owns is not ours: denizen's tables have no owner, for they outlive the agent.
fn take_away(kernel: &mut Kernel, layer: Layer, seen: &Observed) -> Result<bool, NftablesError> {
    let ours = seen.table && seen.owner.is_none();
    if ours {
        empty(kernel, layer, seen, &[ChainName::Prerouting, ChainName::Output])?;
        kernel.write(layer, Batch::delete_table)?;
    }
    Ok(ours)
}
