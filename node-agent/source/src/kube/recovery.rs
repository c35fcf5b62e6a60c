//! The end of an outage: the first follower that gets an answer wakes the others.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// A channel between the followers of one agent. Each has a clone.
///
/// Each kind waits by itself between two attempts, for up to 30 s at the end of a long outage.
/// Without this, one kind would be up to date within seconds, and another half a minute later.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    announcement: watch::Sender<()>,
    announced: watch::Receiver<()>,
}

impl Recovery {
    /// A channel without announcements.
    pub(super) fn new() -> Self {
        let (announcement, announced) = watch::channel(());
        Self { announcement, announced }
    }

    /// Announces that the API server answers again, which ends the pauses of the others.
    pub(super) fn announce(&self) {
        self.announcement.send_replace(());
    }

    /// An attempt begins. Only an announcement after this can end the pause that follows.
    pub(super) fn attempt(&mut self) {
        self.announced.mark_unchanged();
    }

    /// Waits for `whole`, or until another follower announces that the server answers, but at least
    /// for `least`. An announcement during the attempt counts. Returns whether an announcement
    /// ended the pause.
    pub(super) async fn pause(&mut self, least: Duration, whole: Duration) -> bool {
        let end = Instant::now() + whole;
        sleep(least).await;
        timeout_at(end, self.announced.changed()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Enough for a busy machine, and far less than [`LONG`].
    const SOON: Duration = Duration::from_secs(20);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn an_announcement_ends_the_pause_of_every_other_follower() {
        runtime().block_on(async {
            let recovery = Recovery::new();
            let pausing: Vec<_> = (0..3)
                .map(|_| {
                    let mut recovery = recovery.clone();
                    tokio::spawn(async move { recovery.pause(Duration::ZERO, LONG).await })
                })
                .collect();
            tokio::task::yield_now().await;
            recovery.announce();
            for pause in pausing {
                let woken = tokio::time::timeout(SOON, pause).await;
                assert!(woken.expect("it is awake").unwrap(), "an announcement woke it");
            }
        });
    }

    #[test]
    fn an_announcement_during_an_attempt_ends_the_pause_after_it() {
        runtime().block_on(async {
            let mut recovery = Recovery::new();
            recovery.attempt();
            recovery.clone().announce();
            assert!(recovery.pause(Duration::ZERO, LONG).await);
            // The next attempt fails too: the announcement is used up.
            recovery.attempt();
            assert!(!recovery.pause(Duration::ZERO, Duration::from_millis(20)).await);
        });
    }

    #[test]
    fn an_announcement_before_an_attempt_does_not_end_the_pause_after_it() {
        runtime().block_on(async {
            let mut recovery = Recovery::new();
            recovery.announce();
            recovery.attempt();
            assert!(!recovery.pause(Duration::ZERO, Duration::from_millis(20)).await);
        });
    }

    #[test]
    fn an_announcement_does_not_shorten_the_wait_that_the_server_asked_for() {
        runtime().block_on(async {
            let mut recovery = Recovery::new();
            recovery.attempt();
            recovery.announce();
            let (begun, least) = (Instant::now(), Duration::from_millis(200));
            assert!(recovery.pause(least, LONG).await);
            assert!(begun.elapsed() >= least);
        });
    }
}
