//! What the kernel accepts: commits the acceptable elements of a difference, and tries whether it
//! would accept a table.

use std::error::Error;
use std::sync::Arc;

use denizen_netlink::NetlinkError;
use nix::errno::Errno;

use crate::batch::Batch;
use crate::bytes::Key;
use crate::chain::Chain;
use crate::difference::Delta;
use crate::isolate::isolate;
use crate::kernel::{Kernel, NftError};
use crate::set::{Element, Schema, SetId};
use crate::subject::MessageSubject;

/// A change of an element that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedElement {
    /// The set that refused it.
    pub set: SetId,
    /// The element's key.
    pub key: Key,
    /// What was to be done, and why the kernel refused.
    pub text: String,
}

impl RejectedElement {
    fn removal(schema: &Schema, set: SetId, key: Key, error: &NftError) -> Self {
        let (from, error) = (schema.set(set), with_causes(error));
        let text = format!("to remove {} from {}: {error}", from.key_text(&key), from.name);
        Self { set, key, text }
    }

    /// The rejection of an added element.
    pub fn addition(schema: &Schema, element: &Element, error: &NftError) -> Self {
        let Element { set, key, ref comment, .. } = *element;
        let (to, error) = (schema.set(set), with_causes(error));
        let (element, owner) = (to.key_text(&key), comment.as_deref().unwrap_or("no comment"));
        let text = format!("to add {element} ({owner}) to {}: {error}", to.name);
        Self { set, key, text }
    }
}

fn with_causes(error: &NftError) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Commits every change of a refused difference that the kernel accepts, and returns the rejected
/// ones.
pub(crate) fn commit_parts(
    kernel: &mut Kernel,
    schema: &Schema,
    delta: &Delta,
) -> Vec<RejectedElement> {
    let mut write = |fill: &dyn Fn(&mut Batch)| kernel.write(schema.family, fill).map_err(Arc::new);
    let removed =
        isolate(&delta.delete, |keys| write(&|batch| batch.delete_elements(schema, keys)));
    let added =
        isolate(&delta.add, |elements| write(&|batch| batch.add_elements(schema, elements)));
    let removals = removed
        .into_iter()
        .map(|((set, key), error)| RejectedElement::removal(schema, *set, *key, &error));
    let additions = added
        .into_iter()
        .map(|(element, error)| RejectedElement::addition(schema, element, &error));
    removals.chain(additions).collect()
}

/// Finds out whether the kernel would accept a table that does not exist, by a batch that makes it
/// and then fails on purpose, so that nothing of it stays.
pub(crate) fn try_table(
    kernel: &mut Kernel,
    schema: &Schema,
    chains: &[Chain],
) -> Result<(), NftError> {
    let mut batch = kernel.batch(schema.family, None);
    batch.replace_table(false, schema, chains);
    batch.delete_table(schema.name);
    // The table does not exist any more, so this deletion is refused, and with it the whole batch.
    batch.delete_table(schema.name);
    match kernel.commit(batch) {
        Err(NftError::Refused {
            what: Some(MessageSubject::Table),
            source: NetlinkError::Refused(refusal),
            ..
        }) if refusal.errno == Errno::ENOENT => Ok(()),
        done => done,
    }
}
