//! Waiting for what takes a moment to come about.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Between the first two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// No pause is longer. Most looks start a program: many of them at once would leave the processors
/// no time for what is waited for.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A pause is this part of the time that was waited already: so much later is noticed what came
/// about.
const PART: u32 = 8;

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
