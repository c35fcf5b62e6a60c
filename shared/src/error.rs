//! What can go wrong with the state file, by what a caller does about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::state::VERSION;

/// Why the state file could not be read or changed. The file is as it was before, whichever it is.
#[derive(Debug, Error)]
pub enum StateError {
    /// There is no run directory. For who removes a record, there is nothing to remove; for who
    /// reads, no pod has been attached yet.
    #[error("the run directory {} does not exist", path.display())]
    NoRunDir {
        /// The directory.
        path: PathBuf,
    },
    /// Another writer held the lock all the time that the caller would wait. Try again later.
    #[error("{} is locked: another writer did not let go of it within {waited:?}", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long this writer waited.
        waited: Duration,
    },
    /// The file is truncated, not JSON or of another schema. It is never overwritten and never
    /// guessed at: somebody has to look at it, or
    /// [`RunDir::set_aside`](crate::state::RunDir::set_aside) it.
    #[error("{} cannot be read as a state file: {why}", path.display())]
    Unreadable {
        /// The state file.
        path: PathBuf,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A newer program wrote the file: the one that met this error has to be upgraded.
    #[error(
        "{} has version {found}, and this program reads versions up to {VERSION}: upgrade {program}",
        path.display(),
        program = program()
    )]
    NewerVersion {
        /// The state file.
        path: PathBuf,
        /// The version it has.
        found: u64,
    },
    /// The directory or a file in it is not what only root could have put there: a link, another's,
    /// or one that others may write. Who writes here decides who counts as a pod, so it is not
    /// used.
    #[error("{} is not trusted: {why}", path.display())]
    NotOurs {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused: no space, a read-only file system, no permission.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// The name of the running program, as an operator knows it.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_name());
    name.map_or_else(|| "this program".to_owned(), |name| name.to_string_lossy().into_owned())
}
