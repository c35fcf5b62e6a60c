//! Programs host ports in nf_tables, whichever backend serves services, and if none does.
//!
//! The tables translate after all programs' rules for services. A connection that such a rule has
//! translated does not reach these tables: the kernel skips the remaining NAT chains of the hook.

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
    pub fn note_foreign_change(&mut self) {
        self.tables.iter_mut().for_each(|(keeper, _)| keeper.note_foreign_change());
    }

    /// Takes a new plan, and its difference from the plan before. Until pods are known, what an
    /// earlier run programmed stays.
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
            if table.update_rules(plan) {
                keeper.mark_unknown();
            }
        }
    }

    /// Programs what is decided: a change of both tables by one transaction.
    ///
    /// # Errors
    /// [`NftError`]; the next call starts from what it finds.
    pub fn sync(&mut self) -> Result<Repair, NftError> {
        let is_programmed = self.tables.iter().all(|(keeper, _)| keeper.is_programmed());
        if !self.is_decided || is_programmed {
            return Ok(Repair::default());
        }
        let Self { kernel, tables, .. } = self;
        let (mut done, mut kept) = (Vec::new(), Vec::new());
        for (keeper, table) in tables {
            match table.is_empty() {
                true => done.push(keeper.remove(kernel, &[])),
                false => kept.push((keeper, table)),
            }
        }
        done.push(Keeper::sync(kernel, &mut kept));
        // An error in one family does not stop the other family's host ports.
        done.into_iter().try_fold(Repair::default(), |all, repair| Ok(all + repair?))
    }

    /// Makes the next [`Self::sync`] remove the rules of a table without host ports. They are not
    /// removed with the last host port: to remove them, and to make them again for the next pod,
    /// takes longer than everything else that a DEL or an ADD waits for. Returns whether there are
    /// such rules.
    pub fn retire(&mut self) -> bool {
        let mut has_some = false;
        for (keeper, table) in &mut self.tables {
            if table.retire() {
                keeper.mark_unknown();
                has_some = true;
            }
        }
        has_some
    }

    /// Reads the tables if anybody may have changed them, and repairs them.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self) -> Result<Repair, NftError> {
        // Changes that are not programmed yet are no drift, so they are programmed first.
        self.sync()?;
        let Self { kernel, tables, .. } = self;
        let now = kernel.now();
        tables.iter_mut().for_each(|(keeper, _)| keeper.check(now));
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
