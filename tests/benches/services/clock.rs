//! Durations, and where they were spent.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use denizen_tests::bench::timing::{Samples, text, timed};
use nix::time::{ClockId, clock_gettime};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What something took, in all and within the agent's spans that wait for the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// From the first fact to the kernel's acknowledgement.
    pub whole: Duration,
    /// The thread's processor time, in the kernel too: on a busy machine, less than `whole`.
    pub work: Duration,
    /// The part of it in netlink batches.
    pub commit: Duration,
    /// The part of it spent reading the kernel's tables.
    pub observe: Duration,
}

/// What `job` costs.
pub fn cost<T>(job: impl FnOnce() -> T) -> (T, Cost) {
    SPENT.iter().for_each(|spent| spent.store(0, Ordering::Relaxed));
    let begun = worked();
    let (result, whole) = timed(job);
    let work = worked().saturating_sub(begun);
    let [commit, observe] = [0, 1].map(|n| Duration::from_nanos(SPENT[n].load(Ordering::Relaxed)));
    let cost = Cost { whole, work, commit, observe };
    (result, cost)
}

/// The processor time that this thread has used.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("every thread has such a clock").into()
}

/// The agent's spans that are measured.
const SPANS: [&str; 2] = ["commit", "observe"];
static SPENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

thread_local! {
    static BEGUN: [Cell<Option<Instant>>; 2] = const { [Cell::new(None), Cell::new(None)] };
}

/// From now on, [`cost`] also measures [`SPANS`].
pub fn listen_to_spans() {
    tracing::subscriber::set_global_default(Spans).expect("nobody else listens in a bench");
}

/// Sums up the time in each of [`SPANS`]. Other spans and events are not even formatted.
struct Spans;

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && SPANS.contains(&metadata.name())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let at = SPANS.iter().position(|name| *name == span.metadata().name());
        Id::from_u64(at.map_or(1, |at| at as u64 + 1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        BEGUN.with(|begun| begun[id.into_u64() as usize - 1].set(Some(Instant::now())));
    }

    fn exit(&self, id: &Id) {
        let at = id.into_u64() as usize - 1;
        if let Some(begun) = BEGUN.with(|begun| begun[at].take()) {
            SPENT[at].fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
