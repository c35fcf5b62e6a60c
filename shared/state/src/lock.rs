//! The lock that a writer of the state file holds.

use std::fs::{File, TryLockError};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstatat;

use crate::error::StateError;
use crate::run_dir::LOCK_FILE;
use crate::trust::{self, io_failed};

/// The pause between two attempts. At first it is short, since the lock is held for well under a
/// millisecond …
const SHORTEST_RETRY: Duration = Duration::from_micros(500);

/// … but hundreds of attempts at a time take the processor from the holder. The pauses double, so
/// that nobody waits more than twice as long as necessary.
const LONGEST_RETRY: Duration = Duration::from_millis(100);

/// The held lock of the run directory. The kernel releases it when this value is dropped or the
/// process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock in `dir`, whose path is `path`, within `wait`.
    pub(crate) fn take(dir: &File, path: &Path, wait: Duration) -> Result<Lock, StateError> {
        let lock = Lock::take_unless(&|| false, dir, path, wait)?;
        Ok(lock.expect("only a change that is done ends the wait"))
    }

    /// Like [`Lock::take`]; `None` as soon as the lock is no longer needed, because the caller's
    /// change `is_done`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the I/O edge: the wait for another process is bounded here"
    )]
    pub(crate) fn take_unless(
        is_done: &dyn Fn() -> bool,
        dir: &File,
        path: &Path,
        wait: Duration,
    ) -> Result<Option<Lock>, StateError> {
        let begun = Instant::now();
        let mut pause = SHORTEST_RETRY;
        loop {
            if is_done() {
                return Ok(None);
            }
            if let Some(lock) = Lock::try_take(dir, path)? {
                return Ok(Some(lock));
            }
            if begun.elapsed() >= wait {
                let path = path.join(LOCK_FILE);
                return Err(StateError::Locked { path, waited: wait });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    /// Takes the lock, unless another process holds it.
    pub(crate) fn try_take(dir: &File, path: &Path) -> Result<Option<Lock>, StateError> {
        let path = path.join(LOCK_FILE);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        let Some(file) = trust::file(dir, LOCK_FILE, flags, &path)? else {
            return Ok(None);
        };
        match file.try_lock() {
            // A lock on a file that was removed meanwhile excludes nobody.
            Ok(()) if is_still_there(dir, &file) => Ok(Some(Lock { _file: file })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(io_failed("lock", &path, error)),
        }
    }

    /// Whether a writer holds the lock now.
    pub(crate) fn is_held(dir: &File, path: &Path) -> Result<bool, StateError> {
        let path = path.join(LOCK_FILE);
        let file = trust::file(dir, LOCK_FILE, OFlag::O_RDONLY, &path)?;
        Ok(file.is_some_and(|file| file.try_lock_shared().is_err()))
    }
}

/// Whether `file` is still the directory's lock file.
fn is_still_there(dir: &File, file: &File) -> bool {
    let entry = fstatat(dir.as_fd(), LOCK_FILE, AtFlags::AT_SYMLINK_NOFOLLOW);
    match (entry, file.metadata()) {
        (Ok(entry), Ok(file)) => entry.st_dev == file.dev() && entry.st_ino == file.ino(),
        _ => false,
    }
}
