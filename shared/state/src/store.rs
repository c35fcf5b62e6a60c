//! Reads and replaces the state file.
//!
//! A writer takes the lock, reads, changes, writes a file beside, syncs it and renames it over the
//! old one. A kill at any instant leaves the old file or the new one, and the kernel releases the
//! lock of a dead process. A reader needs no lock and never sees a partial file.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, renameat};

use crate::change::{ChangeRequest, StateChange, WaitingRequests, random};
use crate::error::StateError;
use crate::format;
use crate::lock::Lock;
use crate::run_dir::{DEFAULT, MAX_STATE_SIZE, STATE_FILE};
use crate::state::{Attachment, AttachmentId, Epoch, Generation, State};
use crate::state_editor::StateEditor;
use crate::successor;
use crate::trust::{self, failed, io_failed};

/// More bytes than a record needs.
const ROOM_FOR_A_RECORD: usize = 4096;

/// What a waiting writer gets.
enum WriteTurn {
    /// The lock.
    Lock(Lock),
    /// Nothing: another writer has made this writer's change.
    Done,
}

/// The run directory, opened and checked to be ours.
///
/// *Invariant:* everything is opened relative to the checked directory, so that nobody can redirect
/// it by replacing a path component later.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    dir: File,
}

impl RunDir {
    /// Opens the run directory `path`.
    ///
    /// # Errors
    ///
    /// [`StateError::NoRunDir`] if it does not exist, [`StateError::NotOurs`] if it is the root of
    /// the file system or a link, belongs to neither root nor the caller, or others may write to
    /// it.
    pub fn open(path: &Path) -> Result<RunDir, StateError> {
        // Without a trailing slash, which would follow a link.
        let path: PathBuf = path.components().collect();
        if path.file_name().is_none() {
            let why = format!("it is not a directory for denizen alone: use one such as {DEFAULT}");
            return Err(StateError::NotOurs { path, why });
        }
        let dir = trust::directory(&path)?;
        Ok(RunDir { path, dir })
    }

    /// Opens the run directory `path`, or creates it with mode 0700. An existing directory is never
    /// changed. Others may be able to read it, as in directories that kubelet creates: every file
    /// in it has mode 0600. Its parent must exist.
    ///
    /// # Errors
    ///
    /// As [`RunDir::open`], and [`StateError::Io`] if it cannot be created.
    pub fn create(path: &Path) -> Result<RunDir, StateError> {
        match RunDir::open(path) {
            Err(StateError::NoRunDir { path }) => {
                let made = DirBuilder::new().mode(0o700).create(&path);
                match made {
                    // Another process was faster. Its directory is checked like any other.
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        Err(io_failed("make the run directory", &path, error))
                    }
                    Ok(()) | Err(_) => RunDir::open(&path),
                }
            }
            opened => opened,
        }
    }

    /// The path, as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory, to reach its files without resolving [`RunDir::path`] again.
    pub fn dir(&self) -> &File {
        &self.dir
    }

    /// Reads the state file; `None` if there is no file. Takes no lock.
    ///
    /// # Errors
    ///
    /// [`StateError::Unreadable`], [`StateError::NewerVersion`], [`StateError::NotOurs`] or
    /// [`StateError::Io`].
    pub fn read(&self) -> Result<Option<State>, StateError> {
        let path = self.path.join(STATE_FILE);
        self.text(&path)?.map(|text| format::parse(&text, &path)).transpose()
    }

    pub(crate) fn text(&self, path: &Path) -> Result<Option<Vec<u8>>, StateError> {
        let Some(file) = trust::file(&self.dir, STATE_FILE, OFlag::O_RDONLY, path)? else {
            return Ok(None);
        };
        let size = file.metadata().map_err(|error| io_failed("look at", path, error))?.len();
        let mut text = Vec::with_capacity(size.min(MAX_STATE_SIZE) as usize + 1);
        file.take(MAX_STATE_SIZE + 1)
            .read_to_end(&mut text)
            .map_err(|error| io_failed("read", path, error))?;
        if text.len() as u64 > MAX_STATE_SIZE {
            let why = format!("it is larger than {MAX_STATE_SIZE} bytes");
            return Err(StateError::Unreadable { path: path.to_owned(), why });
        }
        Ok(Some(text))
    }

    /// Changes the state file: locks it within `wait`, reads it (a missing file is an empty one),
    /// lets `change` change it, and if it differs, replaces it with a generation one higher.
    ///
    /// Returns the result of `change`, and the file's epoch and generation afterwards. If nothing
    /// changed and there was no file, none is created, and the epoch has no meaning.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]; the file is unchanged then. [`StateError::Locked`] comes at the latest
    /// after `wait` and one retry.
    pub fn update<T>(
        &self,
        wait: Duration,
        change: impl FnOnce(&mut State) -> T,
    ) -> Result<(T, Epoch, Generation), StateError> {
        let _lock = self.lock(wait)?;
        self.update_locked(change)
    }

    fn update_locked<T>(
        &self,
        change: impl FnOnce(&mut State) -> T,
    ) -> Result<(T, Epoch, Generation), StateError> {
        let before = self.read()?.unwrap_or_else(|| State::empty(new_epoch()));
        let mut state = before.clone();
        let out = change(&mut state);
        // Only the store changes these three fields.
        (state.version, state.epoch, state.generation) =
            (before.version, before.epoch.clone(), before.generation);
        if state != before {
            state.generation.0 += 1;
            let text = format::print(&state).map_err(|error| self.unprintable(error))?;
            self.replace(|out| out.write_all(&text))?;
        }
        Ok((out, state.epoch, state.generation))
    }

    /// Like [`RunDir::update`], to add `record`, or to replace the record with its id
    /// ([`Attachment::in_place_of`]), which is returned. The cost hardly depends on the number of
    /// records. While another writer holds the lock, that writer or the next one makes this change
    /// together with its own: hundreds of concurrent writers cost a few writes.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn put(
        &self,
        wait: Duration,
        record: &Attachment,
    ) -> Result<(Option<Attachment>, Epoch, Generation), StateError> {
        let id = record.id();
        let change = StateChange::Put(Box::new(record.clone()));
        let _lock = match self.wait_for_turn(wait, &change, &id)? {
            WriteTurn::Lock(lock) => lock,
            WriteTurn::Done => {
                let text = self.text(&self.path.join(STATE_FILE))?;
                if let Some(editor) = text.as_deref().and_then(|text| StateEditor::parse(text, &id))
                    && editor.has()
                {
                    // Other writers are only asked to add a record, never to replace one (see
                    // `turn`), so there was none before.
                    return Ok((None, editor.epoch, editor.generation));
                }
                // Another process has removed the record since, or rebuilt the file: add it again.
                self.lock(wait)?
            }
        };
        let waiting = WaitingRequests::in_dir(&self.dir, &self.path);
        let text = self.text(&self.path.join(STATE_FILE))?;
        let editor = text.as_deref().and_then(|text| StateEditor::parse(text, &id));
        let Some(mut editor) = editor.filter(|_| waiting.changes.is_empty()) else {
            let before = self.read()?.and_then(|mut state| state.attachments.remove(&id));
            let (epoch, generation) = self.make_with(change, waiting)?;
            return Ok((before, epoch, generation));
        };
        let before = editor.generation;
        let replaced = editor.put(record).map_err(|error| self.unprintable(error))?;
        if editor.generation != before {
            self.replace(|out| editor.print(out))?;
        }
        Ok((replaced, editor.epoch, editor.generation))
    }

    /// Like [`RunDir::put`], to remove the record of `id`: returns the generation without the
    /// record, `None` if there was no record. If there is no record and no other writer, this
    /// neither waits nor needs write permission.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn remove(
        &self,
        wait: Duration,
        id: &AttachmentId,
    ) -> Result<Option<(Epoch, Generation)>, StateError> {
        // Checked first: a current writer may add the record of a writer that was killed meanwhile.
        let is_written = Lock::is_held(&self.dir, &self.path)?;
        if !self.has(id)? && !is_written {
            return Ok(None);
        }
        let change = StateChange::Remove(id.clone());
        let _lock = match self.wait_for_turn(wait, &change, id)? {
            WriteTurn::Lock(lock) => lock,
            WriteTurn::Done => {
                return Ok(self.read()?.map(|state| (state.epoch, state.generation)));
            }
        };
        let waiting = WaitingRequests::in_dir(&self.dir, &self.path);
        let text = self.text(&self.path.join(STATE_FILE))?;
        let editor = text.as_deref().and_then(|text| StateEditor::parse(text, id));
        let Some(mut editor) = editor.filter(|_| waiting.changes.is_empty()) else {
            return self.make_with(change, waiting).map(Some);
        };
        let before = editor.generation;
        editor.remove();
        if editor.generation == before {
            return Ok(None);
        }
        self.replace(|out| editor.print(out))?;
        Ok(Some((editor.epoch, editor.generation)))
    }

    /// Whether there is a record of `id` now.
    fn has(&self, id: &AttachmentId) -> Result<bool, StateError> {
        let path = self.path.join(STATE_FILE);
        let Some(text) = self.text(&path)? else {
            return Ok(false);
        };
        match StateEditor::parse(&text, id) {
            Some(editor) => Ok(editor.has()),
            None => format::parse(&text, &path).map(|state| state.attachments.contains_key(id)),
        }
    }

    /// Makes `change` together with the `waiting` ones. The caller holds the lock.
    fn make_with(
        &self,
        change: StateChange,
        mut waiting: WaitingRequests,
    ) -> Result<(Epoch, Generation), StateError> {
        waiting.changes.push(change.clone());
        match self.make(&waiting.changes) {
            Ok(made) => {
                waiting.acknowledge(&self.dir);
                Ok(made)
            }
            // Another writer's change may have failed. That writer then finds out by itself.
            Err(_) => self.make(&[change]),
        }
    }

    fn make(&self, changes: &[StateChange]) -> Result<(Epoch, Generation), StateError> {
        let mut state = self.read()?.unwrap_or_else(|| State::empty(new_epoch()));
        let before = state.generation;
        changes.iter().for_each(|change| change.apply(&mut state));
        if state.generation != before {
            let text = format::print(&state).map_err(|error| self.unprintable(error))?;
            self.replace(|out| out.write_all(&text))?;
        }
        Ok((state.epoch, state.generation))
    }

    /// Does everything that [`RunDir::update`] does, except replacing the state file. Success shows
    /// that a record could be written now.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn rehearse(&self, wait: Duration) -> Result<(), StateError> {
        let _lock = self.lock(wait)?;
        let state = self.read()?.unwrap_or_else(|| State::empty(new_epoch()));
        // Add the space that the next record needs.
        let mut text = format::print(&state).map_err(|error| self.unprintable(error))?;
        text.resize(text.len() + ROOM_FOR_A_RECORD, b' ');
        successor::rehearse(&self.dir, &self.path, &text)
    }

    /// Renames an invalid state file to `pods.json.bad-<suffix>`, under the lock, so that a new one
    /// can be created and the old one inspected. Returns its new path; `None` if the file turned
    /// out to be readable or gone once the lock was held.
    ///
    /// # Errors
    ///
    /// [`StateError::Locked`] or [`StateError::Io`]. A file of a newer version, or one that is not
    /// ours, is not renamed: its error is returned.
    pub fn set_aside(&self, wait: Duration, suffix: &str) -> Result<Option<PathBuf>, StateError> {
        let _lock = self.lock(wait)?;
        match self.read() {
            Ok(_) => Ok(None),
            Err(StateError::Unreadable { path, .. }) => {
                let aside = format!("{STATE_FILE}.bad-{suffix}");
                renameat(self.dir.as_fd(), STATE_FILE, self.dir.as_fd(), aside.as_str())
                    .map_err(|errno| failed("rename", &path, errno))?;
                Ok(Some(self.path.join(aside)))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock, or until its holder has made `change` to the record of `id`.
    fn wait_for_turn(
        &self,
        wait: Duration,
        change: &StateChange,
        id: &AttachmentId,
    ) -> Result<WriteTurn, StateError> {
        if let Some(lock) = Lock::try_take(&self.dir, &self.path)? {
            return Ok(WriteTurn::Lock(lock));
        }
        // A writer that replaces a record must return the old one, so it needs the lock itself.
        let is_simple = matches!(change, StateChange::Remove(_)) || !self.has(id)?;
        let request = is_simple.then(|| ChangeRequest::place(&self.dir, change)).flatten();
        let is_done = || request.as_ref().is_some_and(ChangeRequest::is_done);
        let lock = Lock::take_unless(&is_done, &self.dir, &self.path, wait);
        // Check again even if the lock was taken, or the wait ended, just now.
        if is_done() {
            return Ok(WriteTurn::Done);
        }
        match lock {
            // The holder has made the change, but not yet removed the request.
            Err(StateError::Locked { .. })
                if request.is_some() && self.read()?.is_some_and(|state| change.is_in(&state)) =>
            {
                Ok(WriteTurn::Done)
            }
            lock => Ok(lock?.map_or(WriteTurn::Done, WriteTurn::Lock)),
        }
    }

    /// Replaces the file by what `print` writes. The caller holds the lock.
    fn replace(
        &self,
        print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), StateError> {
        successor::replace(&self.dir, &self.path, print)
    }

    fn lock(&self, wait: Duration) -> Result<Lock, StateError> {
        Lock::take(&self.dir, &self.path, wait)
    }

    fn unprintable(&self, error: serde_json::Error) -> StateError {
        io_failed("write", &self.path.join(STATE_FILE), error.into())
    }
}

/// A random epoch for a new file.
fn new_epoch() -> Epoch {
    Epoch(format!("{:016x}", random()))
}

#[cfg(test)]
mod tests;
