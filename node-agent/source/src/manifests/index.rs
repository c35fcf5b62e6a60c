//! Which files have which object, and what was sent about it. Pure.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;

use denizen_object::ObjectKey;

/// A file of the folder, by its name.
pub(super) type FileName = Arc<OsStr>;

/// Which files have which object.
///
/// Only a hash of each object is kept, to notice a difference: the model has the objects.
#[derive(Debug, Default)]
pub(super) struct ManifestIndex {
    entries: HashMap<ObjectKey, IndexedObject>,
}

#[derive(Debug, Default)]
struct IndexedObject {
    /// The hash of the object that was sent last.
    sent: Option<u64>,
    /// The files that have it, sorted by name. The first wins.
    claims: Vec<(FileName, u64)>,
}

/// The event to send about an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectDifference {
    Nothing,
    /// No file has it now.
    Gone,
    /// This file's copy, with this hash.
    CopyOf(FileName, u64),
}

impl ManifestIndex {
    pub(super) fn claim(&mut self, key: ObjectKey, file: &FileName, digest: u64) {
        let claims = &mut self.entries.entry(key).or_default().claims;
        match claims.binary_search_by(|(other, _)| other.cmp(file)) {
            Ok(at) => claims[at].1 = digest,
            Err(at) => {
                // Nearly every object is in one file.
                claims.reserve_exact(1);
                claims.insert(at, (file.clone(), digest));
            }
        }
    }

    /// `file` no longer has the object.
    pub(super) fn disclaim(&mut self, key: &ObjectKey, file: &FileName) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.claims.retain(|(other, _)| other != file);
        }
    }

    /// The files that have the object, the winning one first.
    pub(super) fn files(&self, key: &ObjectKey) -> impl Iterator<Item = &FileName> {
        let claims = self.entries.get(key).map_or(&[][..], |entry| &entry.claims);
        claims.iter().map(|(file, _)| file)
    }

    /// The hash of the object that was sent last.
    pub(super) fn sent(&self, key: &ObjectKey) -> Option<u64> {
        self.entries.get(key)?.sent
    }

    /// What has to be sent about the object now.
    pub(super) fn difference(&self, key: &ObjectKey) -> ObjectDifference {
        let Some(entry) = self.entries.get(key) else {
            return ObjectDifference::Nothing;
        };
        match (entry.claims.first(), entry.sent) {
            (Some((_, digest)), Some(sent)) if *digest == sent => ObjectDifference::Nothing,
            (Some((file, digest)), _) => ObjectDifference::CopyOf(file.clone(), *digest),
            (None, Some(_)) => ObjectDifference::Gone,
            (None, None) => ObjectDifference::Nothing,
        }
    }

    /// Records the hash of the object that was sent.
    pub(super) fn record_sent(&mut self, key: &ObjectKey, sent: Option<u64>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.sent = sent;
        if sent.is_none() && entry.claims.is_empty() {
            self.entries.remove(key);
        }
    }
}
