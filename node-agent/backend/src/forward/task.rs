//! The task that inspects other firewalls' chains: at the start, after changes of a ruleset, and at
//! intervals.

#![expect(clippy::disallowed_methods, reason = "the look at foreign chains is paced")]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{Findings, ForwardSettings, reconcile};

/// The maximum interval: legacy iptables does not notify of changes.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// The minimum interval: a firewall rewrites its ruleset in many steps.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Runs until the receiver of the findings is gone. `changed` is notified of others' changes.
pub async fn run(wanted: ForwardSettings, changed: Arc<Notify>, found: watch::Sender<Findings>) {
    while !found.is_closed() {
        // Iptables may wait for its lock.
        let Ok(findings) = spawn_blocking(move || reconcile(wanted)).await else {
            return;
        };
        report(&found, findings);
        sleep(AT_MOST_EVERY).await;
        let _ = timeout(AT_LEAST_EVERY, changed.notified()).await;
    }
}

fn report(found: &watch::Sender<Findings>, findings: Findings) {
    found.send_if_modified(|now| {
        let news = *now != findings;
        if news {
            for problem in findings.errors.iter().chain(&findings.warnings) {
                warn!(problem, "packets that are forwarded may be dropped");
            }
        }
        *now = findings;
        news
    });
}
