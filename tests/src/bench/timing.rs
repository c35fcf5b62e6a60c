//! Durations, for benches.

use std::time::{Duration, Instant};

/// How long `job` takes.
pub fn timed<T>(job: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let result = job();
    (result, begun.elapsed())
}

/// Many durations of the same thing.
#[derive(Debug, Clone)]
pub struct Samples(Vec<Duration>);

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut durations = Vec::from_iter(durations);
        durations.sort_unstable();
        Self(durations)
    }
}

impl Samples {
    /// The one in the middle.
    pub fn median(&self) -> Duration {
        self.quantile(50)
    }

    /// The duration that this percentage of the samples does not exceed.
    pub fn quantile(&self, hundredth: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * hundredth / 100).copied().unwrap_or_default()
    }
}

/// Microseconds or milliseconds, whichever reads well.
pub fn text(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        ..1_000.0 => format!("{micros:.1} µs"),
        ..10_000.0 => format!("{:.2} ms", micros / 1e3),
        ..1_000_000.0 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}
