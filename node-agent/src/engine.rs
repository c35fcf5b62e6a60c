//! Model, plan and backend behind one face: events in, a programmed kernel out. It has no task, no
//! socket and no clock of its own; `agent` drives it.

mod figures;
mod health;
mod notes;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use denizen_shared::socket::WaitFor;
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use thiserror::Error;
use tracing::{info, warn};

use crate::backend::chosen::{Chosen, ChosenError, Removal};
use crate::backend::{Backend, BackendName, Repair, Told};
use crate::conntrack::{CandidateTracker, Entry, StaleCandidates, StaleFilter};
use crate::describe::describe;
use crate::explain::{Context, Explanation, Packet, Step, explain};
use crate::iptables::Variant;
use crate::model::{Change, Event, Model, PodVersion};
use crate::plan::{
    Conflict, Detector, Frontend, NodePortAddresses, NodeSide, Plan, Settings, node_port_addresses,
};
use crate::status::LastSync;
use crate::sysctl::{Setting, live, on_loopback};

/// What the operator asked for, as far as it decides about packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What decides about every service alike.
    pub settings: Settings,
    /// How local traffic is told apart.
    pub detector: Detector,
    /// Where node ports are served.
    pub node_ports: NodePortAddresses,
    /// What is settled about this node.
    pub node_side: NodeSide,
    /// Which backend renders it: what nobody serves is not the same in all of them.
    pub backend: BackendName,
}

/// Why a question cannot be answered.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not everything is known yet; waiting for {}", .0.join(", "))]
pub struct NotYet(pub Vec<String>);

/// Model, plan and backend.
#[derive(Debug)]
pub struct Engine<B = Chosen> {
    policy: Policy,
    model: Model,
    plan: Plan,
    backend: B,
    change: Change,
    complete: bool,
    synced: bool,
    /// The state file's version whose pods the backend was told.
    decided_pods: Option<PodVersion>,
    /// What may have become stale in the connection tracking.
    candidate_tracker: CandidateTracker,
    node_ports: Vec<IpAddr>,
    /// The state file's version whose pods are in the kernel.
    programmed_pods: Option<PodVersion>,
    /// When the changes were made that are decided and not programmed yet.
    decided_triggers: Vec<Timestamp>,
    /// The same of those that are in the kernel since [`Self::take_triggers`] was asked.
    programmed_triggers: Vec<Timestamp>,
    last_sync: Option<LastSync>,
    drift_repaired: u64,
    last_repair: Option<Duration>,
    flushed: u64,
    flushing: bool,
    last_error: Option<String>,
    /// [`Self::take_health_ports`] may differ from what it returned last.
    health_ports_due: bool,
}

impl Engine {
    /// Opens the policy's backend in this thread's network namespace. `variant` is the iptables to
    /// use, where that is not to be found out.
    ///
    /// # Errors
    /// [`ChosenError`] when the backend's kernel, or its programs, are not to be had.
    pub fn open(policy: Policy, variant: Option<Variant>) -> Result<Self, ChosenError> {
        let backend = Chosen::open(policy.backend, variant)?;
        Ok(Self::new(policy, backend))
    }

    /// The portid by which the kernel's notifications name the backend's own changes, where it goes
    /// by them.
    pub fn portid(&self) -> Option<u32> {
        self.backend.portid()
    }

    /// Removes what another backend left behind, which serves until this one's rules are all there.
    /// The thread that does it must be waited for before the process ends.
    pub fn remove_predecessor(&mut self) -> Removal {
        self.backend.remove_predecessor()
    }
}

impl<B: Told> Engine<B> {
    /// Over a backend that was told nothing yet.
    pub fn new(policy: Policy, mut backend: B) -> Self {
        // Ranges that the Node object names are not known yet.
        backend.set_detector(&policy.detector, &policy.detector.ranges(&[]));
        backend.set_node_side(&policy.node_side);
        Self {
            policy,
            model: Model::default(),
            plan: Plan::default(),
            backend,
            change: Change::default(),
            complete: false,
            synced: false,
            decided_pods: None,
            candidate_tracker: CandidateTracker::default(),
            node_ports: Vec::new(),
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

    /// What is told so far, decided, for a look at the backend.
    pub fn decided(&mut self) -> &B {
        self.decide();
        &self.backend
    }

    /// The same, to be written.
    #[cfg(test)]
    pub fn decided_mut(&mut self) -> &mut B {
        self.decide();
        &mut self.backend
    }

    /// Takes facts in. Nothing is programmed before [`Self::sync`].
    pub fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            self.model.apply(event, &mut self.change);
        }
    }

    /// Whether there is anything to program.
    pub fn is_idle(&self) -> bool {
        let first = !self.complete && self.model.snapshot().is_some();
        self.change.is_empty() && !first && self.last_error.is_none()
    }
}

impl<B: Backend> Engine<B> {
    /// Plans what changed and programs it.
    ///
    /// # Errors
    /// The backend's. What could not be programmed is tried again by the next call.
    pub fn sync(&mut self) -> Result<(), B::Error> {
        self.decide();
        let result = self.backend.sync();
        self.note_outcome(&result);
        result.map(drop)
    }

    /// Looks whether somebody else changed what is ours, and repairs it. Returns what was repaired.
    ///
    /// # Errors
    /// The backend's.
    pub fn resync(&mut self) -> Result<Repair, B::Error> {
        let result = self.backend.resync();
        self.note_outcome(&result);
        result
    }

    /// What happens to a packet, by the rules that the kernel has taken.
    ///
    /// # Errors
    /// [`NotYet`] while a source still owes its first list.
    pub fn explain_here(&self, packet: &Packet) -> Result<Explanation, NotYet> {
        let mut explanation = self.explained(packet, |frontend| self.backend.rejected(frontend))?;
        if let Some(error) = self.backend.contended().or(self.last_error.as_deref()) {
            explanation.steps.push(Step {
                what: "the kernel may not have the latest rules".to_owned(),
                why: error.to_owned(),
            });
        }
        Ok(explanation)
    }

    /// Whether all that was decided is in the kernel.
    pub fn is_settled(&self) -> bool {
        self.backend.is_settled()
    }

    /// Somebody else goes on writing the same rules, and nothing more is written here.
    pub fn is_contended(&self) -> bool {
        self.backend.contended().is_some()
    }

    /// How often to look whether somebody else changed something.
    pub fn look_every(&self) -> Duration {
        self.backend.look_every()
    }

    /// Waits until [`Self::sync`] has something to do that no event tells of.
    pub async fn news(&mut self) {
        self.backend.news().await;
    }

    /// A look that succeeds has programmed all that was decided, as much as a change that does: who
    /// waits for a pod must not wait for the next change.
    fn note_outcome(&mut self, result: &Result<Repair, B::Error>) {
        self.last_error = result.as_ref().err().map(|error| describe(error));
        if result.is_ok() {
            self.synced |= self.complete && self.backend.is_settled();
        }
        let repaired = self.backend.repaired();
        if !repaired.is_none() {
            self.drift_repaired += 1;
        }
        let found = result.as_ref().is_ok_and(|repair| !repair.is_none());
        if found || !repaired.is_none() {
            self.candidate_tracker.rules_were_missing(&self.plan);
        }
        self.candidate_tracker.left(self.backend.left_frontends());
        if result.is_ok() || self.backend.has_pods() {
            self.programmed_pods = self.decided_pods.clone();
            self.programmed_triggers.append(&mut self.decided_triggers);
        }
    }
}

impl<B: Told> Engine<B> {
    /// Decisions, for what changed since the last time.
    fn decide(&mut self) {
        let mut change = std::mem::take(&mut self.change);
        if change.pods
            && let Some(pods) = self.model.pods()
        {
            self.backend.set_pods(pods);
            self.decided_pods = pods.version.clone();
            self.candidate_tracker.pods_are(pods);
            if self.policy.detector.goes_by_records() {
                self.candidate_tracker.note_late(pods);
            }
        }
        if std::mem::take(&mut change.egress) {
            self.backend.set_egress(self.model.egress());
        }
        let Some(world) = self.model.snapshot() else {
            // Pods are done with; the rest waits for the whole picture.
            change.pods = false;
            self.change = change;
            return;
        };
        self.decided_triggers.append(&mut change.triggers);
        let first = !std::mem::replace(&mut self.complete, true);
        if first {
            change.node = true;
            self.backend.set_complete();
            info!("everything is known: services are programmed from now on");
        }
        let touched = self.plan.update(&self.policy.settings, world, &change);
        touched.conflicts.iter().for_each(warn_of);
        for remark in &touched.remarks {
            warn!(%remark, "a Service is served otherwise than its owner may expect");
        }
        self.backend.set_frontends(&self.plan, &touched.keys);
        self.health_ports_due |=
            first || touched.health_checks || change.node || change.pods || change.addresses;
        self.candidate_tracker.changed(&self.plan, &change.services, &touched.keys);
        if first || change.node || change.pods || change.addresses {
            let node = (world.node(), world.addresses(), world.pods());
            let addresses = node_port_addresses(&self.policy.node_ports, node.0, node.1, node.2);
            self.backend.set_node_port_addresses(&self.policy.node_ports, &addresses);
            self.candidate_tracker.node_ports_are(&self.plan, &addresses);
            self.node_ports = addresses;
        }
        if first || touched.health_checks {
            let ports = self.plan.health_checks().settled().0.into_keys();
            self.backend.set_health_ports(&ports.collect());
        }
        if first || change.pods || touched.local_endpoints {
            let pods = world.pods().pods.iter().flat_map(|pod| pod.ips.iter().copied());
            let itself: BTreeSet<IpAddr> = pods.chain(self.plan.local_endpoints()).collect();
            self.backend.set_hairpins(&itself);
        }
        if first || change.node || change.addresses || change.service_ranges {
            self.decide_ranges();
        }
    }

    /// What the constant part of the rules depends on.
    fn decide_ranges(&mut self) {
        let Some(world) = self.model.snapshot() else {
            return;
        };
        let cidrs = world.node().map(|node| &*node.pod_cidrs).unwrap_or_default();
        let detector = &self.policy.detector;
        self.backend.set_detector(detector, &detector.ranges(cidrs));
        let service_ranges: Vec<IpNetwork> = self.plan.service_ranges(world).collect();
        self.backend.set_service_ranges(&service_ranges);
    }

    /// Whether the pods of this generation of the state file (or a later one) are in the kernel.
    pub fn has_programmed(&self, asked: &WaitFor) -> bool {
        self.programmed_pods.as_ref().is_some_and(|(epoch, generation)| {
            *epoch == asked.epoch && *generation >= asked.generation
        })
    }

    /// What is to happen to a packet.
    ///
    /// # Errors
    /// [`NotYet`] while a source still owes its first list.
    pub fn explain(&self, packet: &Packet) -> Result<Explanation, NotYet> {
        self.explained(packet, |_| Vec::new())
    }

    fn explained(
        &self,
        packet: &Packet,
        rejected: impl Fn(&Frontend) -> Vec<String>,
    ) -> Result<Explanation, NotYet> {
        let world = self.model.snapshot().ok_or_else(|| NotYet(self.owed()))?;
        let Policy { detector, node_ports, backend, .. } = &self.policy;
        let context = Context { world, plan: &self.plan, detector, node_ports, backend: *backend };
        Ok(explain(context, packet, rejected))
    }

    /// Where stale entries of the connection tracking may be found, now that all that was decided
    /// is in the kernel. Told once.
    pub fn take_stale_candidates(&mut self) -> StaleCandidates {
        self.candidate_tracker.take(self.complete.then_some(&self.plan))
    }

    /// Those of these entries of the connection tracking that are stale.
    pub fn stale(&self, candidates: &StaleCandidates, mut entries: Vec<Entry>) -> Vec<Entry> {
        let known = self.model.snapshot().map(|world| (&self.plan, world));
        let mut filter = StaleFilter::new(candidates, known, self.model.pods(), &self.node_ports);
        entries.retain(|entry| filter.is_stale(entry));
        entries
    }

    fn owed(&self) -> Vec<String> {
        self.model.owed().map(|listing| listing.to_string()).collect()
    }

    /// The kernel's settings that the rules need beside them.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = live(self.model.pods(), &self.policy.detector);
        // Not before the rule that keeps neighbours out of there.
        let on_loopback = on_loopback(&self.policy.node_ports).filter(|_| self.synced);
        settings.extend(on_loopback);
        settings
    }

    /// When the changes of pods and Services were made that the kernel was programmed for since
    /// this was asked last: what kube-proxy's `network_programming_duration_seconds` counts from.
    pub fn take_triggers(&mut self) -> Vec<Timestamp> {
        std::mem::take(&mut self.programmed_triggers)
    }

    /// Whether all of the first full set of rules is in the kernel.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

fn warn_of(lost: &Conflict) {
    let Conflict { key, winner, loser } = lost;
    warn!(%key, service = %winner, %loser, "two services claim one address and port");
}
