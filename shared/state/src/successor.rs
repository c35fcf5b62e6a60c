//! Replaces the state file: writes a new file beside it, and renames that over it. The caller holds
//! the lock.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::error::StateError;
use crate::run_dir::{MAX_STATE_SIZE, STATE_FILE};
use crate::trust::{failed, io_failed};

/// The file in which a writer builds the next state file. A killed writer leaves it behind, and the
/// next writer replaces it.
pub(crate) const NEXT_FILE: &str = "pods.json.next";

/// Replaces the state file in `dir`, whose path is `path`, by what `print` writes.
pub(crate) fn replace(
    dir: &File,
    path: &Path,
    print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), StateError> {
    let next = path.join(NEXT_FILE);
    let written = write_next(dir, path, print).and_then(|()| {
        renameat(dir.as_fd(), NEXT_FILE, dir.as_fd(), STATE_FILE)
            .map_err(|errno| failed("rename", &next, errno))
    });
    if written.is_err() {
        // On a full disk, a partial file would take space that others need.
        let _ = remove_next(dir);
    }
    written
}

/// Writes `text` like the next state file, and removes that file again.
pub(crate) fn rehearse(dir: &File, path: &Path, text: &[u8]) -> Result<(), StateError> {
    let written = write_next(dir, path, |out| out.write_all(text));
    let removed = remove_next(dir).map_err(|errno| failed("remove", &path.join(NEXT_FILE), errno));
    written.and(removed)
}

fn write_next(
    dir: &File,
    path: &Path,
    print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), StateError> {
    let next = path.join(NEXT_FILE);
    remove_next(dir).map_err(|errno| failed("remove", &next, errno))?;
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(dir.as_fd(), NEXT_FILE, flags, Mode::from_bits_truncate(0o600))
        .map_err(|errno| failed("make", &next, errno))?;
    let mut file = File::from(file);
    let mut bounded = Bounded { out: &mut file, left: MAX_STATE_SIZE };
    // Sync the file, not the folder: whether the rename survives a power cut does not matter, since
    // no pod survives it.
    print(&mut bounded).and_then(|()| file.sync_data()).map_err(|error| {
        let is_refused = error.kind() == ErrorKind::FileTooLarge;
        let named = if is_refused { path.join(STATE_FILE) } else { next };
        io_failed("write", &named, error)
    })
}

fn remove_next(dir: &File) -> Result<(), Errno> {
    match unlinkat(dir.as_fd(), NEXT_FILE, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Refuses to write more than a reader accepts.
struct Bounded<'a> {
    out: &'a mut File,
    /// Bytes that may still be written.
    left: u64,
}

impl Write for Bounded<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if text.len() as u64 > self.left {
            let why =
                format!("it would be larger than {MAX_STATE_SIZE} bytes, which no program reads");
            return Err(io::Error::new(ErrorKind::FileTooLarge, why));
        }
        let written = self.out.write(text)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
