//! How long the tests that need time may take: short on a developer's machine, in full length in
//! CI.

use std::time::Duration;

/// Seconds that a test under load runs; `.ci/run` sets 60.
const SECONDS: &str = "DENIZEN_TEST_SECONDS";

/// How long to keep a load up.
pub fn duration() -> Duration {
    let given = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(5))
}

/// `full` where tests run in full length, else `quick`.
pub fn times(full: usize, quick: usize) -> usize {
    if duration() >= Duration::from_secs(60) { full } else { quick }
}
