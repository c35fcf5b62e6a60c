//! The lock of a network namespace: whoever programs it is alone there.

use std::io::{self, ErrorKind};

use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};

/// An abstract socket belongs to the network namespace and ends with its process, however that ends.
const NAME: &str = "\0denizen-agent";

/// Why the lock is not had.
#[derive(Debug, Error)]
pub enum AloneError {
    /// Somebody has it.
    #[error("another agent (process {process}) runs in this network namespace")]
    Another {
        /// Its id; 0 where it cannot be told.
        process: i32,
    },
    /// Nobody could have it.
    #[error("cannot take the lock of this network namespace")]
    Lock(#[source] io::Error),
}

/// Two that program one network namespace would undo each other's work: nobody else does as long as the value lives.
///
/// # Errors
/// Names the process that does already.
pub async fn alone_here() -> Result<UnixListener, AloneError> {
    match UnixListener::bind(NAME) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let other = UnixStream::connect(NAME)
                .await
                .and_then(|other| other.peer_cred());
            let process = other.ok().and_then(|other| other.pid()).unwrap_or_default();
            Err(AloneError::Another { process })
        }
        Err(error) => Err(AloneError::Lock(error)),
    }
}
