//! Events for operators (`kubectl get events`), with kube-proxy's reasons where it has them.
//!
//! Sending an event never blocks: a task writes it. Without the Kubernetes API there are no events.
//! The log, health and `status` have the same information.

#![expect(clippy::disallowed_methods, reason = "events are rate-limited by their own clock")]

mod limit;
mod write;

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::debug;

use crate::kube::SharedClient;
use denizen_model::Notice;

/// Maximum number of events that wait to be written; further ones are lost.
const WAITING: usize = 64;

#[derive(Debug, Clone)]
pub struct Notices(Option<mpsc::Sender<Notice>>);

impl Notices {
    pub fn nowhere() -> Self {
        Self(None)
    }

    /// Starts a task that writes events to the API until the last handle is dropped.
    pub fn to_api(client: SharedClient, node_name: Arc<str>) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING);
        tokio::spawn(write::run(client, node_name, waiting));
        Self(Some(sender))
    }

    /// Sends an event. If too many are waiting, it is lost.
    pub fn send(&self, notice: Notice) {
        if let Some(sender) = &self.0
            && let Err(error) = sender.try_send(notice)
        {
            debug!(%error, "event dropped");
        }
    }
}
