//! Brings the kernel's tables to what is wanted, and keeps them there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnetwork::IpNetwork;
use tracing::{debug, info, warn};

use super::dump::{Observed, ObservedValue};
use super::kernel::{Kernel, Mark, NftablesError};
use super::name::{Facts, SetName};
use super::program::Shape;
use super::rule::Chain;
use super::structure::Structure;
use super::table::{Delta, Table};
use super::text::Rendering;
use super::write::{load, write};
use crate::backend::{Backend, Repair, SetSize, Told};
use crate::model::{Egress, Family, PodSet, family_of};
use crate::netlink::NetlinkError;
use crate::plan::{Detector, Door, NodePortAddresses, NodeSide, Plan};

/// How often a repair that others' changes overtook is tried before it is left to the next occasion.
const REPAIR_TRIES: usize = 10;

/// One family's table, wanted and programmed.
#[derive(Debug)]
pub(super) struct Programmed {
    pub(super) wanted: Table,
    /// Differences that are not in the kernel yet.
    pending: Delta,
    /// What the kernel holds is not known: nothing was read yet, or a batch failed.
    unknown: bool,
    /// When it was read last and found, or made, right.
    looked: Option<Mark>,
    pub(super) known: Known,
    /// Doors that were found in the kernel and are not wanted.
    left_doors: Vec<Door>,
}

/// Which facts the agent has been told. What an earlier run programmed from the others is left alone: a
/// restart must lose nothing while the API, or the state file, cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Known {
    pods: bool,
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

/// The nftables backend: what is wanted, and the kernel that it is wanted in.
#[derive(Debug)]
pub struct Nftables<K = Kernel> {
    kernel: K,
    families: Vec<Programmed>,
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
        let mut backend = Self::of(Kernel::open()?);
        backend.restore_numbers();
        Ok(backend)
    }

    /// Clients that an earlier run's rules remember stay with their endpoints.
    fn restore_numbers(&mut self) {
        for family in &mut self.families {
            let seen = self.kernel.remembered(family.wanted.family);
            for ((set, key), (value, comment)) in &seen.elements {
                let ends = key.protocol_and_number(*set, family.wanted.family);
                if let (ObservedValue::Endpoint(at), Some(owner), Some((protocol, number))) =
                    (value, comment, ends)
                {
                    family
                        .wanted
                        .restore_number((owner.clone(), protocol), *at, number);
                }
            }
        }
    }

    /// The port by which the kernel's notifications name this backend's own changes.
    pub fn port(&self) -> u32 {
        self.kernel.port()
    }

    /// Removes both tables.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cleanup(kernel: &mut Kernel) -> Result<usize, NftablesError> {
        let mut removed = 0;
        for family in Family::BOTH {
            if kernel.observe(family)?.table {
                let mut batch = kernel.batch(family, None);
                batch.delete_table();
                kernel.commit(family, batch)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Nftables<NoKernel> {
    /// Programs nothing, needs nothing, and shows what it would program.
    pub fn offline() -> Self {
        Self::of(NoKernel)
    }

    /// The rules that it would program.
    pub fn rendering(&self) -> Rendering {
        Rendering::of(self.families.iter().map(|family| &family.wanted))
    }
}

impl<K> Nftables<K> {
    fn of(kernel: K) -> Self {
        let families = Family::BOTH
            .into_iter()
            .map(|family| Programmed {
                wanted: Table::new(family, Shape::default()),
                pending: Delta::default(),
                unknown: true,
                looked: None,
                known: Known::default(),
                left_doors: Vec::new(),
            })
            .collect();
        Self { kernel, families }
    }
}

impl<K> Told for Nftables<K> {
    fn set_pods(&mut self, pods: &PodSet) {
        for family in &mut self.families {
            family.unknown |= !std::mem::replace(&mut family.known.pods, true);
            family.wanted.change_pods(pods, &mut family.pending);
        }
    }

    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>) {
        for family in &mut self.families {
            family
                .wanted
                .change_hairpins(addresses.iter().copied(), &mut family.pending);
        }
    }

    fn set_health_ports(&mut self, _ports: &BTreeSet<NonZeroU16>) {}

    fn set_node_port_addresses(&mut self, _wanted: &NodePortAddresses, addresses: &[IpAddr]) {
        for family in &mut self.families {
            family
                .wanted
                .change_node_port_addresses(addresses, &mut family.pending);
        }
    }

    fn set_doors(&mut self, plan: &Plan, doors: &BTreeSet<Door>) {
        for family in &mut self.families {
            for door in doors {
                let decided = (*door, plan.frontend(door));
                family
                    .wanted
                    .change_doors(std::iter::once(decided), &mut family.pending);
                if family.unknown {
                    // What differs will be seen in the kernel. At the start this would hold everything.
                    family.pending.clear();
                }
            }
        }
    }

    fn set_complete(&mut self) {
        for family in &mut self.families {
            family.unknown |= !std::mem::replace(&mut family.known.services, true);
        }
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        for family in &mut self.families {
            let of_family = |range: &&IpNetwork| family_of(range.ip()) == family.wanted.family;
            let ranges = ranges.iter().filter(of_family).copied().collect();
            let shape = Shape {
                detector: detector.clone(),
                ranges,
                ..family.wanted.shape().clone()
            };
            family.unknown |= family.wanted.reshape(shape);
        }
    }

    fn set_egress(&mut self, egress: Option<&Egress>) {
        for family in &mut self.families {
            let of = family.wanted.family;
            let kept = egress
                .filter(|egress| egress.covers(of))
                .map(|egress| egress.kept(of).collect());
            let shape = Shape {
                egress: kept,
                ..family.wanted.shape().clone()
            };
            family.unknown |= family.wanted.reshape(shape);
        }
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        for family in &mut self.families {
            let shape = Shape {
                node_side: *node_side,
                ..family.wanted.shape().clone()
            };
            family.unknown |= family.wanted.reshape(shape);
        }
    }

    fn set_service_ranges(&mut self, ranges: &[IpNetwork]) {
        for family in &mut self.families {
            let of_family = |range: &&IpNetwork| family_of(range.ip()) == family.wanted.family;
            let service_ranges = ranges.iter().filter(of_family).copied().collect();
            let shape = Shape {
                service_ranges,
                ..family.wanted.shape().clone()
            };
            family.unknown |= family.wanted.reshape(shape);
        }
    }
}

impl Backend for Nftables {
    type Error = NftablesError;

    /// As the trait says; of two families with errors the first one's is returned.
    fn sync(&mut self) -> Result<Repair, NftablesError> {
        let mut repairs = Repair::default();
        let mut result = Ok(());
        for family in &mut self.families {
            let done = if family.unknown {
                family.reconcile(&mut self.kernel)
            } else {
                // What was refused raced with somebody's change, or is refused again, and then isolated.
                match family.commit(&mut self.kernel) {
                    Err(NftablesError::Refused { .. }) => family.reconcile(&mut self.kernel),
                    done => done.map(|()| Repair::default()),
                }
            };
            match done {
                Ok(repair) => {
                    repairs.rebuilt |= repair.rebuilt;
                    repairs.chains += repair.chains;
                    repairs.elements += repair.elements;
                }
                Err(error) => {
                    family.unknown = true;
                    result = result.and(Err(error));
                }
            }
        }
        result.map(|()| repairs)
    }

    fn resync(&mut self) -> Result<Repair, NftablesError> {
        let Self { kernel, families } = self;
        for family in families {
            // Reading is dear: the kernel counts from the first element for every piece that it hands out.
            let is_right = family.looked.is_some_and(|mark| kernel.is_undisturbed(mark));
            family.unknown |= !is_right;
        }
        self.sync()
    }

    fn sizes(&self) -> Vec<SetSize> {
        let of = |family: &Programmed| {
            let name = family.wanted.family;
            let sizes = family.wanted.sizes().into_iter();
            sizes.map(move |(set, elements)| SetSize {
                family: name,
                set: set.to_string(),
                elements,
            })
        };
        self.families.iter().flat_map(of).collect()
    }

    fn left_doors(&mut self) -> Vec<Door> {
        let families = self.families.iter_mut();
        families
            .flat_map(|family| std::mem::take(&mut family.left_doors))
            .collect()
    }

    fn missed_lookups(&mut self) -> Result<u64, NftablesError> {
        Family::BOTH
            .into_iter()
            .map(|family| self.kernel.missed_lookups(family))
            .sum()
    }
}

impl Programmed {
    /// A change costs what changed.
    fn commit(&mut self, kernel: &mut Kernel) -> Result<(), NftablesError> {
        let mut delta = std::mem::take(&mut self.pending);
        if delta.is_empty() {
            return Ok(());
        }
        delta.sort();
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, None);
        let classes = delta.classes.iter();
        let chains: Vec<Chain> = classes
            .flat_map(|class| self.wanted.class_chains(*class))
            .collect();
        write(&mut batch, &chains, &delta);
        kernel.commit(family, batch)?;
        debug!(%family, add = delta.add.len(), delete = delta.delete.len(), "elements changed");
        Ok(())
    }

    /// Reads the table and commits the difference to what is wanted.
    fn reconcile(&mut self, kernel: &mut Kernel) -> Result<Repair, NftablesError> {
        let family = self.wanted.family;
        self.pending = Delta::default();
        for _ in 0..REPAIR_TRIES {
            let seen = kernel.observe(family)?;
            let mark = kernel.mark(&seen);
            match self.repair(kernel, &seen) {
                Err(NftablesError::Raced { .. }) => {}
                Err(NftablesError::Refused { .. }) => return self.salvage(kernel, &seen),
                Err(error) => return Err(error),
                Ok(repair) => {
                    self.unknown = false;
                    self.looked = Some(mark);
                    if self.known.services {
                        let found = seen.doors(family);
                        self.left_doors
                            .extend(found.filter(|door| !self.wanted.has_door(door)));
                    }
                    return Ok(repair);
                }
            }
        }
        Err(NftablesError::Raced { family })
    }

    fn repair(&mut self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftablesError> {
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, Some(seen.generation));
        let structure = seen.structure(family, &self.wanted.chains());
        let leave = seen.table && !self.known.services;
        let structure = match structure {
            Some(structure) if !leave || structure.is_additive() => structure,
            Some(_) | None if leave && seen.has_set(family, SetName::LocalPods) => Structure::default(),
            Some(_) | None if leave => return Err(NftablesError::OlderTable { family }),
            Some(_) | None => return load(kernel, batch, seen, &self.wanted, self.known),
        };
        let known = self.known;
        let delta = seen.difference(self.wanted.elements(), |set| known.covers(set));
        structure.write(&mut batch);
        write(&mut batch, &[], &delta);
        kernel.commit(family, batch)?;
        let left_over: &[String] = if known.services { &structure.left_over } else { &[] };
        let repair = Repair {
            rebuilt: false,
            chains: structure.count() + left_over.len(),
            elements: delta.add.len().max(delta.delete.len()),
        };
        if !repair.is_none() {
            let Repair { chains, elements, .. } = repair;
            info!(%family, chains, elements, "ruleset brought up to date");
        }
        self.remove_chains(kernel, left_over);
        Ok(repair)
    }

    /// Chains that nothing refers to any more. In a batch of their own: before 6.2 a kernel refuses to
    /// remove a chain in the batch that removes the last element that names it.
    fn remove_chains(&self, kernel: &mut Kernel, names: &[String]) {
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, None);
        batch.delete_chains(names);
        if let Err(error) = kernel.commit(family, batch) {
            warn!(%family, %error, "chains of an earlier run are left");
        }
    }
}
