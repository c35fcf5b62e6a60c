//! Changes that wait for the lock, in files beside the state file. The process that holds the lock
//! makes all of them in one write, so that hundreds of concurrent plugins cost a few writes.
//!
//! A request is a file without a name until it is complete. Its writer holds a lock on it for as
//! long as the writer lives, so that nobody makes the change of a killed writer. The holder of the
//! state file's lock removes a request only after the changed state file is in place; that tells
//! the writer that its change is made. A holder that is killed leaves the request behind, and the
//! next holder makes the change again, which changes nothing.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use serde::{Deserialize, Serialize};

use crate::state::{Attachment, AttachmentId, State};
use crate::trust;

/// The prefix of the names of requests. The rest is random.
const PREFIX: &str = "pods.json.change-";

/// Size limit in bytes, more than a record needs.
const MAX_REQUEST_SIZE: u64 = 1 << 20;

/// The change that one writer requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StateChange {
    /// Adds this record, or puts it in place of the one with its id.
    Put(Box<Attachment>),
    /// Removes the record with this id.
    Remove(AttachmentId),
}

impl StateChange {
    /// Makes the change, and raises the generation by one if the state differs.
    pub(crate) fn apply(&self, state: &mut State) {
        let differs = match self {
            StateChange::Put(record) => {
                let mut record = Attachment::clone(record);
                let before = state.attachments.remove(&record.id());
                if let Some(before) = &before {
                    record = record.in_place_of(before);
                }
                let differs = before.as_ref() != Some(&record);
                state.attachments.insert(record.id(), record);
                differs
            }
            StateChange::Remove(id) => state.attachments.remove(id).is_some(),
        };
        state.generation.0 += u64::from(differs);
    }

    /// Whether `state` proves that the change was made. A missing record does not prove a removal:
    /// the record may still be added.
    pub(crate) fn is_in(&self, state: &State) -> bool {
        match self {
            StateChange::Put(record) => state.attachments.get(&record.id()) == Some(record),
            StateChange::Remove(_) => false,
        }
    }
}

/// A change that this process has requested. Dropping this withdraws it.
#[derive(Debug)]
pub(crate) struct ChangeRequest<'a> {
    dir: &'a File,
    name: String,
    /// Locked while this process lives.
    file: File,
}

impl<'a> ChangeRequest<'a> {
    /// Requests `change` from the holder of the lock. `None` if the file system does not support
    /// that; then this process must get the lock itself.
    pub(crate) fn place(dir: &'a File, change: &StateChange) -> Option<ChangeRequest<'a>> {
        let text = serde_json::to_vec(change).ok()?;
        if text.len() as u64 > MAX_REQUEST_SIZE {
            return None;
        }
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        let file = openat(dir.as_fd(), ".", flags, Mode::from_bits_truncate(0o600)).ok()?;
        let mut file = File::from(file);
        file.write_all(&text).ok()?;
        file.try_lock().ok()?;
        let name = format!("{PREFIX}{:016x}", random());
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        linkat(AT_FDCWD, nameless.as_str(), dir.as_fd(), name.as_str(), follow).ok()?;
        Some(ChangeRequest { dir, name, file })
    }

    /// Whether the state file contains the change.
    pub(crate) fn is_done(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}

impl Drop for ChangeRequest<'_> {
    fn drop(&mut self) {
        let _ = remove(self.dir, &self.name);
    }
}

/// Requests of other writers, found by the holder of the lock.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    pub(crate) changes: Vec<StateChange>,
    names: Vec<String>,
}

impl WaitingRequests {
    /// All requests of living writers in `dir`, whose path is `path`. Requests of dead writers are
    /// removed.
    pub(crate) fn in_dir(dir: &File, path: &Path) -> WaitingRequests {
        let mut waiting = WaitingRequests::default();
        // Not through /proc: that costs the kernel more than everything else here.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(mut entries) = Dir::openat(dir.as_fd(), ".", flags, Mode::empty()) else {
            return waiting;
        };
        for entry in entries.iter().flatten() {
            let name = entry.file_name().to_str();
            let Some(name) = name.ok().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            match living(dir, name, path) {
                Some(change) => {
                    waiting.changes.push(change);
                    waiting.names.push(name.to_owned());
                }
                None => _ = remove(dir, name),
            }
        }
        waiting
    }

    /// Removes the requests, which tells their writers that the state file in `dir` has the
    /// changes.
    pub(crate) fn acknowledge(self, dir: &File) {
        for name in self.names {
            let _ = remove(dir, &name);
        }
    }
}

/// The change in the request `name`, if its writer lives.
fn living(dir: &File, name: &str, path: &Path) -> Option<StateChange> {
    let file = trust::file(dir, name, OFlag::O_RDONLY, &path.join(name)).ok()??;
    // A shared lock, so that another reader is not mistaken for the writer.
    if file.try_lock_shared().is_ok() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_REQUEST_SIZE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn remove(dir: &File, name: &str) -> Result<(), Errno> {
    unlinkat(dir.as_fd(), name, UnlinkatFlags::NoRemoveDir)
}

/// A random number, different for every process. It is this program's only randomness: the keys of
/// std's hasher come from the kernel.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
