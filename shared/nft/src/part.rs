//! What the kernel takes: of a difference every element that it does, and whether it would take a
//! table at all.

use std::sync::Arc;

use denizen_netlink::NetlinkError;
use nix::errno::Errno;

use crate::batch::{Batch, What};
use crate::bytes::Key;
use crate::difference::Delta;
use crate::isolate::isolate;
use crate::kernel::{Kernel, NftError};
use crate::rule::Chain;
use crate::set::{Element, Schema, SetId};

/// A change of an element that the kernel refused, and why.
#[derive(Debug, Clone)]
pub struct Rejected<'a> {
    /// What was to be done.
    pub change: Change<'a>,
    /// The kernel's answer.
    pub error: Arc<NftError>,
}

/// A change of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It was to be removed.
    Removal(SetId, &'a Key),
    /// It was to be added.
    Addition(&'a Element),
}

impl Kernel {
    /// The kernel refuses a batch as a whole: commits every change of the difference that it takes,
    /// and returns the others.
    pub fn commit_parts<'a>(&mut self, schema: &Schema, delta: &'a Delta) -> Vec<Rejected<'a>> {
        let mut write =
            |fill: &dyn Fn(&mut Batch)| self.write(schema.family, fill).map_err(Arc::new);
        let removed =
            isolate(&delta.delete, |keys| write(&|batch| batch.delete_elements(schema, keys)));
        let added =
            isolate(&delta.add, |elements| write(&|batch| batch.add_elements(schema, elements)));
        let removals = removed
            .into_iter()
            .map(|((set, key), error)| Rejected { change: Change::Removal(*set, key), error });
        let additions = added
            .into_iter()
            .map(|(element, error)| Rejected { change: Change::Addition(element), error });
        removals.chain(additions).collect()
    }

    /// Finds out whether the kernel would take a table that is not there, by a batch that makes it
    /// and then fails on purpose, so that nothing of it stays.
    ///
    /// # Errors
    /// [`NftError::Refused`]: what it would not take.
    pub fn try_table(&mut self, schema: &Schema, chains: &[Chain]) -> Result<(), NftError> {
        let mut batch = self.batch(schema.family, None);
        batch.replace_table(false, schema, chains);
        batch.delete_table(schema.name);
        // There is none any more: this one is refused, and with it all.
        batch.delete_table(schema.name);
        match self.commit(batch) {
            Err(NftError::Refused {
                what: Some(What::Table),
                source: NetlinkError::Refused(refusal),
                ..
            }) if refusal.errno == Errno::ENOENT => Ok(()),
            done => done,
        }
    }
}
