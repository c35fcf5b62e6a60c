//! A pod's network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};

use super::link::NetnsLinks;

/// The namespace that the calling thread is in.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace, different from this program's.
pub(crate) struct Netns {
    pub(crate) file: File,
    own: File,
}

impl Netns {
    /// Opens the namespace at `path`. Only entering it shows whether it is a network namespace: see
    /// [`Netns::links`].
    pub(crate) fn open(path: &Path) -> io::Result<Netns> {
        // Non-blocking, since a named pipe in its place would block the runtime for ever.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let own = File::open(OWN)?;
        let (this, that) = (own.metadata()?, file.metadata()?);
        if (this.dev(), this.ino()) == (that.dev(), that.ino()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is the node's own network namespace",
            ));
        }
        Ok(Netns { file, own })
    }

    /// The links of this namespace.
    pub(crate) fn links(&self) -> io::Result<NetnsLinks> {
        // A socket stays in the namespace in which it was created, so nothing but opening the
        // socket is done in it.
        self.within(NetnsLinks::open)?
    }

    /// Runs `work` in this namespace. Afterwards the calling thread is in its own namespace again.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        match setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET) {
            Ok(()) => {}
            Err(Errno::EINVAL) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is not a network namespace",
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
        let done = work();
        setns(self.own.as_fd(), CloneFlags::CLONE_NEWNET)?;
        Ok(done)
    }
}
