//! The kernel's notifications of foreign changes, for the loop to wait for.

use tokio::io::unix::AsyncFd;

use crate::backend::nftables::Watch;

/// Registers the watch with the loop's runtime.
///
/// # Errors
/// When the socket cannot be registered.
pub(super) fn pollable(watch: Watch) -> anyhow::Result<AsyncFd<Watch>> {
    // SAFETY: a Watch owns its socket for its whole life, and always returns the same descriptor.
    #[expect(unsafe_code, reason = "AsRawFd alone does not guarantee this")]
    let pollable = unsafe { AsyncFd::register(watch) };
    Ok(pollable?)
}

/// Waits for a notification of a foreign change. Returns whether it was in our tables.
pub(super) async fn foreign_change(watch: &mut Option<AsyncFd<Watch>>) -> bool {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    match watch.readable_mut().await {
        Ok(mut ready) => {
            ready.clear_ready();
            ready.get_inner_mut().foreign_change().unwrap_or(true)
        }
        Err(_) => true,
    }
}
