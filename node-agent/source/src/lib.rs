//! I/O in: each source turns one part of the outside world into [`Event`]s.
//!
//! | source | sends | watches |
//! | --- | --- | --- |
//! | [`kube`] | Services, slices, this Node, ServiceCIDRs, pods, Namespaces, NetworkPolicies | the Kubernetes API |
//! | [`manifests`] | the same | a folder of YAML and JSON files |
//! | [`state_file`] | this node's pods | the state file in the run directory |
//! | [`egress`] | ranges to which pods keep their address | a file in ip-masq-agent's format |
//! | [`node`] | this node's addresses and links | the kernel, by rtnetlink |
//!
//! Sources contain no policy: they know the model's types, and nothing that decides or programs.
//! Each is one async task that runs until the receiver is closed. It sends *the current state* in
//! batches. A batch is one change: half of it is a state that never existed. Bad input is skipped
//! and reported, never an error. A source that loses what it watches sends nothing: the last state
//! stays in force. It reports the loss and tries again.
//!
//! Crate `object` decodes objects of the Kubernetes API, from files or from the API server.

#![expect(clippy::disallowed_methods, reason = "sources do I/O, and pace it")]

pub mod attachments;
pub mod egress;
pub mod events;
mod features;
pub mod kube;
pub mod manifests;
pub mod node;
#[cfg(test)]
mod running;
pub mod state_file;
pub mod watch;

pub use self::features::Features;

use std::time::Duration;

use tokio::sync::{mpsc, watch as latest};

use denizen_model::Event;

/// Maximum number of problems that one source reports at a time, since a person reads them.
const MAX_PROBLEMS: usize = 100;

/// How long a source waits before it tries again what failed.
const RETRY: Duration = Duration::from_secs(1);

/// Where a source sends events and reports problems.
#[derive(Debug)]
pub struct Outlet {
    events: mpsc::Sender<Vec<Event>>,
    problems: latest::Sender<Vec<String>>,
}

/// The receiver is closed: the agent is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

impl Outlet {
    /// A new outlet. The receiver holds the current problems, for `status` and health.
    pub fn new(events: mpsc::Sender<Vec<Event>>) -> (Self, latest::Receiver<Vec<String>>) {
        let (problems, receiver) = latest::channel(Vec::new());
        (Self { events, problems }, receiver)
    }

    /// Sends a batch, unless it is empty.
    pub(crate) async fn send(&self, batch: Vec<Event>) -> Result<(), Closed> {
        if batch.is_empty() {
            return Ok(());
        }
        self.events.send(batch).await.map_err(|_| Closed)
    }

    /// Waits until the receiver is closed.
    pub(crate) async fn closed(&self) {
        self.events.closed().await;
    }

    /// Replaces the current problems. Returns whether they changed.
    pub(crate) fn report(&self, mut problems: Vec<String>) -> bool {
        if problems.len() > MAX_PROBLEMS {
            let more = problems.len() - MAX_PROBLEMS;
            problems.truncate(MAX_PROBLEMS);
            problems.push(format!("and {more} more"));
        }
        self.problems.send_if_modified(|now| {
            let differs = *now != problems;
            *now = problems;
            differs
        })
    }
}
