//! Reading and replacing the state file.
//!
//! A writer takes the lock, reads, changes, writes a file beside, syncs it and renames it over the old
//! one. A kill at any instant leaves the old file or the new one, and the kernel gives back the lock of
//! who died. A reader needs no lock and never sees half a file.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::error::StateError;
use crate::format;
use crate::run_dir::{LOCK_FILE, STATE_FILE};
use crate::sheet::Sheet;
use crate::state::{Attachment, AttachmentId, Epoch, Generation, State};
use crate::trust::{self, failed, io_failed};

/// Where a writer, who holds the lock, builds the next file. A writer that was killed leaves it behind,
/// and the next one replaces it.
const NEXT_FILE: &str = "pods.json.next";

/// More than a node could ever need (some 400 bytes an attachment), and little enough to read at once.
const MAX_SIZE: u64 = 64 << 20;

/// What a record may take, with room to spare.
const ROOM_FOR_A_RECORD: usize = 4096;

/// Between two tries for the lock, which is held for well under a millisecond.
const LOCK_RETRY: Duration = Duration::from_micros(500);

/// The run directory, opened and found to be ours.
///
/// *Invariant:* everything is opened relative to the directory that was checked, so that nobody who swaps
/// a path component later can redirect it.
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
    /// [`StateError::NoRunDir`] when it is not there, [`StateError::NotOurs`] when it is a link, belongs to
    /// neither root nor the caller, or can be written by others.
    pub fn open(path: &Path) -> Result<RunDir, StateError> {
        // Without the trailing slash of a path as an operator may write it: it would follow a link.
        let path: PathBuf = path.components().collect();
        let dir = trust::directory(&path)?;
        Ok(RunDir { path, dir })
    }

    /// Opens the run directory `path`, made with mode 0700 when there is none; one that others may look into, as kubelet
    /// makes them, gets it. Its parent must be there.
    ///
    /// # Errors
    ///
    /// As [`RunDir::open`], and [`StateError::Io`] when it cannot be made.
    pub fn create(path: &Path) -> Result<RunDir, StateError> {
        let opened = RunDir::open_or_make(path)?;
        let close = |dir: &File| match dir.metadata()?.mode() & 0o077 {
            0 => Ok(()),
            _ => dir.set_permissions(Permissions::from_mode(0o700)),
        };
        close(&opened.dir).map_err(|error| io_failed("close to others", &opened.path, error))?;
        Ok(opened)
    }

    fn open_or_make(path: &Path) -> Result<RunDir, StateError> {
        match RunDir::open(path) {
            Err(StateError::NoRunDir { path }) => {
                let made = DirBuilder::new().mode(0o700).create(&path);
                match made {
                    // Somebody was faster, which is as good: what they made is checked like any other.
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        Err(io_failed("make the run directory", &path, error))
                    }
                    Ok(()) | Err(_) => RunDir::open(&path),
                }
            }
            opened => opened,
        }
    }

    /// The directory, as the caller named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself, to reach what lies in it without a second walk along [`RunDir::path`].
    pub fn dir(&self) -> &File {
        &self.dir
    }

    /// What the state file says now; `None` when there is no file yet. Takes no lock.
    ///
    /// # Errors
    ///
    /// [`StateError::Unreadable`], [`StateError::NewerVersion`], [`StateError::NotOurs`] or [`StateError::Io`].
    pub fn read(&self) -> Result<Option<State>, StateError> {
        let path = self.path.join(STATE_FILE);
        self.text(&path)?
            .map(|text| format::parse(&text, &path))
            .transpose()
    }

    fn text(&self, path: &Path) -> Result<Option<Vec<u8>>, StateError> {
        let Some(file) = trust::file(&self.dir, STATE_FILE, OFlag::O_RDONLY, path)? else {
            return Ok(None);
        };
        let size = file
            .metadata()
            .map_err(|error| io_failed("look at", path, error))?
            .len();
        let mut text = Vec::with_capacity(size.min(MAX_SIZE) as usize + 1);
        file.take(MAX_SIZE + 1)
            .read_to_end(&mut text)
            .map_err(|error| io_failed("read", path, error))?;
        if text.len() as u64 > MAX_SIZE {
            let why = format!("it is larger than {MAX_SIZE} bytes");
            return Err(StateError::Unreadable {
                path: path.to_owned(),
                why,
            });
        }
        Ok(Some(text))
    }

    /// Changes the state file: locks it within `wait`, reads it (an absent file is an empty one), lets
    /// `change` change it, and replaces it when something is different then, with a generation one higher.
    ///
    /// Returns what `change` returned, and the file's epoch and generation afterwards. When nothing changed
    /// and there was no file, none is made, and the epoch is nobody's.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]; the file is unchanged then, and [`StateError::Locked`] comes no later than `wait`
    /// and one retry.
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
        // These three are the store's to change, not the caller's.
        (state.version, state.epoch, state.generation) =
            (before.version, before.epoch.clone(), before.generation);
        if state != before {
            state.generation.0 += 1;
            let text = format::print(&state).map_err(|error| self.unprintable(error))?;
            self.replace(|out| out.write_all(&text))?;
        }
        Ok((out, state.epoch, state.generation))
    }

    /// As [`RunDir::update`], to put `record` in the place of the one of its name, which is returned. What this
    /// costs hardly depends on how many records there are.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn put(
        &self,
        wait: Duration,
        record: &Attachment,
    ) -> Result<(Option<Attachment>, Epoch, Generation), StateError> {
        let _lock = self.lock(wait)?;
        let text = self.text(&self.path.join(STATE_FILE))?;
        let id = record.id();
        let Some(mut sheet) = text.as_deref().and_then(|text| Sheet::parse(text, &id)) else {
            return self.update_locked(|state| state.attachments.insert(id, record.clone()));
        };
        let before = sheet.generation;
        let replaced = sheet.put(record).map_err(|error| self.unprintable(error))?;
        if sheet.generation != before {
            self.replace(|out| sheet.print(out))?;
        }
        Ok((replaced, sheet.epoch, sheet.generation))
    }

    /// As [`RunDir::update`], to remove the record of `id`. Where there is none, nobody is waited for and nothing has
    /// to be writable.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn remove(&self, wait: Duration, id: &AttachmentId) -> Result<(), StateError> {
        let path = self.path.join(STATE_FILE);
        let has_it = |text: &[u8]| match Sheet::parse(text, id) {
            Some(sheet) => Ok(sheet.has()),
            None => format::parse(text, &path).map(|state| state.attachments.contains_key(id)),
        };
        match self.text(&path)? {
            Some(text) if has_it(&text)? => {}
            Some(_) | None => return Ok(()),
        }
        let _lock = self.lock(wait)?;
        let text = self.text(&path)?;
        let Some(mut sheet) = text.as_deref().and_then(|text| Sheet::parse(text, id)) else {
            return self
                .update_locked(|state| drop(state.attachments.remove(id)))
                .map(drop);
        };
        let before = sheet.generation;
        sheet.remove();
        match sheet.generation == before {
            true => Ok(()),
            false => self.replace(|out| sheet.print(out)),
        }
    }

    /// Does all that [`RunDir::update`] would do, but puts nothing in the state file's place: whether a record
    /// could be written now.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::update`].
    pub fn rehearse(&self, wait: Duration) -> Result<(), StateError> {
        let _lock = self.lock(wait)?;
        let state = self.read()?.unwrap_or_else(|| State::empty(new_epoch()));
        let path = self.path.join(NEXT_FILE);
        // The next record needs room that this one has not taken yet.
        let mut text = format::print(&state).map_err(|error| self.unprintable(error))?;
        text.resize(text.len() + ROOM_FOR_A_RECORD, b' ');
        let written = self.write_next(|out| out.write_all(&text), &path);
        let removed = self.remove_next().map_err(|errno| failed("remove", &path, errno));
        written.and(removed)
    }

    /// Renames a state file that cannot be understood to `pods.json.bad-<suffix>`, under the lock, so that a new
    /// one can be begun and the old one looked at. Returns its new path; `None` when, with the lock held, the file
    /// turned out to be readable or gone.
    ///
    /// # Errors
    ///
    /// [`StateError::Locked`] or [`StateError::Io`]. A file of a newer version or that is not ours is left alone:
    /// its error comes back.
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

    /// Takes the writers' lock, which the kernel gives back with the returned file.
    #[expect(
        clippy::disallowed_methods,
        reason = "the I/O edge: the wait for another process is bounded here"
    )]
    fn lock(&self, wait: Duration) -> Result<File, StateError> {
        let path = self.path.join(LOCK_FILE);
        let begun = Instant::now();
        loop {
            let flags = OFlag::O_RDWR | OFlag::O_CREAT;
            if let Some(file) = trust::file(&self.dir, LOCK_FILE, flags, &path)? {
                match file.try_lock() {
                    // A lock on a file that somebody removed meanwhile excludes nobody.
                    Ok(()) if self.is_still(LOCK_FILE, &file) => return Ok(file),
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(io_failed("lock", &path, error)),
                }
            }
            if begun.elapsed() >= wait {
                return Err(StateError::Locked { path, waited: wait });
            }
            std::thread::sleep(LOCK_RETRY);
        }
    }

    /// Whether the directory's entry `name` is `file`.
    fn is_still(&self, name: &str, file: &File) -> bool {
        let entry = fstatat(self.dir.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW);
        match (entry, file.metadata()) {
            (Ok(entry), Ok(file)) => entry.st_dev == file.dev() && entry.st_ino == file.ino(),
            _ => false,
        }
    }

    /// Puts what `print` writes in the file's place. The caller holds the lock.
    fn replace(&self, print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), StateError> {
        let path = self.path.join(NEXT_FILE);
        let written = self.write_next(print, &path).and_then(|()| {
            renameat(self.dir.as_fd(), NEXT_FILE, self.dir.as_fd(), STATE_FILE)
                .map_err(|errno| failed("rename", &path, errno))
        });
        if written.is_err() {
            // On a full disk, what was written of it is in the way of everybody else.
            let _ = self.remove_next();
        }
        written
    }

    fn write_next(
        &self,
        print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        path: &Path,
    ) -> Result<(), StateError> {
        self.remove_next()
            .map_err(|errno| failed("remove", path, errno))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(
            self.dir.as_fd(),
            NEXT_FILE,
            flags,
            Mode::from_bits_truncate(0o600),
        )
        .map_err(|errno| failed("make", path, errno))?;
        let mut file = File::from(file);
        // The file, not the folder: that the rename survives a power cut matters to no pod, since none does.
        print(&mut file)
            .and_then(|()| file.sync_data())
            .map_err(|error| io_failed("write", path, error))
    }

    fn unprintable(&self, error: serde_json::Error) -> StateError {
        io_failed("write", &self.path.join(NEXT_FILE), error.into())
    }

    fn remove_next(&self) -> Result<(), Errno> {
        match unlinkat(self.dir.as_fd(), NEXT_FILE, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// A name for a new file that none before it had. This program's only randomness: the keys of std's hasher
/// come from the kernel.
fn new_epoch() -> Epoch {
    Epoch(format!("{:016x}", RandomState::new().build_hasher().finish()))
}

#[cfg(test)]
mod tests;
