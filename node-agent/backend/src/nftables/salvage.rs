//! If the kernel rejects a part of a batch, everything else is programmed.

use super::error::NftablesError;
use super::name::{ServiceTable, SetName};
use super::rejected::Rejected;
use super::sync::Programmed;
use crate::Repair;
use denizen_nft::{Kernel, Observed};
use denizen_plan::FrontendKey;

impl Programmed {
    /// The kernel refuses a batch as a whole. So the rejected parts are found and reported, and
    /// everything else is programmed. The next attempt tries them again.
    pub(super) fn salvage(
        &mut self,
        kernel: &mut Kernel,
        seen: &Observed,
    ) -> Result<Repair, NftablesError> {
        let table_family = self.wanted.table_family;
        let (schema, chains) = (&self.wanted.schema, self.wanted.lowered_chains());
        let mut batch = kernel.batch(schema.family, Some(seen.generation()));
        match seen.structure(schema, &chains) {
            Some(structure) if structure.is_additive() => structure.write(&mut batch, schema.name),
            // An earlier run's services stay until all services are known.
            Some(_) | None if seen.is_there() && self.waits_for_services() => {}
            Some(_) | None => batch.replace_table(seen.is_there(), schema, &chains),
        }
        kernel.commit(batch)?;
        let known = self.known;
        let seen = kernel.observe(schema)?;
        let covers = |set| known.covers(SetName::of_id(set));
        let delta = seen.difference(self.wanted.each_element(), covers);
        let rejected = kernel.commit_parts(schema, &delta);
        let rejected =
            rejected.iter().map(|it| Rejected::new(table_family, schema, it.change, &*it.error));
        self.rejected = rejected.collect();
        let repair = Repair { elements: delta.count(), ..Repair::default() };
        if self.rejected.is_empty() {
            Ok(repair)
        } else {
            let names = self.rejected.iter().map(|it| it.words.clone()).collect();
            Err(NftablesError::Parts { table_family, names })
        }
    }

    /// What the kernel rejected of the elements of this frontend.
    pub(super) fn rejected_at(&self, key: &FrontendKey) -> Vec<String> {
        let of_family = self.wanted.table_family == ServiceTable::Ip(key.family());
        let rejected = self.rejected.iter().filter(|it| of_family && it.key == Some(*key));
        rejected.map(|it| it.words.clone()).collect()
    }
}
