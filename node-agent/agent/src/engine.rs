//! Joins model, plan and backend: it takes events and programs the kernel. It has no task, no
//! socket and no clock; `agent` drives it.

mod error;
mod pass;
mod status;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, Watch};
use denizen_state::socket::WaitFor;
use tracing::{info, warn};

pub use self::error::EngineError;
use self::pass::Failures;
pub use self::pass::{Pass, Progress};
use crate::control::Sampled;
use denizen_backend::chosen::{BackendConfig, Chosen, ChosenError};
use denizen_backend::firewall::{self, Firewall, Records};
use denizen_backend::host_ports::{self, HostPorts};
use denizen_backend::nftables;
use denizen_backend::sysctl::{Setting, host_ports_on_loopback, live, on_loopback};
use denizen_backend::{Backend, Draining, Figures, Repair, Report};
use denizen_iptables::Variant;
use denizen_model::{Event, Model, PodVersion};
use denizen_observe::names::Names;
use denizen_observe::status::metrics::SyncExtent;
use denizen_observe::status::{DrainingSince, Status};
use denizen_plan::explain::{ExplainStep, Explanation, FirstPacket, NotYet, explain};
use denizen_plan::{
    Capabilities, Conflict, FirewallPlan, Frontend, FrontendKey, Plan, PlanChanges, Planner,
    Policy, ServicePlan,
};
use denizen_routing::ProgrammedPlan;
use denizen_routing::routes::UNSERVED;

#[derive(Debug)]
pub struct Engine<B = Chosen> {
    planner: Planner,
    backend: B,
    /// The pod firewall's tables; `None` if it is off.
    firewall: Option<Firewall>,
    /// Host ports' tables; `None` in tests without a kernel.
    host_ports: Option<HostPorts>,
    failures: Failures,
    /// As of the last pass.
    report: Report,
    /// As of the last status.
    figures: Figures,
    synced: bool,
    /// The state file's version whose pods are in the kernel.
    programmed_pods: Option<PodVersion>,
    /// Since when each draining endpoint has been draining.
    draining: BTreeMap<Draining, DrainingSince>,
}

impl Engine {
    /// Opens a backend in this thread's network namespace.
    ///
    /// # Errors
    /// [`ChosenError`] if the kernel or the backend's programs cannot be used.
    pub fn open(policy: Policy, config: BackendConfig) -> Result<Self, ChosenError> {
        let backend = Chosen::open(config)?;
        let connection = policy.firewall.map(|_| backend.sibling_connection()).transpose()?;
        let firewall = connection.map(Firewall::new);
        // Also if host ports are off: an earlier run may have left its tables.
        let host_ports = Some(HostPorts::new(backend.sibling_connection()?));
        let mut engine = Self::new(policy, config.name.capabilities(), backend);
        (engine.firewall, engine.host_ports) = (firewall, host_ports);
        let plan = engine.planner.plan();
        let nothing = PlanChanges::default();
        engine.host_ports.iter_mut().for_each(|host_ports| host_ports.update(plan, &nothing));
        Ok(engine)
    }

    /// Gives the firewall a way to read the recorded pods that does not wait for events.
    pub fn with_records(self, records: Records) -> Self {
        let firewall = self.firewall.map(|firewall| firewall.with_records(records));
        Self { firewall, ..self }
    }

    /// Watches nf_tables from now on for changes by other programs: neither by this engine's
    /// sockets nor by the one with the portid `sibling`.
    pub fn watch(&self, sibling: Option<u32>) -> Result<Watch, NetlinkError> {
        let own = self.backend.portid().into_iter().chain(sibling);
        let own = own.chain(self.firewall.as_ref().map(Firewall::portid));
        let own = own.chain(self.host_ports.as_ref().map(HostPorts::portid));
        const TABLES: [&str; 4] = [nftables::TABLE, firewall::TABLE, host_ports::TABLE, UNSERVED];
        Watch::open(&TABLES, own.collect())
    }

    /// Another client of nf_tables, whose batches do not count as foreign changes.
    pub fn sibling_connection(&self) -> Result<Kernel, NetlinkError> {
        self.backend.sibling_connection()
    }

    /// As [`Chosen::remove_other_tables`].
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
            draining: draining.collect(),
            report,
            backend,
            firewall: None,
            host_ports: None,
            failures: Failures::default(),
            figures: Figures::default(),
            synced: false,
            programmed_pods: None,
        }
    }

    /// Applies events to the model. Nothing is planned before [`Self::decide`].
    pub fn apply(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
    }

    /// Whether there is nothing to program.
    pub fn is_idle(&self) -> bool {
        self.planner.is_idle() && self.failures.iter().next().is_none()
    }

    /// Programs what is decided; with [`SyncExtent::Full`], also repairs what other programs
    /// changed. `at` is the time (RFC 3339 in UTC).
    ///
    /// The pod firewall comes first: as soon as the backend knows a pod as local, connections may
    /// use it. Host ports come last: when they lead packets to a pod, the pod's policies apply
    /// already, and the backend knows it as local.
    pub fn program(&mut self, extent: SyncExtent, at: &str) -> Pass<B::Error> {
        let plan = self.planner.plan();
        let firewall =
            self.firewall.as_mut().map_or(Ok(Repair::default()), |tables| match extent {
                SyncExtent::Full => tables.resync(plan),
                SyncExtent::Partial => tables.sync(plan),
            });
        let backend = match extent {
            SyncExtent::Full => self.backend.resync(),
            SyncExtent::Partial => self.backend.sync(),
        };
        let host_ports =
            self.host_ports.as_mut().map_or(Ok(Repair::default()), |tables| match extent {
                SyncExtent::Full => tables.resync(),
                SyncExtent::Partial => tables.sync(),
            });
        let of_backend = backend.as_ref().copied().unwrap_or_default();
        let results = [
            firewall.map_err(EngineError::Firewall),
            backend.map_err(EngineError::Backend),
            host_ports.map_err(EngineError::HostPorts),
        ];
        self.failures = Failures::of(&results);
        self.report = self.backend.report();
        self.note_programmed();
        let stale_frontends = self.stale_frontends(of_backend);
        let mut drift = self.report.repaired;
        let mut results = results.into_iter();
        let result = results.try_fold(Repair::default(), |all, repair| Ok(all + repair?));
        let result = result.map(|repair| {
            if extent == SyncExtent::Full {
                drift = drift + repair;
            }
            self.note_draining(at);
            match (&self.report.contended, self.report.is_programmed) {
                (Some(_), _) => Progress::Contended,
                (None, true) => Progress::Complete,
                (None, false) => Progress::Continues,
            }
        });
        Pass { result, drift, stale_frontends }
    }

    /// Notes that another program changed our tables.
    pub fn note_foreign_change(&mut self) {
        if let Some(firewall) = &mut self.firewall {
            firewall.note_foreign_change();
        }
        if let Some(host_ports) = &mut self.host_ports {
            host_ports.note_foreign_change();
        }
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
        if let Some(error) = self.report.contended.as_ref().or(self.failures.backend.as_ref()) {
            explanation.steps.push(ExplainStep {
                what: "programming failed; the kernel may have old rules".to_owned(),
                why: error.clone(),
            });
        }
        Ok(explanation)
    }

    pub fn model(&self) -> &Model {
        self.planner.model()
    }

    pub fn plan(&self) -> &Plan {
        self.planner.plan()
    }

    /// Turns sampling on or off, with the next [`Self::program`]: additional rules have the kernel
    /// report packets that are dropped or refused.
    pub fn sample_drops(&mut self, on: bool) -> Sampled {
        if let Some(firewall) = &mut self.firewall {
            firewall.sample_drops(on);
        }
        let services = self.backend.sample_drops(on);
        Sampled { services, network_policies: self.firewall.is_some() }
    }

    /// The names of addresses and frontends in the plan.
    pub fn names(&self) -> Names {
        Names::of(self.plan(), self.planner.model(), &self.draining)
    }

    /// The backend's state, as of the last pass.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Waits until [`Self::program`] has something to do without a new event.
    pub async fn wait(&mut self) {
        self.backend.wait().await;
    }

    /// Notes that the plan's pods are in the kernel. Also after a full pass: an ADD that waits for
    /// a pod must not wait for the next change.
    fn note_programmed(&mut self) {
        let is_decided = |decided: &FirewallPlan| decided.is_known() || decided.is_left_open();
        let is_firewalled =
            self.plan().firewall().is_none_or(is_decided) && self.failures.firewall.is_none();
        let is_programmed = self.failures.backend.is_none();
        if is_programmed && is_firewalled {
            self.synced |= self.plan().services().is_some() && self.report.is_programmed;
        }
        let has_pods = self.firewall.as_ref().is_none_or(Firewall::has_pods);
        if (is_programmed || self.report.has_pods) && has_pods {
            self.programmed_pods = self.plan().pods().and_then(|pods| pods.version.clone());
        }
    }

    /// The [`Pass::stale_frontends`] after the backend's `repair`.
    fn stale_frontends(&mut self, repair: Repair) -> Vec<FrontendKey> {
        let mut stale = std::mem::take(&mut self.report.left_frontends);
        if !self.report.repaired.is_none() || !repair.is_none() {
            let frontends = self.plan().services().into_iter().flat_map(ServicePlan::frontends);
            stale.extend(frontends.map(|frontend| frontend.key));
        }
        stale
    }

    /// Records `at` as the start for endpoints that have begun to drain.
    fn note_draining(&mut self, at: &str) {
        let mut before = std::mem::take(&mut self.draining);
        let mut since = |endpoint: &Draining| {
            before.remove(endpoint).unwrap_or_else(|| DrainingSince(Some(at.to_owned())))
        };
        let draining = self.report.draining.iter();
        self.draining = draining.map(|endpoint| (*endpoint, since(endpoint))).collect();
    }

    /// Plans what changed, and gives it to the backends. [`Self::plan`] and [`Self::program`] then
    /// refer to this plan.
    pub fn decide(&mut self) -> PlanChanges {
        let changes = self.planner.update();
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
        changes
    }

    /// Whether the kernel has the pods of the requested generation of the state file (or a later
    /// one), with everything that is decided about them, and nothing is undecided about the
    /// requested pod.
    pub fn has_programmed(&self, asked: &WaitFor) -> bool {
        let is_written = self.programmed_pods.as_ref().is_some_and(|(epoch, generation)| {
            *epoch == asked.epoch && *generation >= asked.generation
        });
        // Cheap tests first: hundreds of ADDs may wait whose records have not been read yet.
        is_written && self.firewall.as_ref().is_none_or(Firewall::has_pods) && {
            let pod = self.plan().attachment(&asked.wait_for);
            let decided = self.plan().firewall().zip(pod);
            let are_served = self.failures.host_ports.is_none()
                && (self.plan().policy().host_ports.is_none()
                    || self.plan().host_ports().is_some());
            // If host ports failed, only pods that have some must wait. Which ones a removed pod
            // had is not known here: an earlier run may have programmed them.
            let asks_for_none = pod.map_or(!asked.removed, |pod| pod.host_ports.is_empty());
            let has_host_ports = are_served || asks_for_none;
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
        // route_localnet only once the rule that protects 127.0.0.0/8 from neighbours is in the
        // kernel.
        let is_guarded = self.synced && self.failures.host_ports.is_none();
        let of_host_ports = policy.host_ports.filter(|_| has_host_ports && is_guarded);
        let of_node_ports = on_loopback(&policy.node_ports).filter(|_| self.synced);
        settings.extend(of_node_ports.or_else(|| host_ports_on_loopback(of_host_ports)));
        settings
    }

    /// Whether what is decided about NetworkPolicies is in the kernel.
    pub fn has_firewall(&self) -> bool {
        let is_known = self.plan().firewall().is_some_and(FirewallPlan::is_known);
        is_known && self.firewall.as_ref().is_some_and(Firewall::has_pods)
    }

    /// Sets the bridges whose frames IP rules do not see. Returns whether the rules must change.
    pub fn set_unfiltered_bridges(&mut self, bridges: BTreeSet<Arc<str>>) -> bool {
        self.firewall.as_mut().is_some_and(|firewall| firewall.set_unfiltered_bridges(bridges))
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

    /// A cheap check whether other programs removed what is programmed. If so, a pass with
    /// [`SyncExtent::Full`] repairs it.
    pub fn has_foreign_change(&mut self) -> bool {
        self.backend.has_foreign_change()
    }

    /// Removes, by the next [`Self::program`], rules that no pod uses any more. Returns whether
    /// there are any.
    pub fn retire(&mut self) -> bool {
        self.host_ports.as_mut().is_some_and(HostPorts::retire)
    }

    /// Notes that the connections of these addresses' former pods have been deleted.
    pub fn departed_are_gone(&self, departed: Vec<IpAddr>) {
        if let Some(firewall) = &self.firewall {
            firewall.departed_are_gone(self.plan(), departed.into_iter());
        }
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
        self.is_idle() && self.report.is_programmed && self.report.contended.is_none()
    }

    fn has_rejected(&self) -> bool {
        !self.report.rejected.is_empty()
    }

    fn is_rejected(&self, frontend: &Frontend) -> bool {
        !self.backend.rejected(frontend).is_empty()
    }
}

/// Warns of an address and port that another service had first.
fn warn_of(lost: &Conflict) {
    let Conflict { key, winner, loser } = lost;
    warn!(%key, service = %winner, %loser, "two services claim one address and port");
}
