//! Programs host ports in nf_tables, whichever backend serves services, and if none does.
//!
//! The tables' translation comes behind everybody's rules for services. What those have translated
//! is not asked again: the kernel leaves the rest of a hook's NAT chains out.

mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use self::table::TABLE;
use self::table::{Rules, chains, elements, schema};
use crate::Repair;
use denizen_model::Family;
use denizen_nft::{Delta, Element, Kernel, Key, NftError, Observed, SetId};
use denizen_plan::{HostPortPlan, Plan};

/// How often a repair that others' changes overtook is tried before it is left to the next
/// occasion.
const REPAIR_TRIES: usize = 10;

/// The tables of both versions.
#[derive(Debug)]
pub struct HostPorts {
    kernel: Kernel,
    tables: [VersionTable; 2],
    /// Pods are known, or host ports are off.
    is_decided: bool,
}

/// The table of one version.
#[derive(Debug)]
struct VersionTable {
    version: Family,
    wanted: Content,
    /// What is in the kernel; `None` before the first look, and when another program may have
    /// changed the table.
    known: Option<Content>,
}

/// What a table holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Content {
    elements: HashMap<(SetId, Key), Element>,
    rules: Rules,
}

impl Content {
    fn is_empty(&self) -> bool {
        !self.rules.ports && !self.rules.guard
    }

    /// Whether only elements lead from this to `wanted`.
    fn is_changed_into(&self, wanted: &Content) -> bool {
        self.rules == wanted.rules && !self.is_empty() && !wanted.is_empty()
    }
}

impl HostPorts {
    /// Nothing is programmed yet.
    pub fn new(kernel: Kernel) -> Self {
        let table = |version| VersionTable { version, wanted: Content::default(), known: None };
        Self { kernel, tables: Family::BOTH.map(table), is_decided: false }
    }

    /// The portid by which notifications name our own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Another program may have changed the tables.
    pub fn disturbed(&mut self) {
        for table in &mut self.tables {
            table.known = None;
        }
    }

    /// What is decided. While pods are not known, what an earlier run programmed stays.
    pub fn update(&mut self, plan: &Plan) {
        let none = HostPortPlan::default();
        let (settings, decided) = match (plan.policy().host_ports, plan.host_ports()) {
            (Some(settings), Some(decided)) => (Some(settings), decided),
            (Some(_), None) => return,
            (None, _) => (None, &none),
        };
        self.is_decided = true;
        for table in &mut self.tables {
            let elements = elements(table.version, decided);
            let has_loopback =
                table.version == Family::V4 && settings.is_some_and(|settings| settings.localhost);
            table.wanted = Content {
                rules: Rules {
                    ports: !elements.is_empty(),
                    on_loopback: has_loopback && !elements.is_empty(),
                    // Every backend guards these addresses itself.
                    guard: has_loopback && !plan.policy().services,
                },
                elements: elements
                    .into_iter()
                    .map(|element| ((element.set, element.key), element))
                    .collect(),
            };
        }
    }

    /// Programs what is decided.
    ///
    /// # Errors
    /// [`NftError`]; the next call starts from what it finds.
    pub fn sync(&mut self) -> Result<Repair, NftError> {
        let mut repair = Repair::default();
        let mut result = Ok(());
        if !self.is_decided {
            return Ok(repair);
        }
        for table in &mut self.tables {
            match table.sync(&mut self.kernel) {
                Ok(done) => repair = repair + done,
                // The other family's are served all the same.
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| repair)
    }

    /// Reads the tables, and repairs what others changed in them.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self) -> Result<Repair, NftError> {
        // What is still to be programmed is no drift.
        self.sync()?;
        self.disturbed();
        self.sync()
    }

    /// Removes the tables. Returns how many there were.
    ///
    /// # Errors
    /// [`NftError`].
    pub fn remove(kernel: &mut Kernel) -> Result<usize, NftError> {
        let mut removed = 0;
        for schema in Family::BOTH.map(schema) {
            if kernel.observe(&schema)?.is_there() {
                kernel.write(schema.family, |batch| batch.delete_table(schema.name))?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl VersionTable {
    fn sync(&mut self, kernel: &mut Kernel) -> Result<Repair, NftError> {
        let repair = match self.known.take() {
            Some(known) if known == self.wanted => Repair::default(),
            Some(known) if known.is_changed_into(&self.wanted) => {
                self.change(kernel, &known)?;
                Repair::default()
            }
            Some(_) => {
                self.reconcile(kernel)?;
                Repair::default()
            }
            None => self.reconcile(kernel)?,
        };
        self.known = Some(self.wanted.clone());
        Ok(repair)
    }

    /// Writes what differs from the known elements.
    fn change(&self, kernel: &mut Kernel, known: &Content) -> Result<(), NftError> {
        let of = |all: &Content, other: &Content| {
            let differs =
                |(key, element): &(_, &Element)| other.elements.get(*key) != Some(*element);
            all.elements.iter().filter(differs).map(|(_, element)| element.clone()).collect()
        };
        let mut delta = Delta::default();
        delta.extend(of(known, &self.wanted), of(&self.wanted, known));
        delta.sort();
        let schema = schema(self.version);
        kernel.write(schema.family, |batch| delta.write(batch, &schema))
    }

    /// Reads the table, and writes what differs from what it should be.
    fn reconcile(&self, kernel: &mut Kernel) -> Result<Repair, NftError> {
        let schema = schema(self.version);
        for _ in 0..REPAIR_TRIES {
            let seen = kernel.observe(&schema)?;
            match self.repair(kernel, &seen) {
                Err(NftError::Raced { .. }) => {}
                done => return done,
            }
        }
        Err(NftError::Raced { family: schema.family })
    }

    fn repair(&self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftError> {
        let schema = schema(self.version);
        let mut batch = kernel.batch(schema.family, Some(seen.generation()));
        if self.wanted.is_empty() {
            if seen.is_there() {
                batch.delete_table(schema.name);
            }
            return kernel.commit(batch).map(|()| Repair::default());
        }
        let chains = chains(self.version, self.wanted.rules);
        let wanted = || self.wanted.elements.values().cloned();
        let Some(structure) = seen.structure(&schema, &chains) else {
            batch.replace_table(seen.is_there(), &schema, &chains);
            batch.add_elements(&schema, &wanted().collect::<Vec<_>>());
            let elements = self.wanted.elements.len();
            return kernel.commit(batch).map(|()| Repair {
                rebuilt: true,
                chains: chains.len(),
                elements,
            });
        };
        let delta = seen.difference(wanted(), |_| true);
        let chains = structure.count() + structure.left_over().len();
        structure.write(&mut batch, schema.name);
        delta.write(&mut batch, &schema);
        kernel.commit(batch)?;
        if !structure.left_over().is_empty() {
            kernel.write(schema.family, |batch| {
                batch.delete_chains(schema.name, structure.left_over());
            })?;
        }
        Ok(Repair { rebuilt: false, chains, elements: delta.count() })
    }
}
