//! Whether this agent does its work, as kube-proxy's probes put it. Pure: who asks brings the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use crate::model::Family;

/// A change that is not programmed for this long, or a loop that does not come round, is a fault:
/// twice kube-proxy's `syncPeriod`, as there.
pub const LATE: Duration = Duration::from_secs(60);

/// What the loop says of itself. The servers of health run beside it and can filter by this alone,
/// whatever it hangs on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pulse {
    /// When the loop came round last.
    pub alive: Instant,
    /// Since when a change waits to be programmed.
    pub waiting: Option<Instant>,
    /// The first full set of rules is in the kernel.
    pub synced: bool,
    /// When the kernel was programmed last.
    pub updated: Option<Timestamp>,
    /// The Node object lets load balancers send to this node.
    pub node_eligible: bool,
    /// Another service proxy goes on writing the same rules, so this agent has stopped.
    pub contended: bool,
    /// Something is refused and left out. All else is programmed, so that is said and is no fault
    /// of the node.
    pub refused: bool,
    /// So much is refused that most services are not served.
    pub unserved: bool,
    /// Rules that another backend left cannot be removed. These are all programmed, so that is said
    /// and is no fault of the node.
    pub left: bool,
    /// The run directory is gone, and only a restart brings it back. Services are served meanwhile.
    pub run_dir_lost: bool,
}

impl Pulse {
    /// Of a loop that begins.
    pub fn starting(now: Instant) -> Self {
        Self {
            alive: now,
            waiting: None,
            synced: false,
            updated: None,
            node_eligible: true,
            contended: false,
            refused: false,
            unserved: false,
            left: false,
            run_dir_lost: false,
        }
    }

    /// Nothing hangs and nothing fails for long. True while it starts: to start it anew would not
    /// help.
    pub fn is_live(&self, now: Instant) -> bool {
        let since_long = |then: Instant| now.saturating_duration_since(then) >= LATE;
        !since_long(self.alive) && !self.waiting.is_some_and(since_long)
    }

    /// It is live, has programmed all of the first full set of rules, and goes on programming.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.synced && !self.contended && !self.unserved && self.is_live(now)
    }

    fn reason(&self) -> Option<&'static str> {
        let all = [
            (self.run_dir_lost, RUN_DIR_LOST),
            (self.contended, CONTENDED),
            (self.unserved, UNSERVED),
            (self.refused, REFUSED),
            (self.left, LEFT),
        ];
        all.into_iter().find_map(|(is_so, reason)| is_so.then_some(reason))
    }
}

/// The body of kube-proxy's `/healthz` and `/livez` (`ProxyHealth` of its `pkg/proxy/healthcheck`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    last_updated: String,
    current_time: String,
    /// Said by `/healthz` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    /// Not in kube-proxy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    status: BTreeMap<String, FamilyReport>,
}

/// One family's part of it. Both are programmed together here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReport {
    last_updated: String,
    healthy: bool,
}

impl Report {
    /// What `/healthz` says, and whether it says 200: ready, and the node is to get traffic.
    pub fn healthz(pulse: &Pulse, now: Instant, clock: Timestamp) -> (bool, Self) {
        let healthy = pulse.is_ready(now);
        let well = healthy && pulse.node_eligible;
        (well, Self::of(pulse, healthy, well, clock, Some(pulse.node_eligible)))
    }

    /// What `/livez` says, and whether it says 200: whether starting the agent anew would be
    /// better.
    pub fn livez(pulse: &Pulse, now: Instant, clock: Timestamp) -> (bool, Self) {
        let healthy = pulse.is_live(now) && !pulse.run_dir_lost;
        (healthy, Self::of(pulse, healthy, healthy, clock, None))
    }

    /// Where all is well, `lastUpdated` is now, as kube-proxy has it for those who expect a recent
    /// time.
    fn of(
        pulse: &Pulse,
        healthy: bool,
        well: bool,
        clock: Timestamp,
        node_eligible: Option<bool>,
    ) -> Self {
        let updated = pulse.updated.map_or(NEVER.to_owned(), |at| at.to_string());
        let family = FamilyReport { last_updated: updated.clone(), healthy };
        let families = Family::BOTH.map(|name| (name.to_string(), family.clone()));
        Self {
            last_updated: if well { clock.to_string() } else { updated },
            current_time: clock.to_string(),
            node_eligible,
            healthy,
            reason: pulse.reason(),
            status: families.into(),
        }
    }
}

const RUN_DIR_LOST: &str = "the run directory is gone from where it is mounted: new pods stay unknown until the agent is restarted";

const CONTENDED: &str =
    "another service proxy goes on rewriting the same rules; `denizen-agent status` names it";

const UNSERVED: &str = "the rules of most services are refused; `denizen-agent status` names them";

const REFUSED: &str = "some rules are refused and left out; `denizen-agent status` names them";

const LEFT: &str =
    "rules that another backend left cannot be removed; `denizen-agent status` says why";

/// How Go writes a time that is none; who parses the one must not stumble over the other.
const NEVER: &str = "0001-01-01T00:00:00Z";

#[cfg(test)]
mod tests;
