//! Waiting until something holds.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Pause between the first two observations.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause. Most observations start a program: too many of them would leave the
/// processors no time for what is waited for.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A pause is an eighth of the time waited so far, so it delays the result by at most that.
const PART: u32 = 8;

/// Waits until `condition` holds; see [`observed`].
pub fn eventually(
    what: &str,
    bound: Duration,
    condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    observed(what, bound, condition, |holds| *holds).map(drop)
}

/// Observes until `holds` accepts an observation, and returns that observation.
///
/// After `bound` it fails, with `what` and the last observation in the error; an error of `observe`
/// ends it at once.
pub fn observed<T: Debug>(
    what: &str,
    bound: Duration,
    mut observe: impl FnMut() -> Result<T>,
    holds: impl Fn(&T) -> bool,
) -> Result<T> {
    let started = Instant::now();
    loop {
        let now = observe()?;
        if holds(&now) {
            return Ok(now);
        }
        let waited = started.elapsed();
        ensure!(waited < bound, "not {what} after {bound:?}: {now:?}");
        thread::sleep((waited / PART).clamp(FIRST_PAUSE, LONGEST_PAUSE));
    }
}
