//! Opens files in the run directory without following links, and checks that only root or this
//! program's user can have written them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

use crate::error::StateError;

/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Opens the directory `path`, which must be trusted.
pub(crate) fn directory(path: &Path) -> Result<File, StateError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match open(path, flags, Mode::empty()) {
        Ok(dir) => trusted(dir, path),
        Err(Errno::ENOENT) => Err(StateError::NoRunDir { path: path.to_owned() }),
        // With O_DIRECTORY the kernel reports "not a directory" for a link too.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            Err(not_ours(path, "it is not a directory, or a link to one"))
        }
        Err(errno) => Err(failed("open", path, errno)),
    }
}

/// Opens the regular file `name` in `dir`, which must be trusted. `path` is for the error's text.
pub(crate) fn file(
    dir: &File,
    name: &str,
    flags: OFlag,
    path: &Path,
) -> Result<Option<File>, StateError> {
    // Non-blocking, since a named pipe in place of the file would block the caller for ever.
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let opened = match openat(dir.as_fd(), name, flags, Mode::from_bits_truncate(0o600)) {
        Ok(opened) => opened,
        Err(Errno::ENOENT) if !flags.contains(OFlag::O_CREAT) => return Ok(None),
        Err(Errno::ELOOP) => return Err(not_ours(path, "it is a link")),
        Err(Errno::ENXIO) => return Err(not_ours(path, "it is not a regular file")),
        Err(errno) => return Err(failed("open", path, errno)),
    };
    let opened = trusted(opened, path)?;
    match opened.metadata().map_err(|source| io_failed("look at", path, source))?.is_file() {
        true => Ok(Some(opened)),
        false => Err(not_ours(path, "it is not a regular file")),
    }
}

/// Checks that `opened` belongs to root or to this program's user, and nobody else may write to it.
fn trusted(opened: OwnedFd, path: &Path) -> Result<File, StateError> {
    let opened = File::from(opened);
    let metadata = opened.metadata().map_err(|source| io_failed("look at", path, source))?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let why = if owner != 0 && owner != geteuid().as_raw() {
        format!("it belongs to user {owner}")
    } else if mode & OTHERS_WRITE != 0 {
        "users other than its owner may write to it".to_owned()
    } else {
        return Ok(opened);
    };
    let needed = if metadata.is_dir() { "0700 or 0755" } else { "0600" };
    Err(not_ours(
        path,
        &format!("{why} (owner {owner}, mode {mode:04o}); it must be root's, mode {needed}"),
    ))
}

fn not_ours(path: &Path, why: &str) -> StateError {
    StateError::NotOurs { path: path.to_owned(), why: why.to_owned() }
}

pub(crate) fn failed(doing: &'static str, path: &Path, errno: Errno) -> StateError {
    io_failed(doing, path, errno.into())
}

pub(crate) fn io_failed(doing: &'static str, path: &Path, source: io::Error) -> StateError {
    StateError::Io { doing, path: path.to_owned(), source }
}
