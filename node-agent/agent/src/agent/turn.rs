//! One turn of the loop: what it begins with, and how long it takes.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::mpsc;
use tracing::info;

use super::flush::Step;
use super::{Agent, now};
use crate::control::Asked;
use crate::memory::trim;
use denizen_model::Event;

/// A turn that takes longer is logged: all that comes meanwhile waits.
const LONG: Duration = Duration::from_millis(250);

/// What the loop does next.
pub(super) enum Next {
    Events(Vec<Event>),
    ForeignChange(bool),
    Flush(Step),
    Continue,
    Request(Asked),
    EndSampling,
    Announce,
    PoliciesRead(u64),
    Heartbeat,
    RunDir,
    Retry,
    Glance,
    Resync,
}

impl Next {
    fn name(&self) -> &'static str {
        match self {
            Self::Events(_) => "events",
            Self::ForeignChange(_) => "a foreign change",
            Self::Flush(_) => "connections",
            Self::Continue => "programming in parts",
            Self::Request(_) => "requests",
            Self::EndSampling => "end of sampling",
            Self::Announce => "announcements",
            Self::PoliciesRead(_) => "policies that were read",
            Self::Heartbeat => "heartbeat",
            Self::RunDir => "the run directory",
            Self::Retry => "retry",
            Self::Glance => "glance",
            Self::Resync => "resync",
        }
    }
}

impl Agent {
    /// Returns whether programming succeeded, if the turn led to it.
    pub(super) fn turn(
        &mut self,
        next: Next,
        events: &mut mpsc::Receiver<Vec<Event>>,
        requests: &mut mpsc::Receiver<Asked>,
    ) -> Option<bool> {
        let watch = StopWatch::start(next.name());
        let tried = match next {
            Next::Events(batch) => self.take(batch, events),
            Next::ForeignChange(is_ours) => self.repair(is_ours),
            Next::Flush(step) => {
                let awaited = self.awaited();
                self.flush.take(step, &mut self.engine, &awaited);
                self.release();
                None
            }
            Next::Continue | Next::Retry => Some(self.program(false)),
            Next::Request(asked) => self.answer_all(asked, requests),
            Next::EndSampling => Some(self.end_sampling()),
            Next::Announce => {
                self.announce_again();
                None
            }
            Next::PoliciesRead(ticket) => self.policies_read(ticket, events),
            Next::Heartbeat => self.beat().then(|| self.program(false)),
            Next::RunDir => {
                self.publisher.run_dir_lost(*self.run_dir_lost.borrow_and_update());
                None
            }
            Next::Glance => self.engine.is_disturbed().then(|| self.program(true)),
            Next::Resync => {
                trim();
                Some(self.program(true))
            }
        };
        watch.stop(&self.publisher.metrics.own.loop_turn);
        tried
    }
}

/// Measures a turn.
struct StopWatch {
    what: &'static str,
    begun: Instant,
    /// The thread's processor time then.
    used: Duration,
}

impl StopWatch {
    fn start(what: &'static str) -> Self {
        Self { what, begun: now(), used: used() }
    }

    fn stop(self, turns: &Histogram) {
        let elapsed = self.begun.elapsed();
        turns.observe(elapsed.as_secs_f64());
        if elapsed > LONG {
            // The rest is waiting: for a processor, or for the kernel.
            let processor = used().saturating_sub(self.used);
            info!(turn = self.what, ?elapsed, ?processor, "a turn of the loop took long");
        }
    }
}

/// This thread's processor time.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
