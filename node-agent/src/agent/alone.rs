//! The lock of a network namespace: whoever programs it is alone there.

use std::io::ErrorKind;

use anyhow::{Context, bail};
use tokio::net::{UnixListener, UnixStream};

/// An abstract socket belongs to the network namespace and ends with its process, however that ends.
const NAME: &str = "\0denizen-agent";

/// Two that program one network namespace would undo each other's work: nobody else does as long as the value lives.
///
/// # Errors
/// Names the process that does already.
pub async fn alone_here() -> anyhow::Result<UnixListener> {
    match UnixListener::bind(NAME) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let other = UnixStream::connect(NAME)
                .await
                .and_then(|other| other.peer_cred());
            let pid = other.ok().and_then(|other| other.pid()).unwrap_or_default();
            bail!("another agent (process {pid}) runs in this network namespace")
        }
        Err(error) => Err(error).context("cannot take the lock of this network namespace"),
    }
}
