//! Waiting for what takes a moment to come about.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Between the first two looks; each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Waits until `condition` holds; see [`observed`].
pub fn eventually(
    what: &str,
    bound: Duration,
    condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    observed(what, bound, condition, |holds| *holds).map(drop)
}

/// Observes until `holds` of what was observed, and returns that observation.
///
/// After `bound` it is an error that names `what` and the last observation; an error of `observe`
/// ends it at once.
pub fn observed<T: Debug>(
    what: &str,
    bound: Duration,
    mut observe: impl FnMut() -> Result<T>,
    holds: impl Fn(&T) -> bool,
) -> Result<T> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let now = observe()?;
        if holds(&now) {
            return Ok(now);
        }
        ensure!(started.elapsed() < bound, "not {what} after {bound:?}: {now:?}");
        thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}
