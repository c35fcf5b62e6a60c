//! Watching one folder with inotify.
//!
//! An event is a hint where to look, never a fact: the queue may overflow, and the change may be
//! undone by the time the folder is read.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug, Default)]
pub struct FolderHints {
    /// Entries of the folder that were written, created, renamed or removed.
    pub names: BTreeSet<OsString>,
    /// Hints were lost: anything may have changed.
    pub overflow: bool,
    /// The watched folder is no longer at its path.
    pub gone: bool,
}

impl FolderHints {
    /// Whether nothing may have changed.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.overflow && !self.gone
    }
}

#[derive(Debug)]
pub struct FolderWatch {
    inotify: AsyncFd<Descriptor>,
    path: PathBuf,
    identity: (u64, u64),
}

/// The descriptor that tokio polls.
#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatch {
    /// Begins to watch the folder at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        // The identity is taken before the watch begins: if the folder is replaced in between,
        // `is_current` says no. The other order would say yes for ever.
        let identity = identity(path)?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // Not IN_MODIFY: a file is read when its writer closes it, not at every write.
        let interest = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(path, interest)?;
        // SAFETY: `Descriptor` owns this descriptor and always returns the same one. It closes it
        // only when dropped, after the registration.
        let inotify =
            unsafe { AsyncFd::register_with_interest(Descriptor(inotify), Interest::READABLE) }
                .map_err(io::Error::from)?;
        Ok(Self { inotify, path: path.to_owned(), identity })
    }

    /// Waits for hints, and adds all pending ones to `hints`.
    pub async fn changed(&self, hints: &mut FolderHints) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            if self.drain(hints)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// Adds the pending hints to `hints`. Returns whether there were any.
    pub fn drain(&self, hints: &mut FolderHints) -> io::Result<bool> {
        let mut any = false;
        loop {
            let events = match self.inotify.get_ref().0.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(any),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            any |= !events.is_empty();
            for event in events {
                let gone = AddWatchFlags::IN_DELETE_SELF
                    | AddWatchFlags::IN_MOVE_SELF
                    | AddWatchFlags::IN_UNMOUNT
                    | AddWatchFlags::IN_IGNORED;
                hints.overflow |= event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                hints.gone |= event.mask.intersects(gone);
                hints.names.extend(event.name);
            }
        }
    }

    /// Whether the watched folder is still at its path. inotify reports neither a renamed parent
    /// nor a replaced link in the path.
    pub fn is_current(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
