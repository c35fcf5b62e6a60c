//! Who says what about which object, and what of it was told. Pure.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;

use crate::source::object::Key;

/// A file of the folder, by its name.
pub(super) type FileName = Arc<OsStr>;

/// Which files have which object.
///
/// The objects themselves are not kept, only a number that tells whether one was written
/// differently: the model has them already.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<Key, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The digest of what was told last.
    told: Option<u64>,
    /// The files that have it, in the order of their names. The first is right.
    claims: Vec<(FileName, u64)>,
}

/// What has to be told about an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// What was told is right.
    Nothing,
    /// No file has it any more.
    Gone,
    /// What this file says, with this digest.
    Says(FileName, u64),
}

impl Index {
    /// `file` has the object.
    pub(super) fn claim(&mut self, key: Key, file: &FileName, digest: u64) {
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
    pub(super) fn disclaim(&mut self, key: &Key, file: &FileName) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.claims.retain(|(other, _)| other != file);
        }
    }

    /// The files that have the object, the one that is right first.
    pub(super) fn files(&self, key: &Key) -> impl Iterator<Item = &FileName> {
        let claims = self.entries.get(key).map_or(&[][..], |entry| &entry.claims);
        claims.iter().map(|(file, _)| file)
    }

    /// The digest of what was told last about the object.
    pub(super) fn told(&self, key: &Key) -> Option<u64> {
        self.entries.get(key)?.told
    }

    /// What has to be told about the object now.
    pub(super) fn difference(&self, key: &Key) -> Difference {
        let Some(entry) = self.entries.get(key) else {
            return Difference::Nothing;
        };
        match (entry.claims.first(), entry.told) {
            (Some((_, digest)), Some(told)) if *digest == told => Difference::Nothing,
            (Some((file, digest)), _) => Difference::Says(file.clone(), *digest),
            (None, Some(_)) => Difference::Gone,
            (None, None) => Difference::Nothing,
        }
    }

    /// That much was told about the object.
    pub(super) fn settle(&mut self, key: &Key, told: Option<u64>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.told = told;
        if told.is_none() && entry.claims.is_empty() {
            self.entries.remove(key);
        }
    }
}
