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
use denizen_model::Family;
use denizen_nft::{Chain, Content, Element, Keeper, Kernel, Key, NftError, Repair, SetId};
use denizen_plan::{HostPortPlan, Plan};

/// The tables of both versions.
#[derive(Debug)]
pub struct HostPorts {
    kernel: Kernel,
    tables: [(Keeper, HostPortTable); 2],
    /// Pods are known, or host ports are off.
    is_decided: bool,
}

/// What the table of one version holds.
#[derive(Debug)]
struct HostPortTable {
    version: Family,
    elements: HashMap<(SetId, Key), Element>,
    rules: Rules,
}

impl HostPortTable {
    fn is_empty(&self) -> bool {
        !self.rules.ports && !self.rules.guard
    }

    fn new(version: Family, plan: &Plan, decided: &HostPortPlan) -> Self {
        let settings = plan.policy().host_ports;
        let elements = elements(version, decided);
        let has_loopback =
            version == Family::V4 && settings.is_some_and(|settings| settings.localhost);
        Self {
            version,
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
        }
    }

    /// The elements that are not the same in `other`.
    fn beside(&self, other: &Self) -> Vec<Element> {
        let differs = |(key, element): &(_, &Element)| other.elements.get(*key) != Some(*element);
        self.elements.iter().filter(differs).map(|(_, element)| element.clone()).collect()
    }
}

impl Content for HostPortTable {
    fn chains(&self) -> Vec<Chain> {
        chains(self.version, self.rules)
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        self.elements.values().cloned()
    }
}

impl HostPorts {
    /// Nothing is programmed yet.
    pub fn new(kernel: Kernel) -> Self {
        let table = |version| {
            let empty =
                HostPortTable { version, elements: HashMap::new(), rules: Rules::default() };
            (Keeper::new(schema(version)), empty)
        };
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

    /// What is decided. While pods are not known, what an earlier run programmed stays.
    pub fn update(&mut self, plan: &Plan) {
        let none = HostPortPlan::default();
        let decided = match (plan.policy().host_ports, plan.host_ports()) {
            (Some(_), Some(decided)) => decided,
            (Some(_), None) => return,
            (None, _) => &none,
        };
        self.is_decided = true;
        for (keeper, table) in &mut self.tables {
            let new = HostPortTable::new(table.version, plan, decided);
            if new.rules == table.rules {
                keeper.note(|delta| delta.extend(table.beside(&new), new.beside(table)));
            } else {
                // The table is made, removed, or gets other chains.
                keeper.doubt();
            }
            *table = new;
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
