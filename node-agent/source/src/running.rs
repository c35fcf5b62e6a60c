//! For tests: a running source, and what it sends.

use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, watch as latest};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Outlet;
use denizen_model::Event;

/// Longer than any step takes on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) struct RunningSource<T> {
    pub(super) events: mpsc::Receiver<Vec<Event>>,
    pub(super) problems: latest::Receiver<Vec<String>>,
    pub(super) task: JoinHandle<T>,
}

impl<T: Send + 'static> RunningSource<T> {
    pub(super) fn start<F>(source: impl FnOnce(Outlet) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, events) = mpsc::channel(16);
        let (outlet, problems) = Outlet::new(sender);
        let task = tokio::spawn(source(outlet));
        Self { events, problems, task }
    }

    pub(super) async fn batch(&mut self) -> Vec<Event> {
        let batch = timeout(LONG, self.events.recv()).await;
        batch.expect("sent in time").expect("still running")
    }

    /// Waits for a reported problem that contains this text.
    pub(super) async fn problem(&mut self, part: &str) {
        let has = |problems: &Vec<String>| problems.iter().any(|problem| problem.contains(part));
        let found = timeout(LONG, self.problems.wait_for(has)).await;
        found.expect("reported in time").expect("still running");
    }

    /// Waits until there are no problems.
    pub(super) async fn no_problem(&mut self) {
        let none = timeout(LONG, self.problems.wait_for(Vec::is_empty)).await;
        none.expect("reported in time").expect("still running");
    }

    /// Closes the receiver, which stops the source.
    pub(super) async fn stop(self) -> T {
        drop(self.events);
        let ended = timeout(LONG, self.task).await;
        ended.expect("stops in time").expect("does not panic")
    }
}

/// Runs a test on one thread, as the agent runs.
pub(super) fn in_runtime(test: impl Future<Output = ()>) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}
