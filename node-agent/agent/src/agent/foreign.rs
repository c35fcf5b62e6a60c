//! The kernel's notifications of foreign changes, for the loop to wait for.

use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use crate::config::Config;
use denizen_backend::forward::{self, Findings};
use denizen_nft::{Changes, Watch};

/// Waits for a notification of a foreign change. Returns whether it was in our tables; changes in
/// other tables are passed on to `foreign_change`.
pub(super) async fn due(watch: &mut Option<AsyncFd<Watch>>, foreign_change: &Notify) -> bool {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    match watch.readable_mut().await {
        Ok(mut ready) => {
            ready.clear_ready();
            let unknown = Changes { watched_tables_changed: true, other_tables_changed: false };
            let changes = ready.get_inner_mut().changes().unwrap_or(unknown);
            if changes.other_tables_changed {
                foreign_change.notify_one();
            }
            changes.watched_tables_changed
        }
        Err(_) => true,
    }
}

/// Starts the task that checks other firewalls' chains, if services or host ports are served.
/// Returns what wakes it, and its findings.
pub(super) fn watch_forward(config: &Config) -> (Arc<Notify>, watch::Receiver<Findings>) {
    let foreign_change = Arc::new(Notify::new());
    let (findings, found) = watch::channel(Findings::default());
    if config.policy.services || config.policy.host_ports.is_some() {
        let wanted = forward::ForwardSettings {
            open: config.policy.node_side.open_forward,
            by_ipvs: config.backend.name.capabilities().balances_by_ipvs,
        };
        tokio::spawn(forward::run(wanted, foreign_change.clone(), findings));
    }
    (foreign_change, found)
}
