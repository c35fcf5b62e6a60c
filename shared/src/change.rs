//! Changes that wait for the lock, in files beside the state file: whoever holds the lock makes
//! them all in one write, so that hundreds of plugins at once cost a few writes.
//!
//! A request is a file without a name until it is complete, and its writer holds a lock on it as
//! long as it lives: nobody makes the change of a writer that was killed. It is removed only after
//! the state file that has the change is in place, and so its writer knows that it is done. A
//! holder that is killed leaves it behind, and the next one makes the change again, which changes
//! nothing.

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

/// What the names of requests begin with. The rest is random.
const PREFIX: &str = "pods.json.change-";

/// More than a record could need, in bytes.
const LONGEST: u64 = 1 << 20;

/// What one writer wants to be different.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Change {
    /// This record is there, in the place of the one of its name.
    Put(Box<Attachment>),
    /// The record of this name is not there.
    Remove(AttachmentId),
}

impl Change {
    /// Makes the change, with a generation one higher if anything is different then.
    pub(crate) fn apply(&self, state: &mut State) {
        let differs = match self {
            Change::Put(record) => {
                let before = state.attachments.insert(record.id(), Attachment::clone(record));
                before.as_ref() != Some(&**record)
            }
            Change::Remove(id) => state.attachments.remove(id).is_some(),
        };
        state.generation.0 += u64::from(differs);
    }

    /// Whether `state` shows that the change was made. Of a removal nothing shows that what is
    /// missing will not come yet.
    pub(crate) fn is_in(&self, state: &State) -> bool {
        match self {
            Change::Put(record) => state.attachments.get(&record.id()) == Some(record),
            Change::Remove(_) => false,
        }
    }
}

/// A change that this process waits for. Dropping it withdraws it.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    dir: &'a File,
    name: String,
    /// Locked as long as this process lives.
    file: File,
}

impl<'a> Request<'a> {
    /// Asks whoever holds the lock to make `change`. `None` where the file system cannot do it:
    /// then this process has to get the lock itself.
    pub(crate) fn place(dir: &'a File, change: &Change) -> Option<Request<'a>> {
        let text = serde_json::to_vec(change).ok()?;
        if text.len() as u64 > LONGEST {
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
        Some(Request { dir, name, file })
    }

    /// Whether the state file has the change.
    pub(crate) fn is_done(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let _ = remove(self.dir, &self.name);
    }
}

/// Requests of others, as the holder of the lock found them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) changes: Vec<Change>,
    names: Vec<String>,
}

impl Waiting {
    /// Everything that living writers ask for in `dir`, whose path is `path`. What dead ones left
    /// is removed.
    pub(crate) fn in_dir(dir: &File, path: &Path) -> Waiting {
        let mut waiting = Waiting::default();
        // Not by /proc: that costs the kernel more than all else that is done here.
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

    /// Tells their writers that the state file in `dir` has the changes.
    pub(crate) fn done(self, dir: &File) {
        for name in self.names {
            let _ = remove(dir, &name);
        }
    }
}

/// The request `name`, if its writer lives.
fn living(dir: &File, name: &str, path: &Path) -> Option<Change> {
    let file = trust::file(dir, name, OFlag::O_RDONLY, &path.join(name)).ok()??;
    // Shared: nobody else's look is mistaken for the writer's life.
    if file.try_lock_shared().is_ok() {
        return None;
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn remove(dir: &File, name: &str) -> Result<(), Errno> {
    unlinkat(dir.as_fd(), name, UnlinkatFlags::NoRemoveDir)
}

/// A number that no process had before. This program's only randomness: the keys of std's hasher
/// come from the kernel.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
