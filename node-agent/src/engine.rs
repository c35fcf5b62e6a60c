//! Joins model, plan and backend: it takes events and programs the kernel. It has no task, no
//! socket and no clock; `agent` drives it.

mod figures;
mod health;
mod notes;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use denizen_netlink::NetlinkError;
use denizen_nft::Watch;
use denizen_state::socket::WaitFor;
use jiff::Timestamp;
use tracing::{info, warn};

use crate::backend::chosen::{BackendConfig, Chosen, ChosenError};
use crate::backend::iptables::IptablesError;
use crate::backend::{Backend, Figures, Repair, Report};
use crate::conntrack::{CandidateTracker, Entry, StaleCandidates, StaleFilter};
use crate::describe::describe;
use crate::explain::{Explanation, NotYet, Packet, Step, explain};
use crate::iptables::Variant;
use crate::model::{Event, PodVersion};
use crate::plan::{Capabilities, Changes, Conflict, Plan, Planner, Policy};
use crate::status::LastSync;
use crate::sysctl::{Setting, live, on_loopback};

/// Model, plan and backend.
#[derive(Debug)]
pub struct Engine<B = Chosen> {
    planner: Planner,
    backend: B,
    /// As of the last attempt to program.
    report: Report,
    /// As of the last status.
    figures: Figures,
    synced: bool,
    /// Conntrack entries that may have become stale.
    candidate_tracker: CandidateTracker,
    /// The state file's version whose pods are in the kernel.
    programmed_pods: Option<PodVersion>,
    /// Times of the changes that are decided but not programmed yet.
    decided_triggers: Vec<Timestamp>,
    /// Times of the changes that were programmed since the last [`Self::take_triggers`].
    programmed_triggers: Vec<Timestamp>,
    last_sync: Option<LastSync>,
    drift_repaired: u64,
    last_repair: Option<Duration>,
    flushed: u64,
    flushing: bool,
    last_error: Option<String>,
    /// The result of [`Self::take_health_ports`] may have changed.
    health_ports_due: bool,
}

impl Engine {
    /// Opens a backend in this thread's network namespace.
    ///
    /// # Errors
    /// [`ChosenError`] if the kernel or the backend's programs cannot be used.
    pub fn open(policy: Policy, config: BackendConfig) -> Result<Self, ChosenError> {
        let backend = Chosen::open(config)?;
        Ok(Self::new(policy, config.name.capabilities(), backend))
    }

    /// Watches nf_tables for changes that are not the backend's own, from now on.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn watch(&self) -> Result<Watch, NetlinkError> {
        self.backend.watch()
    }

    /// As [`Chosen::remove_other_tables`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_other_tables(&mut self) -> Result<Option<Variant>, IptablesError> {
        self.backend.remove_other_tables()
    }
}

impl<B: Backend> Engine<B> {
    /// An engine with a new backend.
    pub fn new(policy: Policy, capabilities: Capabilities, mut backend: B) -> Self {
        let planner = Planner::new(policy, capabilities);
        backend.update(planner.plan(), &Changes::from_nothing(planner.plan()));
        Self {
            planner,
            report: backend.report(),
            backend,
            figures: Figures::default(),
            synced: false,
            candidate_tracker: CandidateTracker::default(),
            programmed_pods: None,
            decided_triggers: Vec::new(),
            programmed_triggers: Vec::new(),
            last_sync: None,
            drift_repaired: 0,
            last_repair: None,
            flushed: 0,
            flushing: false,
            last_error: None,
            health_ports_due: false,
        }
    }

    /// Takes facts in. Nothing is programmed before [`Self::sync`].
    pub fn apply(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
    }

    /// Whether there is anything to program.
    pub fn is_idle(&self) -> bool {
        self.planner.is_idle() && self.last_error.is_none()
    }

    /// Plans what changed and programs it.
    ///
    /// # Errors
    /// The backend's. The next call tries again what failed.
    pub fn sync(&mut self) -> Result<(), B::Error> {
        self.decide();
        let result = self.backend.sync();
        self.note_outcome(&result);
        result.map(drop)
    }

    /// Repairs what others changed in our tables. Returns what was repaired.
    ///
    /// # Errors
    /// The backend's.
    pub fn resync(&mut self) -> Result<Repair, B::Error> {
        let result = self.backend.resync();
        self.note_outcome(&result);
        result
    }

    /// Explains what happens to a packet.
    ///
    /// # Errors
    /// [`NotYet`] while a first list is missing.
    pub fn explain(&self, packet: &Packet) -> Result<Explanation, NotYet> {
        let rejected = |frontend: &_| self.backend.rejected(frontend);
        let mut explanation = explain(self.plan(), packet, rejected)?;
        if let Some(error) = self.report.contended.as_ref().or(self.last_error.as_ref()) {
            explanation.steps.push(Step {
                what: "programming failed; the kernel may have old rules".to_owned(),
                why: error.clone(),
            });
        }
        Ok(explanation)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.planner.plan()
    }

    /// Whether the whole plan is in the kernel.
    pub fn is_settled(&self) -> bool {
        self.report.settled
    }

    /// Whether another program keeps rewriting the same rules. Then nothing more is written.
    pub fn is_contended(&self) -> bool {
        self.report.contended.is_some()
    }

    /// Whether any rule is rejected.
    pub fn has_rejected(&self) -> bool {
        !self.report.rejected.is_empty()
    }

    /// Whether most services are served in spite of rejected rules.
    pub fn serves(&self) -> bool {
        self.report.serves
    }

    /// How often to look for changes by others.
    pub fn look_every(&self) -> Duration {
        self.report.look_every
    }

    /// Waits until [`Self::sync`] has something to do without a new event.
    pub async fn wait(&mut self) {
        self.backend.wait().await;
    }

    /// A successful resync has programmed the whole plan, as a successful sync has: an ADD that
    /// waits for a pod must not wait for the next change.
    fn note_outcome(&mut self, result: &Result<Repair, B::Error>) {
        self.report = self.backend.report();
        self.last_error = result.as_ref().err().map(|error| describe(error));
        if result.is_ok() {
            self.synced |= self.plan().services().is_some() && self.report.settled;
        }
        let is_repaired = !self.report.repaired.is_none();
        self.drift_repaired += u64::from(is_repaired);
        if is_repaired || result.as_ref().is_ok_and(|repair| !repair.is_none()) {
            self.candidate_tracker.rules_were_missing(self.planner.plan());
        }
        self.candidate_tracker.left(std::mem::take(&mut self.report.left_frontends));
        if result.is_ok() || self.report.has_pods {
            self.programmed_pods = self.plan().pods().and_then(|pods| pods.version.clone());
            self.programmed_triggers.append(&mut self.decided_triggers);
        }
    }

    /// Plans what is new, and gives it to the backend.
    pub(crate) fn decide(&mut self) {
        let mut changes = self.planner.update();
        if changes.complete {
            info!("everything is known: services are programmed from now on");
        }
        changes.conflicts.iter().for_each(warn_of);
        for remark in &changes.remarks {
            warn!(%remark, "a Service is not served as written");
        }
        let plan = self.planner.plan();
        self.backend.update(plan, &changes);
        self.candidate_tracker.update(plan, &changes);
        self.decided_triggers.append(&mut changes.triggers);
        self.health_ports_due |= changes.health_checks || changes.node || changes.complete;
    }

    /// Whether the pods of this generation of the state file (or a later one) are in the kernel.
    pub fn has_programmed(&self, asked: &WaitFor) -> bool {
        self.programmed_pods.as_ref().is_some_and(|(epoch, generation)| {
            *epoch == asked.epoch && *generation >= asked.generation
        })
    }

    /// The conntrack entries that may be stale, now that the plan is in the kernel. Each is
    /// returned once.
    pub fn take_stale_candidates(&mut self) -> StaleCandidates {
        self.candidate_tracker.take(self.planner.plan())
    }

    /// Those of these conntrack entries that are stale.
    pub fn stale(&self, candidates: &StaleCandidates, mut entries: Vec<Entry>) -> Vec<Entry> {
        let mut filter = StaleFilter::new(candidates, &self.planner);
        entries.retain(|entry| filter.is_stale(entry));
        entries
    }

    /// The kernel's settings that the rules need.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = live(self.plan());
        // Only after the rule that protects 127.0.0.0/8 from neighbours.
        let asked = &self.plan().policy().node_ports;
        settings.extend(on_loopback(asked).filter(|_| self.synced));
        settings
    }

    /// Times of the pods' and Services' changes that were programmed since the last call: the start
    /// of kube-proxy's `network_programming_duration_seconds`.
    pub fn take_triggers(&mut self) -> Vec<Timestamp> {
        std::mem::take(&mut self.programmed_triggers)
    }

    /// Whether the first full set of rules is in the kernel.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

fn warn_of(lost: &Conflict) {
    let Conflict { key, winner, loser } = lost;
    warn!(%key, service = %winner, %loser, "two services claim one address and port");
}
