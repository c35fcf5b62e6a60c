//! When the kernel refuses a part of what is wanted: all but that part.

use super::dump::Observed;
use super::element::{Element, KeyText};
use super::isolate::isolate;
use super::kernel::{Kernel, NftablesError};
use super::sync::Programmed;
use super::table::Delta;
use super::write::{replace_structure, write};
use crate::backend::Repair;
use crate::describe::describe;

impl Programmed {
    /// The kernel refuses a batch as a whole: everything in it is programmed that it takes, and what it
    /// does not take is named. That part is tried again with the next attempt.
    pub(super) fn salvage(&mut self, kernel: &mut Kernel, seen: &Observed) -> Result<Repair, NftablesError> {
        let family = self.wanted.family;
        let mut batch = kernel.batch(family, Some(seen.generation));
        match seen.structure(family, &self.wanted.chains()) {
            Some(structure) => write(&mut batch, &structure.missing, &Delta::default()),
            None => replace_structure(&mut batch, seen.table, &self.wanted.chains()),
        }
        kernel.commit(family, batch)?;
        let known = self.known;
        let seen = kernel.observe(family)?;
        let delta = seen.difference(self.wanted.elements(), |set| known.covers(set));
        let gone = isolate(&delta.delete, |keys| {
            kernel
                .write(family, |batch| batch.delete_elements(keys))
                .map_err(|e| describe(&e))
        });
        let mut names: Vec<String> = gone
            .into_iter()
            .map(|((set, key), error)| {
                format!(
                    "to remove {} from {set}: {error}",
                    KeyText {
                        set: *set,
                        family,
                        key
                    }
                )
            })
            .collect();
        let added = isolate(&delta.add, |elements| {
            kernel
                .write(family, |batch| batch.add_elements(elements))
                .map_err(|e| describe(&e))
        });
        names.extend(added.into_iter().map(|(element, error)| {
            let owner = element.comment.as_deref().unwrap_or("no comment");
            let Element { set, key, .. } = element;
            format!(
                "to add {} ({owner}) to {set}: {error}",
                KeyText {
                    set: *set,
                    family,
                    key
                }
            )
        }));
        let repair = Repair {
            elements: delta.add.len().max(delta.delete.len()),
            ..Repair::default()
        };
        if names.is_empty() {
            Ok(repair)
        } else {
            Err(NftablesError::Parts { family, names })
        }
    }
}
