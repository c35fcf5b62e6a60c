//! One turn of the loop: what it begins with, and how long it takes.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use prometheus_client::metrics::histogram::Histogram;
use tracing::info;

use super::now;
use crate::control::AgentRequest;
use crate::flush::Step;
use denizen_model::Event;

/// A longer turn is logged: events and requests that arrive during it must wait.
const LONG_TURN: Duration = Duration::from_millis(250);

/// What the loop does next.
pub(super) enum Next {
    Events(Vec<Event>),
    ForeignChange(bool),
    Flush(Step),
    Continue,
    Request(AgentRequest),
    HttpRequest(AgentRequest),
    Portmap,
    EndSampling,
    Announce,
    PodWatch,
    PoliciesRead(u64),
    Heartbeat,
    RunDir,
    Retry,
    DriftCheck,
    Resync,
}

impl Next {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Events(_) => "events",
            Self::ForeignChange(_) => "a foreign change",
            Self::Flush(_) => "connections",
            Self::Continue => "programming in parts",
            Self::Request(_) => "requests",
            Self::HttpRequest(_) => "an HTTP request",
            Self::Portmap => "portmap's rules",
            Self::EndSampling => "end of sampling",
            Self::Announce => "announcements",
            Self::PodWatch => "pods to follow",
            Self::PoliciesRead(_) => "policies that were read",
            Self::Heartbeat => "heartbeat",
            Self::RunDir => "the run directory",
            Self::Retry => "retry",
            Self::DriftCheck => "a check for drift",
            Self::Resync => "resync",
        }
    }
}

/// Measures a turn.
pub(super) struct StopWatch {
    what: &'static str,
    begun: Instant,
    /// The thread's processor time at the start.
    used: Duration,
}

impl StopWatch {
    pub(super) fn start(what: &'static str) -> Self {
        Self { what, begun: now(), used: used() }
    }

    pub(super) fn stop(self, turns: &Histogram) {
        let elapsed = self.begun.elapsed();
        turns.observe(elapsed.as_secs_f64());
        if elapsed > LONG_TURN {
            // For the rest of `elapsed`, the thread waited for a processor or for the kernel.
            let processor = used().saturating_sub(self.used);
            info!(turn = self.what, ?elapsed, ?processor, "a turn of the loop took long");
        }
    }
}

/// This thread's processor time.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
