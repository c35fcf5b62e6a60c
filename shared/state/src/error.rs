//! Errors of the state file, one variant for each reaction of a caller.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::state::VERSION;

/// Why the state file could not be read or changed. The file is unchanged.
#[derive(Debug, Error)]
pub enum StateError {
    /// There is no run directory. So there is no record to remove, and no pod has been attached
    /// yet.
    #[error("the run directory {} does not exist", path.display())]
    NoRunDir {
        /// The run directory.
        path: PathBuf,
    },
    /// Another writer held the lock during the caller's whole wait. Try again later.
    #[error("{} is locked: another writer held it for more than {waited:?}", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long this writer waited.
        waited: Duration,
    },
    /// The file is truncated, not JSON or of another schema. It is never overwritten, and its
    /// content never guessed: an operator must look at it, or the caller sets it aside
    /// ([`RunDir::set_aside`](crate::RunDir::set_aside)).
    #[error("{} cannot be read as a state file: {why}", path.display())]
    Unreadable {
        /// The state file.
        path: PathBuf,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A newer program wrote the file: the program with this error must be upgraded.
    #[error(
        "{} has version {found}, and this program reads versions up to {VERSION}: upgrade {program}",
        path.display(),
        program = program()
    )]
    NewerVersion {
        /// The state file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The directory or a file in it may have been put there by a user other than root: it is a
    /// link, belongs to another user, or others may write to it. Whoever can write here decides who
    /// counts as a pod, so it is not used.
    #[error("{} is not trusted: {why}", path.display())]
    NotOurs {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An I/O error: no space, a read-only file system, no permission.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
}

/// The file name of the running program.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_name());
    name.map_or_else(|| "this program".to_owned(), |name| name.to_string_lossy().into_owned())
}
