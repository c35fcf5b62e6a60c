//! Brings the kernel's tables to the desired state, and keeps them there.

use std::sync::Arc;

use tracing::{debug, info, warn};

use super::element::{frontend_of, protocol_and_number};
use super::error::NftablesError;
use super::name::{Group, Known, ServiceTable, SetName};
use super::rejected::Rejected;
use super::table::{Difference, Table};
use super::table_config::TableConfig;
use super::write::load;
use crate::Repair;
use denizen_netlink::NetlinkError;
use denizen_nft::{
    Batch, Delta, Kernel, Mark, NftError, Observed, Rendering, Structure, Value, read_endpoint,
};
use denizen_plan::{FrontendKey, NodePlan};

/// How often a repair is tried again if others' changes overtake it, before it waits for the next
/// sync.
const REPAIR_TRIES: usize = 10;

/// One table: the desired state, and what is known of the kernel's.
#[derive(Debug)]
pub(super) struct Programmed {
    pub(super) wanted: Table,
    /// Differences that are not in the kernel yet.
    pub(super) pending: Difference,
    /// The kernel's state is not known: nothing was read yet, or a batch failed.
    pub(super) unknown: bool,
    /// When it was last read and found right, or repaired.
    pub(super) looked: Option<Mark>,
    pub(super) known: Known,
    /// Frontends that were found in the kernel but are not wanted.
    pub(super) left_frontends: Vec<FrontendKey>,
    /// What the kernel rejected.
    pub(super) rejected: Vec<Rejected>,
}

/// The nftables backend: the desired tables, and the kernel.
#[derive(Debug)]
pub struct Nftables<K = Kernel> {
    pub(super) kernel: K,
    /// In the order in which they are programmed: the bridge's table before the IP tables, which
    /// read its mark, and after them if it is removed.
    pub(super) tables: Vec<Programmed>,
}

/// Stands in for a [`Kernel`] if the rules are only rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoKernel;

impl Nftables {
    /// Opens nf_tables in this thread's network namespace. Nothing is read or written yet.
    ///
    /// # Errors
    /// [`NetlinkError`] when there is no netlink to be had.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut backend = Self::of(Kernel::open()?, &ServiceTable::ALL);
        backend.restore_numbers();
        Ok(backend)
    }

    /// Clients that an earlier run's rules remember stay with their endpoints.
    fn restore_numbers(&mut self) {
        for Programmed { wanted, .. } in &mut self.tables {
            let table_family = wanted.table_family;
            let seen = remembered(&mut self.kernel, wanted);
            for (id, key, value, comment) in seen.elements() {
                let family = SetName::of_id(id).family(table_family);
                let ends = protocol_and_number(family, wanted.schema.set(id), key);
                let endpoint = match value {
                    Some(Value::Data(data)) => read_endpoint(family, data),
                    Some(Value::Member | Value::Goto(_)) | None => None,
                };
                if let (Some((ip, port)), Some(owner), Some((protocol, number))) =
                    (endpoint, comment, ends)
                {
                    wanted.restore_number((owner.clone(), protocol), (ip, port).into(), number);
                }
            }
        }
    }

    /// A connection whose commits count as this backend's own.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn beside(&self) -> Result<Kernel, NetlinkError> {
        self.kernel.beside()
    }

    /// The portid by which the kernel's notifications name this backend's own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }
}

impl Nftables<NoKernel> {
    /// A backend without a kernel, which only renders.
    pub fn offline() -> Self {
        Self::of(NoKernel, &ServiceTable::ALL)
    }

    /// The rules that it would program.
    pub fn rendering(&self) -> Rendering {
        let wanted = self.tables.iter().filter(|table| table.is_wanted());
        wanted.fold(Rendering::empty(), |shown, Programmed { wanted, .. }| {
            shown.with(&wanted.schema, &wanted.lowered_chains(), &wanted.elements())
        })
    }
}

impl<K> Nftables<K> {
    pub(super) fn of(kernel: K, table_families: &[ServiceTable]) -> Self {
        let mut backend =
            Self { kernel, tables: table_families.iter().copied().map(Programmed::new).collect() };
        backend.order();
        backend
    }

    fn order(&mut self) {
        // A table family's own order has the bridge first.
        self.tables.sort_by_key(|table| (!table.is_wanted(), table.wanted.table_family));
    }

    /// The constant part of each table becomes that of `node`.
    pub(super) fn configure(&mut self, node: &NodePlan) {
        for table in &mut self.tables {
            let table_family = table.wanted.table_family;
            let config = TableConfig::new(table_family, node);
            table.unknown |= table.wanted.reconfigure(config);
        }
        self.order();
    }
}

impl Programmed {
    pub(super) fn program(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        if self.unknown {
            return self.reconcile(kernel);
        }
        // A refused batch either raced with another program's change, or it is refused again and
        // then isolated.
        match self.commit(kernel) {
            Err(NftError::Refused { .. }) => self.reconcile(kernel),
            done => Ok(done.map(|()| Repair::default())?),
        }
    }

    /// A change costs what changed.
    fn commit(&mut self, kernel: &mut Kernel) -> Result<(), NftError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let Difference { classes, mut elements } = pending;
        elements.sort();
        let (schema, table_family) = (&self.wanted.schema, self.wanted.table_family);
        let chains = classes.iter().flat_map(|class| self.wanted.class_chains(*class));
        let chains = self.wanted.lowered(&chains.collect::<Vec<_>>());
        let mut batch = kernel.batch(schema.family, None);
        batch.add_chains(schema.name, &chains);
        self.write(&mut batch, &elements);
        kernel.commit(batch)?;
        debug!(family = %table_family, add = elements.add.len(), delete = elements.delete.len(), "elements changed");
        Ok(())
    }

    /// Puts a difference into a batch.
    fn write(&self, batch: &mut Batch, elements: &Delta) {
        let Table { schema, .. } = &self.wanted;
        let chains = || self.wanted.lowered_chains();
        elements.write_within(batch, schema, chains, |set| self.wanted.ranges(set));
    }

    /// Reads the table and commits the difference to what is wanted.
    fn reconcile(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        self.pending = Difference::default();
        for _ in 0..REPAIR_TRIES {
            let seen = kernel.observe(&self.wanted.schema)?;
            let mark = kernel.mark(&seen);
            match self.repair(kernel, &seen) {
                Err(NftablesError::Driver(NftError::Raced { .. })) => {}
                Err(NftablesError::Driver(NftError::Refused { .. })) => {
                    return self.salvage(kernel, &seen);
                }
                Err(error) => return Err(error),
                Ok(repair) => {
                    self.unknown = false;
                    self.looked = Some(mark);
                    if self.known.services {
                        self.left_frontends.extend(self.not_wanted(&seen));
                    }
                    return Ok(repair);
                }
            }
        }
        Err(NftError::Raced { family: self.wanted.schema.family }.into())
    }

    /// The frontends that are in the kernel but are not wanted.
    fn not_wanted(&self, seen: &Observed) -> Vec<FrontendKey> {
        let Table { schema, table_family, .. } = &self.wanted;
        let keys = [SetName::Services, SetName::NodePorts].map(SetName::id);
        let found = seen.elements().filter(|(set, ..)| keys.contains(set));
        let found = found.filter_map(|(set, key, ..)| {
            let family = SetName::of_id(set).family(*table_family);
            frontend_of(family, schema.set(set), key)
        });
        found.filter(|key| !self.wanted.has_frontend(key)).collect()
    }

    fn repair(&mut self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftablesError> {
        let (schema, table_family) = (&self.wanted.schema, self.wanted.table_family);
        let structure = seen.structure(schema, &self.wanted.lowered_chains());
        let leave = seen.is_there() && self.waits_for_services();
        let has_pods = || seen.has_set(schema.set(SetName::LocalPods.id()));
        let structure = match structure {
            Some(structure) if !leave || structure.is_additive() => structure,
            Some(_) | None if leave && has_pods() => Structure::default(),
            Some(_) | None if leave => return Err(NftablesError::OlderTable { table_family }),
            Some(_) | None => return load(kernel, seen, &self.wanted, self.known),
        };
        let known = self.known;
        let covers = |set| known.covers(SetName::of_id(set));
        let delta = seen.difference(self.wanted.each_element(), covers);
        let mut batch = kernel.batch(schema.family, Some(seen.generation()));
        structure.write(&mut batch, schema.name);
        self.write(&mut batch, &delta);
        let elements = delta.count();
        // At a first load this is as large as the batch, and the kernel is about to allocate as
        // much again.
        drop(delta);
        kernel.commit(batch)?;
        let left_over = if known.services { structure.left_over() } else { &[] };
        let repair =
            Repair { rebuilt: false, chains: structure.count() + left_over.len(), elements };
        if !repair.is_none() {
            let Repair { chains, elements, .. } = repair;
            info!(family = %table_family, chains, elements, "ruleset brought up to date");
        }
        self.remove_chains(kernel, left_over);
        Ok(repair)
    }

    /// Removes chains that nothing refers to any more, in a batch of their own: a kernel before 6.2
    /// refuses to remove a chain in the batch that removes the last reference to it.
    fn remove_chains(&self, kernel: &mut Kernel, names: &[Arc<str>]) {
        let schema = &self.wanted.schema;
        let removed = kernel.write(schema.family, |batch| batch.delete_chains(schema.name, names));
        if let Err(error) = removed {
            warn!(family = %schema.family, %error, "chains of an earlier run are left");
        }
    }
}

/// The endpoints that clients of services with session affinity are remembered with. None if the
/// table or a set does not exist.
fn remembered(kernel: &mut Kernel, table: &Table) -> Observed {
    let mut seen = Observed::default();
    let of_table = SetName::of(table.table_family);
    for set in Group::ALL.map(Group::affinity_endpoints).iter().filter(|set| of_table.contains(set))
    {
        let schema = &table.schema;
        if let Err(error) = kernel.read_set(schema, schema.set(set.id()), &mut seen) {
            debug!(family = %schema.family, %set, %error, "no clients are remembered from an earlier run");
        }
    }
    seen
}
