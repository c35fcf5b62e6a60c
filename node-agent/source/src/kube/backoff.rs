//! How long to wait before the next attempt. Pure, except for the random number.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::failure::Failure;

/// Time limit for the first answer to a list or a watch.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for silence during a list.
pub(super) const LIST_SILENCE: Duration = Duration::from_secs(20);

/// Time limit for silence during a watch: the server sends a bookmark about every minute. The
/// kernel notices a dead connection sooner.
pub(super) const WATCH_SILENCE: Duration = Duration::from_secs(150);

/// A watch that lasted this long succeeded, however it ended.
pub(super) const STEADY: Duration = Duration::from_secs(10);

/// Time until a kind that the server does not serve is requested again.
pub(super) const NOT_SERVED: Duration = Duration::from_secs(600);

/// The first pause. Each further one is twice as long …
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// … up to this.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Pauses that grow while attempts fail. Each is cut by up to half at random: all nodes of a
/// cluster lose the API at one moment, and must not come back at one moment.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Whether a watch has expired since the last success.
    expired: bool,
}

impl Backoff {
    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether nothing has failed since the last success.
    pub(super) fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// The pause after `failure`. A server that says that a watch has expired is working, so
    /// earlier failures do not delay the list that must follow. If the server says so again before
    /// anything has succeeded, the pauses grow.
    pub(super) fn pause_after(&mut self, failure: &Failure) -> Duration {
        if failure.is_expired() && !std::mem::replace(&mut self.expired, true) {
            self.failures = 0;
        }
        self.pause(failure.asked())
    }

    /// The pause after one more failure, at least as long as the server asked for.
    pub(crate) fn pause(&mut self, asked: Option<Duration>) -> Duration {
        let whole = MIN_PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        // Clients that were asked to wait must not come back at one moment either.
        let asked = asked.unwrap_or_default().min(MAX_PAUSE * 4);
        cut(whole, random()).max(asked + (asked / 4).mul_f64(fraction(random())))
    }
}

/// `whole`, cut by up to half.
fn cut(whole: Duration, random: u64) -> Duration {
    let half = whole / 2;
    half + half.mul_f64(fraction(random))
}

/// A random part of `whole`.
pub(super) fn part_of(whole: Duration) -> Duration {
    whole.mul_f64(fraction(random()))
}

/// A number from 0 to 1.
fn fraction(random: u64) -> f64 {
    f64::from(u32::try_from(random >> 32).expect("32 bits of 64")) / f64::from(u32::MAX)
}

/// How long a watch may last, in seconds. It differs between nodes, so that they do not all begin
/// again together.
pub(super) fn watch_seconds() -> u32 {
    240 + u32::try_from(random() % 50).expect("less than 50")
}

/// A random number: the standard library's seed of hash maps, which is new every time.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.pause(None)).collect();
        let mut whole = MIN_PAUSE;
        for pause in &pauses {
            assert!(*pause >= whole / 2 && *pause <= whole, "{pause:?} of {whole:?}");
            whole = (whole * 2).min(MAX_PAUSE);
        }
        let last: std::collections::BTreeSet<_> = pauses[20..].iter().collect();
        assert!(last.len() > 10, "all equal: {last:?}");
        backoff.reset();
        assert!(backoff.pause(None) <= MIN_PAUSE);
    }

    /// The server was busy for so long that pauses are long; then the watch's version has expired.
    #[test]
    fn a_list_does_not_wait_for_the_outage_before_an_expired_watch() {
        let refused = |code| Failure::Refused(Box::new(Status { code, ..Status::default() }));
        let mut backoff = Backoff::default();
        for _ in 0..3 {
            let busy = (0..12).map(|_| backoff.pause_after(&refused(429))).last();
            assert!(busy >= Some(MAX_PAUSE / 2), "{busy:?}");
            let expired: Vec<Duration> =
                (0..12).map(|_| backoff.pause_after(&refused(410))).collect();
            assert!(expired[0] <= MIN_PAUSE, "{expired:?}");
            assert!(expired[11] >= MAX_PAUSE / 2, "it expires again and again: {expired:?}");
            backoff.reset();
        }
    }

    #[test]
    fn the_server_may_ask_for_more_but_not_for_ever() {
        let mut backoff = Backoff::default();
        for (asked, least) in [(7, Duration::from_secs(7)), (7_000, MAX_PAUSE * 4)] {
            let pause = backoff.pause(Some(Duration::from_secs(asked)));
            assert!(pause >= least && pause <= least * 5 / 4, "{pause:?}");
        }
    }

    #[test]
    fn a_pause_is_cut_by_up_to_half() {
        let whole = Duration::from_secs(10);
        assert_eq!(cut(whole, 0), whole / 2);
        assert_eq!(cut(whole, u64::MAX), whole);
    }

    #[test]
    fn watches_last_from_four_to_five_minutes() {
        for _ in 0..1000 {
            assert!((240..295).contains(&watch_seconds()));
        }
    }
}
