//! Whether a table should be there at all (a bridge's, where the ports of bridges matter), and what is known of it.

use super::kernel::{Kernel, NftablesError};
use super::message::Batch;
use super::name::{Facts, Layer, SetName};
use super::program::Shape;
use super::sync::Programmed;
use super::table::{Delta, Table};
use crate::backend::Repair;

/// Which facts the agent has been told. What an earlier run programmed from the others is left alone: a
/// restart must lose nothing while the API, or the state file, cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Known {
    pub(super) pods: bool,
    pub(super) services: bool,
}

impl Known {
    pub(super) fn covers(self, set: SetName) -> bool {
        match set.filled_by() {
            Facts::Pods => self.pods,
            Facts::Services => self.services,
            Facts::Traffic => false,
        }
    }
}

impl Programmed {
    /// Nothing is known of it, and nothing wanted in it.
    pub(super) fn new(layer: Layer) -> Self {
        Self {
            wanted: Table::new(layer, Shape::default()),
            pending: Delta::default(),
            unknown: true,
            looked: None,
            known: Known::default(),
            left_doors: Vec::new(),
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

    /// Sees to it that a table that is not wanted is not there. An earlier run's IP tables, which may read what
    /// it tells, stay until all services are known, and so does it.
    pub(super) fn remove(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        self.pending = Delta::default();
        if !self.unknown || !self.known.services {
            return Ok(Repair::default());
        }
        let layer = self.wanted.layer;
        let seen = kernel.observe(layer)?;
        let mark = kernel.mark(&seen);
        if seen.table {
            kernel.write(layer, Batch::delete_table)?;
        }
        self.looked = Some(mark);
        self.unknown = false;
        Ok(Repair {
            rebuilt: seen.table,
            ..Repair::default()
        })
    }
}

/// Removes a table; whether it was there.
pub(super) fn remove(kernel: &mut Kernel, layer: Layer) -> Result<bool, NftablesError> {
    let there = kernel.observe(layer)?.table;
    if there {
        kernel.write(layer, Batch::delete_table)?;
    }
    Ok(there)
}
