//! How much the tests that need time do: little, unless `DENIZEN_TEST_SECONDS` asks for more.

use std::time::Duration;

/// The variable with the seconds that a test under load runs.
const SECONDS: &str = "DENIZEN_TEST_SECONDS";
/// The value if it is not set.
const QUICK: u64 = 5;
/// From this value on, tests run in full length.
const FULL: u64 = 60;

/// How long to keep a load up.
pub fn duration() -> Duration {
    let given = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(QUICK))
}

/// The variable and its value, as a word of a guest's command line.
pub fn variable() -> String {
    format!("{SECONDS}={}", duration().as_secs())
}

/// How often to do something that takes minutes: `full` times in full length, otherwise `quick`.
pub fn in_full(full: usize, quick: usize) -> usize {
    if is_full() { full } else { quick }
}

/// Whether tests run in full length: on an otherwise idle machine, so that times are meaningful.
pub fn is_full() -> bool {
    duration().as_secs() >= FULL
}

/// How often to do something: from `quick` to `full`, as [`duration`] goes from 5 seconds to 60.
pub fn times(full: usize, quick: usize) -> usize {
    let more = duration().as_secs().clamp(QUICK, FULL) - QUICK;
    let part = |count: usize, of: u64| count as u64 * of;
    let sum = part(full, more) + part(quick, FULL - QUICK - more);
    (sum / (FULL - QUICK)) as usize
}
