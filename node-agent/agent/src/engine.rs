//! Joins model, plan and backend: it takes events and programs the kernel. It has no task, no
//! socket and no clock; `agent` drives it.

mod activity;
mod error;
mod status;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError, Watch};
use denizen_state::socket::WaitFor;
use jiff::Timestamp;
use tracing::{info, warn};

pub use self::activity::Activity;
pub use self::error::EngineError;
use crate::control::Sampled;
use denizen_backend::chosen::{BackendConfig, Chosen, ChosenError};
use denizen_backend::firewall::{self, Firewall, Records};
use denizen_backend::host_ports::{self, HostPorts};
use denizen_backend::nftables;
use denizen_backend::sysctl::{Setting, host_ports_on_loopback, live, on_loopback};
use denizen_backend::{Backend, Figures, Repair, Report};
use denizen_iptables::Variant;
use denizen_model::{Event, Family, Model, PodVersion};
use denizen_observe::names::Names;
use denizen_observe::status::{DrainingSince, Status};
use denizen_plan::conntrack::{CandidateTracker, StaleCandidates};
use denizen_plan::explain::{ExplainStep, Explanation, FirstPacket, NotYet, explain};
use denizen_plan::{
    Capabilities, Conflict, FirewallPlan, Frontend, HealthPorts, Plan, PlanChanges, Planner, Policy,
};
use denizen_routing::ProgrammedPlan;
use denizen_routing::routes::UNSERVED;
use denizen_text::describe;

/// Model, plan and backend.
#[derive(Debug)]
pub struct Engine<B = Chosen> {
    planner: Planner,
    backend: B,
    /// The pod firewall's tables; `None` if it is off.
    firewall: Option<Firewall>,
    /// Why they are not as they should be.
    firewall_error: Option<String>,
    /// Host ports' tables; `None` in tests without a kernel.
    host_ports: Option<HostPorts>,
    /// Why they are not as they should be.
    host_ports_error: Option<String>,
    /// As of the last attempt to program.
    report: Report,
    /// As of the last status.
    figures: Figures,
    synced: bool,
    /// Conntrack entries that may have become stale, or may be forbidden or permitted now.
    candidate_tracker: CandidateTracker,
    /// The state file's version whose pods are in the kernel.
    programmed_pods: Option<PodVersion>,
    /// Times of the changes that are decided but not programmed yet.
    decided_triggers: Vec<(Family, Timestamp)>,
    /// Times of the changes that were programmed since the last [`Self::take_triggers`].
    programmed_triggers: Vec<(Family, Timestamp)>,
    /// A NetworkPolicy changed since the last [`Self::take_policies_changed`].
    policies_changed: bool,
    activity: Activity,
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
        let beside = policy.firewall.map(|_| backend.beside()).transpose()?;
        let firewall = beside.map(Firewall::new);
        // Also if they are off: an earlier run may have left its tables.
        let host_ports = Some(HostPorts::new(backend.beside()?));
        let mut engine = Self::new(policy, config.name.capabilities(), backend);
        (engine.firewall, engine.host_ports) = (firewall, host_ports);
        let plan = engine.planner.plan();
        let nothing = PlanChanges::default();
        engine.host_ports.iter_mut().for_each(|host_ports| host_ports.update(plan, &nothing));
        Ok(engine)
    }

    /// With a way to read which pods are recorded, beside the events.
    pub fn with_records(self, records: Records) -> Self {
        let firewall = self.firewall.map(|firewall| firewall.with_records(records));
        Self { firewall, ..self }
    }

    /// Watches nf_tables for changes from now on that are neither the backend's nor `beside`'s.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn watch(&self, beside: Option<u32>) -> Result<Watch, NetlinkError> {
        let own = self.backend.portid().into_iter().chain(beside);
        let own = own.chain(self.firewall.as_ref().map(Firewall::portid));
        let own = own.chain(self.host_ports.as_ref().map(HostPorts::portid));
        const TABLES: [&str; 4] = [nftables::TABLE, firewall::TABLE, host_ports::TABLE, UNSERVED];
        Watch::open(&TABLES, own.collect())
    }

    /// Another client of nf_tables, whose batches do not count as foreign changes.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn beside(&self) -> Result<Kernel, NetlinkError> {
        self.backend.beside()
    }

    /// As [`Chosen::remove_other_tables`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_other_tables(&mut self) -> Result<Option<Variant>, ChosenError> {
        self.backend.remove_other_tables()
    }
}

impl<B: Backend> Engine<B> {
    /// An engine with a new backend.
    pub fn new(policy: Policy, capabilities: Capabilities, mut backend: B) -> Self {
        let planner = Planner::new(policy, capabilities);
        backend.update(planner.plan(), &PlanChanges::from_nothing(planner.plan()));
        let report = backend.report();
        let draining = report.draining.iter().map(|endpoint| (*endpoint, DrainingSince::default()));
        Self {
            planner,
            activity: Activity { draining: draining.collect(), ..Activity::default() },
            report,
            backend,
            firewall: None,
            firewall_error: None,
            host_ports: None,
            host_ports_error: None,
            figures: Figures::default(),
            synced: false,
            candidate_tracker: CandidateTracker::default(),
            programmed_pods: None,
            decided_triggers: Vec::new(),
            programmed_triggers: Vec::new(),
            policies_changed: false,
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
        self.planner.is_idle()
            && self.last_error.is_none()
            && self.firewall_error.is_none()
            && self.host_ports_error.is_none()
    }

    /// Plans what changed and programs it.
    ///
    /// # Errors
    /// [`EngineError`]. What could not be programmed is tried again by the next call.
    pub fn sync(&mut self) -> Result<(), EngineError<B::Error>> {
        self.decide();
        self.program(Firewall::sync, HostPorts::sync, B::sync).map(drop)
    }

    /// The pod firewall comes first: a pod that is known as local may be asked for at once. Host
    /// ports come last: what reaches a pod through them is judged, and answered, as its.
    fn program(
        &mut self,
        firewall: impl FnOnce(&mut Firewall, &Plan) -> Result<Repair, NftError>,
        host_ports: impl FnOnce(&mut HostPorts) -> Result<Repair, NftError>,
        backend: impl FnOnce(&mut B) -> Result<Repair, B::Error>,
    ) -> Result<Repair, EngineError<B::Error>> {
        let plan = self.planner.plan();
        let of_firewall = self.firewall.as_mut().map(|tables| firewall(tables, plan)).transpose();
        self.firewall_error = of_firewall.as_ref().err().map(|error| describe(error));
        let of_backend = backend(&mut self.backend);
        let of_host_ports = self.host_ports.as_mut().map(host_ports).transpose();
        let of_host_ports = of_host_ports.map_err(EngineError::HostPorts);
        self.host_ports_error = of_host_ports.as_ref().err().map(|error| describe(error));
        self.note_outcome(&of_backend);
        let of_firewall = of_firewall?.unwrap_or_default();
        let of_backend = of_backend.map_err(EngineError::Backend)?;
        Ok(of_firewall + of_backend + of_host_ports?.unwrap_or_default())
    }

    /// Notes that another program changed our tables.
    pub fn disturbed(&mut self) {
        if let Some(firewall) = &mut self.firewall {
            firewall.disturbed();
        }
        if let Some(host_ports) = &mut self.host_ports {
            host_ports.disturbed();
        }
    }

    /// Repairs what others changed in our tables. Returns what was repaired.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn resync(&mut self) -> Result<Repair, EngineError<B::Error>> {
        self.program(Firewall::resync, HostPorts::resync, B::resync)
    }

    /// Explains what happens to a packet.
    ///
    /// # Errors
    /// [`NotYet`] while a first list is missing.
    pub fn explain(&mut self, packet: &FirstPacket) -> Result<Explanation, NotYet> {
        let backend = RefCell::new(&mut self.backend);
        let rejected = |frontend: &_| backend.borrow().rejected(frontend);
        let listed = |server: &_| backend.borrow_mut().listed(server);
        let mut explanation = explain(&self.planner, packet, rejected, &listed)?;
        if let Some(error) = self.report.contended.as_ref().or(self.last_error.as_ref()) {
            explanation.steps.push(ExplainStep {
                what: "programming failed; the kernel may have old rules".to_owned(),
                why: error.clone(),
            });
        }
        Ok(explanation)
    }

    /// The facts.
    pub fn model(&self) -> &Model {
        self.planner.model()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.planner.plan()
    }

    /// Shows packets that rules drop or refuse, or no longer, from the next [`Self::sync`] on.
    pub fn sample_drops(&mut self, on: bool) -> Sampled {
        if let Some(firewall) = &mut self.firewall {
            firewall.sample_drops(on);
        }
        let services = self.backend.sample_drops(on);
        Sampled { services, network_policies: self.firewall.is_some() }
    }

    /// The names of what the plan is about.
    pub fn names(&self) -> Names {
        Names::of(self.plan(), self.planner.model(), &self.activity.draining)
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
        let is_settled = |decided: &FirewallPlan| decided.is_known() || decided.is_left_open();
        let is_firewalled =
            self.plan().firewall().is_none_or(is_settled) && self.firewall_error.is_none();
        if result.is_ok() && is_firewalled {
            self.synced |= self.plan().services().is_some() && self.report.settled;
        }
        let is_repaired = !self.report.repaired.is_none();
        self.activity.drift_repaired += u64::from(is_repaired);
        if is_repaired || result.as_ref().is_ok_and(|repair| !repair.is_none()) {
            self.candidate_tracker.rules_were_missing(self.planner.plan());
        }
        self.candidate_tracker.left(std::mem::take(&mut self.report.left_frontends));
        let has_pods = self.firewall.as_ref().is_none_or(Firewall::has_pods);
        if (result.is_ok() || self.report.has_pods) && has_pods {
            self.programmed_pods = self.plan().pods().and_then(|pods| pods.version.clone());
            self.programmed_triggers.append(&mut self.decided_triggers);
        }
    }

    /// Plans what is new, and gives it to the backend. What is asked about the plan, and
    /// [`Self::resync`], are about what this has planned.
    pub fn decide(&mut self) -> PlanChanges {
        let mut changes = self.planner.update();
        if changes.complete && self.plan().policy().services {
            info!("everything is known: services are programmed from now on");
        }
        changes.conflicts.iter().for_each(warn_of);
        for remark in &changes.remarks {
            warn!(%remark, "a Service is not served as written");
        }
        let plan = self.planner.plan();
        self.backend.update(plan, &changes);
        if let Some(firewall) = &mut self.firewall {
            firewall.update(plan, &changes);
        }
        if let Some(host_ports) = &mut self.host_ports {
            host_ports.update(plan, &changes);
        }
        for remark in &changes.host_ports.remarks {
            info!(%remark, "a host port is not served as asked for");
        }
        self.candidate_tracker.update(plan, &changes);
        self.decided_triggers.append(&mut changes.triggers);
        self.policies_changed |= changes.network_policies;
        self.health_ports_due |= changes.health_checks || changes.node || changes.complete;
        changes
    }

    /// Whether the pods of this generation of the state file (or a later one) are in the kernel,
    /// and all that is decided about them, and nothing is unknown about the one that was asked for.
    pub fn has_programmed(&self, asked: &WaitFor) -> bool {
        let is_written = self.programmed_pods.as_ref().is_some_and(|(epoch, generation)| {
            *epoch == asked.epoch && *generation >= asked.generation
        });
        // Hundreds may be waiting whose records have not been read yet.
        is_written && self.firewall.as_ref().is_none_or(Firewall::has_pods) && {
            let pod = self.plan().attachment(&asked.wait_for);
            let decided = self.plan().firewall().zip(pod);
            // What is wrong with host ports concerns no other pod.
            let are_served = self.host_ports_error.is_none()
                && (self.plan().policy().host_ports.is_none()
                    || self.plan().host_ports().is_some());
            let has_host_ports = are_served || pod.is_none_or(|pod| pod.host_ports.is_empty());
            decided.is_none_or(|(firewall, pod)| firewall.is_decided(pod)) && has_host_ports
        }
    }

    /// The kernel's settings that services' rules need.
    pub fn settings(&self) -> Vec<Setting> {
        let (plan, policy) = (self.plan(), self.plan().policy());
        let served = plan.host_ports().map(|host_ports| host_ports.served());
        let has_host_ports = served.is_some_and(|served| !served.is_empty());
        if !policy.services && !has_host_ports {
            return Vec::new();
        }
        let mut settings = live(plan);
        // Only after the rule that protects 127.0.0.0/8 from neighbours.
        let is_guarded = self.synced && self.host_ports_error.is_none();
        let of_host_ports = policy.host_ports.filter(|_| has_host_ports && is_guarded);
        let of_node_ports = on_loopback(&policy.node_ports).filter(|_| self.synced);
        settings.extend(of_node_ports.or_else(|| host_ports_on_loopback(of_host_ports)));
        settings
    }

    /// Times of the pods' and Services' changes that were programmed since the last call, with their
    /// slices' families: the start of kube-proxy's `network_programming_duration_seconds`.
    pub fn take_triggers(&mut self) -> Vec<(Family, Timestamp)> {
        std::mem::take(&mut self.programmed_triggers)
    }

    /// Whether what is decided about NetworkPolicies is in the kernel.
    pub fn has_firewall(&self) -> bool {
        let is_known = self.plan().firewall().is_some_and(FirewallPlan::is_known);
        is_known && self.firewall.as_ref().is_some_and(Firewall::has_pods)
    }

    /// Whether a NetworkPolicy changed since the last call.
    pub fn take_policies_changed(&mut self) -> bool {
        std::mem::take(&mut self.policies_changed)
    }

    /// The bridges whose frames IP rules do not see. Returns whether that changes the rules.
    pub fn set_without_netfilter(&mut self, bridges: BTreeSet<Arc<str>>) -> bool {
        self.firewall.as_mut().is_some_and(|firewall| firewall.set_without_netfilter(bridges))
    }

    /// What was done, for `status`.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The same, to add to it.
    pub fn activity_mut(&mut self) -> &mut Activity {
        &mut self.activity
    }

    /// Notes that what drains now, and did not before, does since `at` (RFC 3339 in UTC).
    pub fn note_draining(&mut self, at: &str) {
        self.activity.drains(&self.report.draining, at);
    }

    /// What the agent knows and has programmed. `problems` are the sources'. The caller adds what
    /// the engine does not know, such as the backend's name.
    pub fn status(&mut self, problems: Vec<String>) -> Status {
        status::status(self, problems)
    }

    /// The backend's figures, as of the last status.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Whether a look that costs hardly anything finds that others removed what is programmed. Then
    /// call [`Self::resync`].
    pub fn is_disturbed(&mut self) -> bool {
        self.backend.is_disturbed()
    }

    /// The health-check node ports, if they may have changed since the last call.
    pub fn take_health_ports(&mut self) -> Option<HealthPorts> {
        std::mem::take(&mut self.health_ports_due).then(|| self.plan().health_ports())?
    }

    /// The conntrack entries that may be stale, now that the plan is in the kernel. Each is
    /// returned once.
    pub fn take_stale_candidates(&mut self) -> StaleCandidates {
        self.candidate_tracker.take(self.planner.plan())
    }

    /// The conntrack entries that may be stale since the last [`Self::take_stale_candidates`].
    pub fn stale_candidates(&self) -> &StaleCandidates {
        self.candidate_tracker.candidates()
    }

    /// Notes that a search for these candidates is over.
    pub fn searched(&self, candidates: &StaleCandidates) {
        if let Some(firewall) = &self.firewall {
            firewall.departed_are_gone(self.plan(), candidates.departed());
        }
    }

    /// Whether the first full set of rules is in the kernel.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

impl<B: Backend> ProgrammedPlan for Engine<B> {
    fn planner(&self) -> &Planner {
        &self.planner
    }

    fn is_synced(&self) -> bool {
        self.synced
    }

    fn is_complete(&self) -> bool {
        self.is_idle() && self.report.settled && self.report.contended.is_none()
    }

    fn has_rejected(&self) -> bool {
        !self.report.rejected.is_empty()
    }

    fn is_rejected(&self, frontend: &Frontend) -> bool {
        !self.backend.rejected(frontend).is_empty()
    }
}

/// Warns of a claim that another one has taken.
fn warn_of(lost: &Conflict) {
    let Conflict { key, winner, loser } = lost;
    warn!(%key, service = %winner, %loser, "two services claim one address and port");
}
