//! Brings the kernel's tables to what is wanted, and keeps them there.

use tracing::{debug, info, warn};

use super::dump::{Observed, ObservedValue};
use super::kernel::{Kernel, Mark, NftablesError};
use super::name::{Known, SetName, TableFamily};
use super::rejected::Rejected;
use super::rule::Chain;
use super::shape::Shape;
use super::structure::Structure;
use super::table::{Delta, Table};
use super::text::Rendering;
use super::write::{load, write};
use crate::backend::Repair;
use crate::plan::FrontendKey;
use denizen_netlink::NetlinkError;

/// How often a repair that others' changes overtook is tried before it is left to the next
/// occasion.
const REPAIR_TRIES: usize = 10;

/// One table, wanted and programmed.
#[derive(Debug)]
pub(super) struct Programmed {
    pub(super) wanted: Table,
    /// Differences that are not in the kernel yet.
    pub(super) pending: Delta,
    /// What the kernel holds is not known: nothing was read yet, or a batch failed.
    pub(super) unknown: bool,
    /// When it was read last and found, or made, right.
    pub(super) looked: Option<Mark>,
    pub(super) known: Known,
    /// Frontends that were found in the kernel and are not wanted.
    pub(super) left_frontends: Vec<FrontendKey>,
    /// What the kernel took everything but.
    pub(super) rejected: Vec<Rejected>,
}

/// The nftables backend: what is wanted, and the kernel that it is wanted in.
#[derive(Debug)]
pub struct Nftables<K = Kernel> {
    pub(super) kernel: K,
    /// In the order in which they are programmed: a bridge's before those that read what it tells,
    /// and after them when it is to go.
    pub(super) tables: Vec<Programmed>,
}

/// In place of a [`Kernel`], where the rules are only looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoKernel;

impl Nftables {
    /// Opens nf_tables in this thread's network namespace. Nothing is read or written yet.
    ///
    /// # Errors
    /// [`NetlinkError`] when there is no netlink to be had.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut backend = Self::of(Kernel::open()?, &TableFamily::ALL);
        backend.restore_numbers();
        Ok(backend)
    }

    /// Clients that an earlier run's rules remember stay with their endpoints.
    fn restore_numbers(&mut self) {
        for table in &mut self.tables {
            let table_family = table.wanted.table_family;
            let seen = self.kernel.remembered(table_family);
            for ((set, key), (value, comment)) in &seen.elements {
                let ends = key.protocol_and_number(*set, set.family(table_family));
                if let (ObservedValue::Endpoint(at), Some(owner), Some((protocol, number))) =
                    (value, comment, ends)
                {
                    table.wanted.restore_number((owner.clone(), protocol), *at, number);
                }
            }
        }
    }

    /// The portid by which the kernel's notifications name this backend's own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }
}

impl Nftables<NoKernel> {
    /// Programs nothing, needs nothing, and shows what it would program.
    pub fn offline() -> Self {
        Self::of(NoKernel, &TableFamily::ALL)
    }

    /// The rules that it would program.
    pub fn rendering(&self) -> Rendering {
        let wanted = self.tables.iter().filter(|table| table.is_wanted());
        Rendering::of(wanted.map(|table| &table.wanted))
    }
}

impl<K> Nftables<K> {
    pub(super) fn of(kernel: K, table_families: &[TableFamily]) -> Self {
        let mut backend =
            Self { kernel, tables: table_families.iter().copied().map(Programmed::new).collect() };
        backend.order();
        backend
    }

    fn order(&mut self) {
        // A table family's own order has the bridge first.
        self.tables.sort_by_key(|table| (!table.is_wanted(), table.wanted.table_family));
    }

    /// What the constant part of each table depends on becomes what `change` makes of it.
    pub(super) fn reshape(&mut self, change: impl Fn(TableFamily, &mut Shape)) {
        for table in &mut self.tables {
            let mut shape = table.wanted.shape().clone();
            change(table.wanted.table_family, &mut shape);
            table.unknown |= table.wanted.reshape(shape);
        }
        self.order();
    }
}

impl Programmed {
    pub(super) fn program(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        if self.unknown {
            return self.reconcile(kernel);
        }
        // What was refused raced with somebody's change, or is refused again, and then isolated.
        match self.commit(kernel) {
            Err(NftablesError::Refused { .. }) => self.reconcile(kernel),
            done => done.map(|()| Repair::default()),
        }
    }

    /// A change costs what changed.
    fn commit(&mut self, kernel: &mut Kernel) -> Result<(), NftablesError> {
        let mut delta = std::mem::take(&mut self.pending);
        if delta.is_empty() {
            return Ok(());
        }
        delta.sort();
        let table_family = self.wanted.table_family;
        let mut batch = kernel.batch(table_family, None);
        let classes = delta.classes.iter();
        let chains: Vec<Chain> =
            classes.flat_map(|class| self.wanted.class_chains(*class)).collect();
        write(&mut batch, &chains, &delta);
        kernel.commit(table_family, batch)?;
        debug!(family = %table_family, add = delta.add.len(), delete = delta.delete.len(), "elements changed");
        Ok(())
    }

    /// Reads the table and commits the difference to what is wanted.
    fn reconcile(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        let table_family = self.wanted.table_family;
        self.pending = Delta::default();
        for _ in 0..REPAIR_TRIES {
            let seen = kernel.observe(table_family)?;
            let mark = kernel.mark(&seen);
            match self.repair(kernel, &seen) {
                Err(NftablesError::Raced { .. }) => {}
                Err(NftablesError::Refused { .. }) => return self.salvage(kernel, &seen),
                Err(error) => return Err(error),
                Ok(repair) => {
                    self.unknown = false;
                    self.looked = Some(mark);
                    if self.known.services {
                        let found = seen.keys(table_family);
                        self.left_frontends
                            .extend(found.filter(|key| !self.wanted.has_frontend(key)));
                    }
                    return Ok(repair);
                }
            }
        }
        Err(NftablesError::Raced { table_family })
    }

    fn repair(&mut self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftablesError> {
        let table_family = self.wanted.table_family;
        let structure = seen.structure(table_family, &self.wanted.chains());
        let leave = seen.table && self.waits_for_services();
        let structure = match structure {
            Some(structure) if !leave || structure.is_additive() => structure,
            Some(_) | None if leave && seen.has_set(table_family, SetName::LocalPods) => {
                Structure::default()
            }
            Some(_) | None if leave => return Err(NftablesError::OlderTable { table_family }),
            Some(_) | None => return load(kernel, seen, &self.wanted, self.known),
        };
        let known = self.known;
        let delta = seen.difference(self.wanted.each_element(), |set| known.covers(set));
        let mut batch = kernel.batch(table_family, Some(seen.generation));
        structure.write(&mut batch);
        write(&mut batch, &[], &delta);
        let elements = delta.add.len().max(delta.delete.len());
        // At a first load it is as large as the batch, and the kernel is about to allocate as much
        // again.
        drop(delta);
        kernel.commit(table_family, batch)?;
        let left_over: &[String] = if known.services { &structure.left_over } else { &[] };
        let repair =
            Repair { rebuilt: false, chains: structure.count() + left_over.len(), elements };
        if !repair.is_none() {
            let Repair { chains, elements, .. } = repair;
            info!(family = %table_family, chains, elements, "ruleset brought up to date");
        }
        self.remove_chains(kernel, left_over);
        Ok(repair)
    }

    /// Chains that nothing refers to any more. In a batch of their own: before 6.2 a kernel refuses
    /// to remove a chain in the batch that removes the last element that names it.
    fn remove_chains(&self, kernel: &mut Kernel, names: &[String]) {
        let table_family = self.wanted.table_family;
        let mut batch = kernel.batch(table_family, None);
        batch.delete_chains(names);
        if let Err(error) = kernel.commit(table_family, batch) {
            warn!(family = %table_family, %error, "chains of an earlier run are left");
        }
    }
}
