//! Programs host ports in nf_tables, whichever backend serves services, and if none does.
//!
//! The tables' translation comes behind everybody's rules for services. What those have translated
//! is not asked again: the kernel leaves the rest of a hook's NAT chains out.

mod content;
mod table;
#[cfg(test)]
mod tests;

use self::content::HostPortTable;
pub use self::table::TABLE;
use self::table::schema;
use denizen_model::Family;
use denizen_nft::{Keeper, Kernel, NftError, Repair};
use denizen_plan::{HostPortPlan, Plan, PlanChanges};

/// The tables of both versions.
#[derive(Debug)]
pub struct HostPorts {
    kernel: Kernel,
    tables: [(Keeper, HostPortTable); 2],
    /// Pods are known, or host ports are off.
    is_decided: bool,
}

impl HostPorts {
    /// Nothing is programmed yet.
    pub fn new(kernel: Kernel) -> Self {
        let table = |version| (Keeper::new(schema(version)), HostPortTable::new(version));
        Self { kernel, tables: Family::BOTH.map(table), is_decided: false }
    }

    /// The portid by which notifications name our own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Another program changed the tables: [`Self::resync`] reads them.
    pub fn disturbed(&mut self) {
        self.tables.iter_mut().for_each(|(keeper, _)| keeper.disturbed());
    }

    /// What is decided, and how it differs from before. While pods are not known, what an earlier
    /// run programmed stays.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        let none = HostPortPlan::default();
        let decided = match (plan.policy().host_ports, plan.host_ports()) {
            (Some(_), Some(decided)) => decided,
            (Some(_), None) => return,
            (None, _) => &none,
        };
        let is_first = !std::mem::replace(&mut self.is_decided, true);
        for (keeper, table) in &mut self.tables {
            match is_first {
                true => table.fill(decided),
                false => {
                    keeper.note(|delta| table.change(decided, &changes.host_ports, delta));
                }
            }
            if table.settle(plan) {
                keeper.doubt();
            }
        }
    }

    /// Programs what is decided.
    ///
    /// # Errors
    /// [`NftError`]; the next call starts from what it finds.
    pub fn sync(&mut self) -> Result<Repair, NftError> {
        let (mut repair, mut result) = (Repair::default(), Ok(()));
        if !self.is_decided {
            return Ok(repair);
        }
        let Self { kernel, tables, .. } = self;
        for (keeper, table) in tables {
            let done = match table.is_empty() {
                true => keeper.remove(kernel, &[]),
                false => Keeper::sync(kernel, &mut [(keeper, table)]),
            };
            match done {
                Ok(done) => repair = repair + done,
                // The other family's are served all the same.
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| repair)
    }

    /// Reads the tables if anybody may have changed them, and repairs them.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self) -> Result<Repair, NftError> {
        // What is still to be programmed is no drift.
        self.sync()?;
        let Self { kernel, tables, .. } = self;
        tables.iter_mut().for_each(|(keeper, _)| keeper.check(kernel));
        self.sync()
    }

    /// Removes the tables. Returns how many there were.
    ///
    /// # Errors
    /// [`NftError`].
    pub fn remove(kernel: &mut Kernel) -> Result<usize, NftError> {
        let mut removed = 0;
        for version in Family::BOTH {
            removed += usize::from(Keeper::remove_table(kernel, &schema(version), &[])?);
        }
        Ok(removed)
    }
}
