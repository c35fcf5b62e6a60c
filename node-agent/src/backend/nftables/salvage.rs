//! When the kernel refuses a part of what is wanted: all but that part.

use super::dump::Observed;
use super::isolate::isolate;
use super::kernel::{Kernel, NftablesError};
use super::message::Batch;
use super::name::TableFamily;
use super::rejected::Rejected;
use super::sync::Programmed;
use super::table::Delta;
use super::write::replace_structure;
use crate::backend::Repair;
use crate::describe::describe;
use crate::plan::FrontendKey;

impl Programmed {
    /// The kernel refuses a batch as a whole: everything in it is programmed that it takes, and
    /// what it does not take is named. That part is tried again with the next attempt.
    pub(super) fn salvage(
        &mut self,
        kernel: &mut Kernel,
        seen: &Observed,
    ) -> Result<Repair, NftablesError> {
        let table_family = self.wanted.table_family;
        let mut batch = kernel.batch(table_family, Some(seen.generation));
        match seen.structure(table_family, &self.wanted.chains()) {
            Some(structure) if structure.is_additive() => structure.write(&mut batch),
            // An earlier run's services stay until it is known what takes their place.
            Some(_) | None if seen.table && self.waits_for_services() => {}
            Some(_) | None => {
                replace_structure(&mut batch, seen.table, table_family, &self.wanted.chains())
            }
        }
        kernel.commit(table_family, batch)?;
        let known = self.known;
        let seen = kernel.observe(table_family)?;
        let delta = seen.difference(self.wanted.each_element(), |set| known.covers(set));
        self.rejected = self.program_parts(kernel, &delta);
        let repair =
            Repair { elements: delta.add.len().max(delta.delete.len()), ..Repair::default() };
        if self.rejected.is_empty() {
            Ok(repair)
        } else {
            let names = self.rejected.iter().map(|it| it.words.clone()).collect();
            Err(NftablesError::Parts { table_family, names })
        }
    }

    /// What the kernel rejected of the elements of this frontend.
    pub(super) fn rejected_at(&self, key: &FrontendKey) -> Vec<String> {
        let of_family = self.wanted.table_family == TableFamily::Ip(key.family());
        let rejected = self.rejected.iter().filter(|it| of_family && it.key == Some(*key));
        rejected.map(|it| it.words.clone()).collect()
    }

    /// Programs every element that the kernel takes; returns the others.
    fn program_parts(&self, kernel: &mut Kernel, delta: &Delta) -> Vec<Rejected> {
        let table_family = self.wanted.table_family;
        let mut write =
            |fill: &dyn Fn(&mut Batch)| kernel.write(table_family, fill).map_err(|e| describe(&e));
        let gone = isolate(&delta.delete, |keys| write(&|batch| batch.delete_elements(keys)));
        let added = isolate(&delta.add, |elements| write(&|batch| batch.add_elements(elements)));
        let gone = gone
            .into_iter()
            .map(|((set, key), error)| Rejected::removal(table_family, *set, key, &error));
        let added = added
            .into_iter()
            .map(|(element, error)| Rejected::addition(table_family, element, &error));
        gone.chain(added).collect()
    }
}
