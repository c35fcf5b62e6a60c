//! What the kernel takes: of a difference every element that it does, and whether it would take a
//! table at all.

use std::error::Error;
use std::sync::Arc;

use denizen_netlink::NetlinkError;
use nix::errno::Errno;

use crate::batch::Batch;
use crate::bytes::Key;
use crate::difference::Delta;
use crate::isolate::isolate;
use crate::kernel::{Kernel, NftError};
use crate::rule::Chain;
use crate::set::{Element, Schema, SetId};
use crate::what::What;

/// A change of an element that the kernel refused, and why.
#[derive(Debug, Clone)]
pub struct Rejected<'a> {
    /// What was to be done.
    pub change: Change<'a>,
    /// The kernel's answer.
    pub error: Arc<NftError>,
}

impl Rejected<'_> {
    /// What was rejected of a table, and why.
    pub fn text(&self, schema: &Schema) -> String {
        let (id, key) = match self.change {
            Change::Removal(set, key) => (set, key),
            Change::Addition(element) => (element.set, &element.key),
        };
        let set = schema.set(id);
        let (text, error) = (set.key_text(key), &self.error);
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        match self.change {
            Change::Removal(..) => format!("to remove {text} from {}: {error}{cause}", set.name),
            Change::Addition(element) => {
                let owner = element.comment.as_deref().unwrap_or("no comment");
                format!("to add {text} ({owner}) to {}: {error}{cause}", set.name)
            }
        }
    }
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
