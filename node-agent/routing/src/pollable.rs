//! Sockets of the kernel's notifications, for tokio to wait for.

use std::os::fd::AsRawFd;

use tokio::io::unix::AsyncFd;

/// Registers a watch with the current runtime.
///
/// # Errors
/// When the socket cannot be registered.
pub fn pollable<W: AsRawFd + Send + Sync + 'static>(watch: W) -> anyhow::Result<AsyncFd<W>> {
    // SAFETY: a watch owns its socket for its whole life, and always returns the same descriptor.
    #[expect(unsafe_code, reason = "AsRawFd alone does not guarantee this")]
    let pollable = unsafe { AsyncFd::register(watch) };
    Ok(pollable?)
}
