//! Brings the kernel's tables to what is wanted, and keeps them there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tracing::{debug, info, warn};

use super::dump::Observed;
use super::kernel::{Kernel, NftablesError};
use super::message::Batch;
use super::name::{Facts, SetName};
use super::program::{self, Shape};
use super::table::{Delta, Table};
use crate::model::{Family, PodSet};
use crate::netlink::NetlinkError;
use crate::plan::{Door, Plan};

/// How often a repair that others' changes overtook is tried before it is left to the next occasion.
const REPAIR_TRIES: usize = 10;

/// What a look at the kernel found, and did about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// The table's chains or sets were not ours, and all was programmed anew.
    pub rebuilt: bool,
    /// Elements that were missing, wrong or foreign.
    pub elements: usize,
}

impl Repair {
    /// Everything was as it should be.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// One family's table, wanted and programmed.
#[derive(Debug)]
struct Programmed {
    wanted: Table,
    /// Differences that are not in the kernel yet.
    pending: Delta,
    /// What the kernel holds is not known: nothing was read yet, or a batch failed.
    unknown: bool,
    known: Known,
}

/// Which facts the agent has been told. What an earlier run programmed from the others is left alone: a
/// restart must lose nothing while the API, or the state file, cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    pods: bool,
    services: bool,
}

impl Known {
    fn covers(self, set: SetName) -> bool {
        match set.filled_by() {
            Facts::Pods => self.pods,
            Facts::Services => self.services,
        }
    }
}

/// The nftables backend.
#[derive(Debug)]
pub struct Nftables {
    kernel: Kernel,
    families: Vec<Programmed>,
}

impl Nftables {
    /// Opens nf_tables in this thread's network namespace. Nothing is read or written yet.
    ///
    /// # Errors
    /// [`NetlinkError`] when there is no netlink to be had.
    pub fn open(shape: impl Fn(Family) -> Shape) -> Result<Self, NetlinkError> {
        let families = Family::BOTH
            .into_iter()
            .map(|family| Programmed {
                wanted: Table::new(family, shape(family)),
                pending: Delta::default(),
                unknown: true,
                known: Known::default(),
            })
            .collect();
        Ok(Self {
            kernel: Kernel::open()?,
            families,
        })
    }

    /// The pods of this node are these.
    pub fn set_pods(&mut self, pods: &PodSet) {
        for family in &mut self.families {
            family.unknown |= !std::mem::replace(&mut family.known.pods, true);
            family.wanted.change_pods(pods, &mut family.pending);
        }
    }

    /// These addresses may be handed to themselves through a service.
    pub fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>) {
        for family in &mut self.families {
            family
                .wanted
                .change_hairpins(addresses.iter().copied(), &mut family.pending);
        }
    }

    /// Node ports are served on these addresses.
    pub fn set_node_port_addresses(&mut self, addresses: &[IpAddr]) {
        for family in &mut self.families {
            family
                .wanted
                .change_node_port_addresses(addresses, &mut family.pending);
        }
    }

    /// These doors are decided otherwise, or are gone.
    pub fn set_doors<'a>(&mut self, plan: &Plan, doors: impl Iterator<Item = &'a Door> + Clone) {
        for family in &mut self.families {
            for door in doors.clone() {
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

    /// The picture of services, endpoints and the node is complete from now on.
    pub fn set_complete(&mut self) {
        for family in &mut self.families {
            family.unknown |= !std::mem::replace(&mut family.known.services, true);
        }
    }

    /// The constant part is this from now on.
    pub fn set_shape(&mut self, shape: impl Fn(Family) -> Shape) {
        for family in &mut self.families {
            let differs = family.wanted.reshape(shape(family.wanted.family));
            family.unknown |= differs;
        }
    }

    /// Programs what is pending. After an error, run it again: it starts from what it observes.
    ///
    /// # Errors
    /// The first family's error; the other family is programmed all the same.
    pub fn sync(&mut self) -> Result<Repair, NftablesError> {
        let mut repairs = Repair::default();
        let mut result = Ok(());
        for family in &mut self.families {
            let done = if family.unknown {
                family.reconcile(&mut self.kernel)
            } else {
                family.commit(&mut self.kernel).map(|()| Repair::default())
            };
            match done {
                Ok(repair) => {
                    repairs.rebuilt |= repair.rebuilt;
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

    /// Looks at the kernel's tables and repairs what somebody else changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self) -> Result<Repair, NftablesError> {
        for family in &mut self.families {
            family.unknown = true;
        }
        self.sync()
    }

    /// Packets that found no endpoint in any slot, in both families.
    ///
    /// # Errors
    /// The kernel's.
    pub fn missed_lookups(&mut self) -> Result<u64, NftablesError> {
        Family::BOTH
            .into_iter()
            .map(|family| self.kernel.missed_lookups(family))
            .sum()
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
        write(&mut batch, &delta);
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
            match self.repair(kernel, &seen) {
                Err(NftablesError::Raced { .. }) => {}
                Err(error) => return Err(error),
                Ok(repair) => {
                    self.unknown = false;
                    return Ok(repair);
                }
            }
        }
        Err(NftablesError::Raced { family })
    }

    fn repair(&mut self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftablesError> {
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, Some(seen.generation));
        let same = seen.same_structure(family, &self.wanted.chains());
        let leave = seen.table && !self.known.services;
        let left_over = match same {
            Some(left_over) => left_over,
            None if leave && seen.has_set(family, SetName::LocalPods) => Vec::new(),
            None if leave => {
                return Err(NftablesError::OlderTable { family });
            }
            None => return load(kernel, batch, seen, &self.wanted, self.known),
        };
        let known = self.known;
        let delta = seen.difference(self.wanted.elements(), |set| known.covers(set));
        write(&mut batch, &delta);
        kernel.commit(family, batch)?;
        let repair = Repair {
            rebuilt: false,
            elements: delta.add.len().max(delta.delete.len()),
        };
        if !repair.is_none() {
            info!(%family, elements = repair.elements, "ruleset brought up to date");
        }
        if self.known.services {
            self.remove_chains(kernel, &left_over);
        }
        Ok(repair)
    }

    /// Chains that nothing refers to any more. In a batch of their own: before 6.2 a kernel refuses to
    /// remove a chain in the batch that removes the last element that names it.
    fn remove_chains(&self, kernel: &mut Kernel, names: &[String]) {
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, None);
        for name in names {
            batch.delete_chain(name);
        }
        if let Err(error) = kernel.commit(family, batch) {
            warn!(%family, %error, "chains of an earlier run are left");
        }
    }
}

/// Everything, in place of whatever is there, at one instant.
fn load(
    kernel: &mut Kernel,
    mut batch: Batch,
    seen: &Observed,
    wanted: &Table,
    known: Known,
) -> Result<Repair, NftablesError> {
    let (family, chains, mut elements) = (wanted.family, wanted.chains(), wanted.elements());
    elements.extend(seen.members(|set| !known.covers(set)));
    if seen.table {
        batch.delete_table();
    }
    batch.add_table();
    for chain in &chains {
        batch.add_chain(chain);
    }
    for (set, id) in SetName::ALL.into_iter().zip(1..) {
        batch.add_set(set, id);
    }
    for chain in &chains {
        for rule in &chain.rules {
            batch.add_rule(chain.name, rule);
        }
    }
    batch.add_elements(&elements);
    kernel.commit(family, batch)?;
    info!(%family, chains = chains.len(), elements = elements.len(), "ruleset programmed");
    Ok(Repair {
        rebuilt: true,
        elements: elements.len(),
    })
}

/// The chains of new classes, then what goes, then what comes.
fn write(batch: &mut Batch, delta: &Delta) {
    let chains: Vec<_> = delta
        .classes
        .iter()
        .flat_map(|class| program::class_chains(*class))
        .collect();
    for chain in &chains {
        batch.add_chain(chain);
    }
    for chain in &chains {
        for rule in &chain.rules {
            batch.add_rule(chain.name, rule);
        }
    }
    batch.delete_elements(&delta.delete);
    batch.add_elements(&delta.add);
}
