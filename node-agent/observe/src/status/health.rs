//! The agent's health, in the terms of kube-proxy's probes. Pure: the caller passes the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use denizen_model::Family;

/// The agent is unhealthy if a change is not programmed, or the loop does not run, for this long.
/// It is twice kube-proxy's `syncPeriod`, as in kube-proxy.
pub const LATE: Duration = Duration::from_secs(60);

/// The state that the loop publishes for the health servers, which run in other threads and answer
/// even if the loop hangs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoopState {
    /// When the loop last ran.
    pub alive: Instant,
    /// Since when a change has been waiting to be programmed.
    pub waiting: Option<Instant>,
    /// The first full set of rules is in the kernel.
    pub synced: bool,
    /// When the kernel was last programmed.
    pub updated: Option<Timestamp>,
    /// Whether load balancers may send to this node, by its Node object.
    pub node_eligible: bool,
    /// Another service proxy keeps writing the same rules, so this agent has stopped.
    pub contended: bool,
    /// Some rules are rejected. All others are programmed, so this is reported but does not make
    /// the node unhealthy.
    pub rules_rejected: bool,
    /// Most services are not served, because so many rules are rejected.
    pub unserved: bool,
    /// Rules of a previous backend cannot be removed. All rules of this agent are programmed, so
    /// this is reported but does not make the node unhealthy.
    pub predecessor_rules_remain: bool,
    /// The run directory is gone, and only a restart restores it. Services are still served.
    pub run_dir_lost: bool,
}

impl LoopState {
    /// The state of a loop that has just started.
    pub fn starting(now: Instant) -> Self {
        Self {
            alive: now,
            waiting: None,
            synced: false,
            updated: None,
            node_eligible: true,
            contended: false,
            rules_rejected: false,
            unserved: false,
            predecessor_rules_remain: false,
            run_dir_lost: false,
        }
    }

    /// Whether nothing hangs and no failure has lasted long. True during the start: a restart would
    /// not help.
    pub fn is_live(&self, now: Instant) -> bool {
        let since_long = |then: Instant| now.saturating_duration_since(then) >= LATE;
        !since_long(self.alive) && !self.waiting.is_some_and(since_long)
    }

    /// Whether the loop is live, has programmed the first full set of rules, and keeps programming.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.synced && !self.contended && !self.unserved && self.is_live(now)
    }

    fn reason(&self) -> Option<&'static str> {
        let all = [
            (self.run_dir_lost, RUN_DIR_LOST),
            (self.contended, CONTENDED),
            (self.unserved, UNSERVED),
            (self.rules_rejected, REFUSED),
            (self.predecessor_rules_remain, LEFT),
        ];
        all.into_iter().find_map(|(is_so, reason)| is_so.then_some(reason))
    }
}

/// The body of kube-proxy's `/healthz` and `/livez` (`ProxyHealth` of its `pkg/proxy/healthcheck`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    last_updated: String,
    current_time: String,
    /// In `/healthz` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    /// kube-proxy's body does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    status: BTreeMap<String, FamilyReport>,
}

/// The part of one family. Both families are programmed together here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReport {
    last_updated: String,
    healthy: bool,
}

impl HealthReport {
    /// Whether `/healthz` answers 200 (ready, and the node may get traffic), and its body.
    pub fn healthz(loop_state: &LoopState, now: Instant, clock: Timestamp) -> (bool, Self) {
        let healthy = loop_state.is_ready(now);
        let well = healthy && loop_state.node_eligible;
        (well, Self::of(loop_state, healthy, well, clock, Some(loop_state.node_eligible)))
    }

    /// Whether `/livez` answers 200 (a restart would not help), and its body.
    pub fn livez(loop_state: &LoopState, now: Instant, clock: Timestamp) -> (bool, Self) {
        let healthy = loop_state.is_live(now) && !loop_state.run_dir_lost;
        (healthy, Self::of(loop_state, healthy, healthy, clock, None))
    }

    /// If all is well, `lastUpdated` is now, as in kube-proxy, for clients that expect a recent
    /// time.
    fn of(
        loop_state: &LoopState,
        healthy: bool,
        well: bool,
        clock: Timestamp,
        node_eligible: Option<bool>,
    ) -> Self {
        let updated = loop_state.updated.map_or(NEVER.to_owned(), |at| at.to_string());
        let family = FamilyReport { last_updated: updated.clone(), healthy };
        let families = Family::BOTH.map(|name| (name.to_string(), family.clone()));
        Self {
            last_updated: if well { clock.to_string() } else { updated },
            current_time: clock.to_string(),
            node_eligible,
            healthy,
            reason: loop_state.reason(),
            status: families.into(),
        }
    }
}

const RUN_DIR_LOST: &str = "the run directory was removed or unmounted: restart the agent, else \
                            new pods are not detected as local";

const CONTENDED: &str =
    "another service proxy keeps rewriting the same rules; `denizen-agent status` names it";

const UNSERVED: &str =
    "the kernel rejects the rules of most services; `denizen-agent status` names them";

const REFUSED: &str = "the kernel rejects some rules; `denizen-agent status` names them";

const LEFT: &str = "rules of a previous backend cannot be removed; `denizen-agent status` says why";

/// Go's zero time, which kube-proxy writes: clients parse this field as a time.
const NEVER: &str = "0001-01-01T00:00:00Z";

#[cfg(test)]
mod tests;
