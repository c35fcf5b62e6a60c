//! I/O in: each source turns one part of the outside world into [`Event`]s.
//!
//! | source | tells | watches |
//! | --- | --- | --- |
//! | [`kube`] | Services, slices, this Node, ServiceCIDRs | the Kubernetes API |
//! | [`manifests`] | the same | a folder of YAML and JSON files |
//! | [`state_file`] | this node's pods | the state file in the run directory |
//! | [`egress`] | where pods keep their address | a file in ip-masq-agent's format |
//! | [`node`] | this node's addresses and links | the kernel, by rtnetlink |
//!
//! Sources hold no policy, and know the model's types and no other layer. Each is one async task
//! that runs until nobody listens any more. It tells *what is so now* in batches, and a batch is
//! one change: whoever applies half of one sees a world that never was. Bad input is left out and
//! reported, never an error; a source that loses what it watches keeps quiet about it towards the
//! model (what was told last stays true until something better is known), says so in its report,
//! and tries again.
//!
//! The objects of the Kubernetes API, as they are written in files or served, are in [`object`].

pub mod egress;
pub mod kube;
pub mod manifests;
pub mod node;
pub mod object;
#[cfg(test)]
mod running;
pub mod state_file;
pub(crate) mod watch;

use std::time::Duration;

use tokio::sync::{mpsc, watch as latest};

use crate::model::Event;

/// The most problems that one source reports at a time: a person reads them.
const MAX_PROBLEMS: usize = 100;

/// How long a source waits before it tries again what failed.
const RETRY: Duration = Duration::from_secs(1);

/// Where a source puts what it finds.
#[derive(Debug)]
pub struct Outlet {
    events: mpsc::Sender<Vec<Event>>,
    problems: latest::Sender<Vec<String>>,
}

/// Nobody listens any more: the agent is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

impl Outlet {
    /// Tells `events`; the receiver always holds what is wrong right now, for `status` and health.
    pub fn new(events: mpsc::Sender<Vec<Event>>) -> (Self, latest::Receiver<Vec<String>>) {
        let (problems, receiver) = latest::channel(Vec::new());
        (Self { events, problems }, receiver)
    }

    /// Tells a batch, unless it is empty.
    pub(crate) async fn tell(&self, batch: Vec<Event>) -> Result<(), Closed> {
        if batch.is_empty() {
            return Ok(());
        }
        self.events.send(batch).await.map_err(|_| Closed)
    }

    /// Waits until nobody listens any more.
    pub(crate) async fn closed(&self) {
        self.events.closed().await;
    }

    /// Replaces what is wrong right now; whether that is news.
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
