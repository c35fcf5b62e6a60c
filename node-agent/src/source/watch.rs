//! Watching one folder with inotify.
//!
//! What the kernel says is a hint where to look, never a fact: the queue may overflow, and what
//! happened may be undone when it is read.

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

/// Where to look.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Entries of the folder with a new content, a new name or no name any more.
    pub(crate) names: BTreeSet<OsString>,
    /// Hints were lost: look everywhere.
    pub(crate) overflow: bool,
    /// This is no longer the folder at that path.
    pub(crate) gone: bool,
}

impl Hints {
    /// Whether there is no reason to look.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.overflow && !self.gone
    }
}

/// A folder that is watched.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    inotify: AsyncFd<Descriptor>,
    path: PathBuf,
    identity: (u64, u64),
}

/// What tokio wants to poll.
#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatch {
    /// Watches the folder at `path` from now on.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Before the watch: if the folder is swapped in between, `is_current` says no, not yes for
        // ever.
        let identity = identity(path)?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // Not IN_MODIFY: a file that is being written is looked at when its writer closes it.
        let interest = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(path, interest)?;
        // SAFETY: the descriptor is the one that `Descriptor` owns; it gives no other, and closes
        // it only when it is dropped, after the registration.
        let inotify =
            unsafe { AsyncFd::register_with_interest(Descriptor(inotify), Interest::READABLE) }
                .map_err(io::Error::from)?;
        Ok(Self { inotify, path: path.to_owned(), identity })
    }

    /// Waits for hints, and adds all that are there to `hints`.
    pub(crate) async fn changed(&self, hints: &mut Hints) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            if self.drain(hints)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// Adds the hints that are there to `hints`; whether there were any.
    pub(crate) fn drain(&self, hints: &mut Hints) -> io::Result<bool> {
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

    /// Whether the path still leads to the folder that is watched. A parent that is renamed, or a
    /// link in the path that is set anew, says nothing to inotify.
    pub(crate) fn is_current(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
