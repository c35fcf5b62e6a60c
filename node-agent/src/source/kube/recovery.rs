//! The end of an outage: the first follower that is answered again wakes the others.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// What the followers of one agent tell each other. Each has a clone.
///
/// Every kind waits by itself between two attempts, for up to 30 s at the end of a long outage.
/// Without this, one kind would be up to date again within seconds, and another half a minute
/// later.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    announcement: watch::Sender<()>,
    announced: watch::Receiver<()>,
}

impl Recovery {
    /// Nothing has been announced yet.
    pub(super) fn new() -> Self {
        let (announcement, announced) = watch::channel(());
        Self { announcement, announced }
    }

    /// The API server answers again: ends the pauses of the others.
    pub(super) fn announce(&self) {
        self.announcement.send_replace(());
    }

    /// An attempt begins: only what is announced from now on can end the pause after it.
    pub(super) fn attempt(&mut self) {
        self.announced.mark_unchanged();
    }

    /// Waits for `whole`, or until another follower announces that the server answers, but for
    /// `least` in any case. Returns whether an announcement ended the pause. One that was made
    /// during the attempt counts.
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

    /// Plenty for a busy machine, and nothing beside [`LONG`].
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
            // The next attempt fails as well: that announcement is used up.
            recovery.attempt();
            assert!(!recovery.pause(Duration::ZERO, Duration::from_millis(20)).await);
        });
    }

    #[test]
    fn what_was_announced_before_an_attempt_ends_no_pause_after_it() {
        runtime().block_on(async {
            let mut recovery = Recovery::new();
            recovery.announce();
            recovery.attempt();
            assert!(!recovery.pause(Duration::ZERO, Duration::from_millis(20)).await);
        });
    }

    #[test]
    fn no_announcement_shortens_what_the_server_asked_for() {
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
