//! The kernel's word of changes that are not the agent's own, as the loop waits for it.

use tokio::io::unix::AsyncFd;

use crate::backend::nftables::Watch;

/// Makes the loop wait for what the kernel tells.
///
/// # Errors
/// When the socket cannot be waited for.
pub(super) fn pollable(watch: Watch) -> anyhow::Result<AsyncFd<Watch>> {
    // SAFETY: a Watch owns its socket from its making to its end, and always names the same one.
    #[expect(unsafe_code, reason = "the promise that AsRawFd alone does not make")]
    let pollable = unsafe { AsyncFd::register(watch) };
    Ok(pollable?)
}

/// Waits until the kernel says that somebody changed something; whether it was ours.
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
