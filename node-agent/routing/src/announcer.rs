//! Announces what this node serves: after its rules are in the kernel, and no longer than they are.

#![expect(clippy::disallowed_methods, reason = "announcements are paced, and a drain takes time")]

mod fresh;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use denizen_route::{RouteError, RouteWatch};
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

use self::fresh::Freshness;
use crate::direct::{note_removed, relevant};
use crate::pollable::pollable;
use crate::routes::{AnnouncedRoutes, RouteSync, Unserved};
use crate::{AnnounceConfig, AnnouncementsStatus, RoutingReport, RoutingSettings, SendNotice};
use denizen_model::{LocalPod, Nodes, Notice, NoticeReason, NoticeSubject, OtherNode, ServiceName};
use denizen_nft::Kernel;
use denizen_plan::explain::Announced;
use denizen_plan::{
    AnnounceInputs, AnnouncePlan, Announcements, Drain, DroppedFrontend, Frontend, NetworkSurvey,
    Plan, PlanChanges, Planner, PrefixOwner, Withheld, concerned, is_draining, newest, single_pods,
};
use denizen_text::describe;

/// Decides and reads again at least this often: the kernel sends no notification when rules (`ip
/// rule`) change.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Minimum pause between reactions to foreign changes.
const REST: Duration = Duration::from_millis(50);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The plan, and how much of it the kernel has.
pub trait ProgrammedPlan {
    fn planner(&self) -> &Planner;

    /// Whether the first full set of rules is in the kernel.
    fn is_synced(&self) -> bool;

    /// Whether everything that is known is planned and in the kernel.
    fn is_complete(&self) -> bool;

    /// Whether the kernel rejects any rule.
    fn has_rejected(&self) -> bool;

    /// Whether the kernel rejects a rule of this frontend.
    fn is_rejected(&self, frontend: &Frontend) -> bool;
}

/// Decides what is announced, and keeps it in the kernel's table.
pub struct Announcer {
    config: AnnounceConfig,
    routes: AnnouncedRoutes,
    unserved: Unserved,
    /// Why packets that no service takes cannot be refused.
    unrefused: Option<String>,
    routes_changed: Arc<Notify>,
    send_notice: SendNotice,
    /// The services that changes concern since the last decision; `None` before the first.
    concerned: Option<BTreeSet<ServiceName>>,
    drained: Drained,
    freshness: Freshness,
    /// The other nodes at the last decision.
    other_nodes: OtherNodes,
    pod_cidrs: Vec<String>,
    decided: AnnouncePlan,
    /// The pods that the kernel was asked about, and what it reported.
    surveyed: Option<(Interfaces, NetworkSurvey)>,
    published: RouteSync,
    repaired: u64,
    /// Why the kernel could not be asked or changed.
    failure: Option<String>,
    retry: Option<Instant>,
}

/// Addresses of pods, each with the interface that leads there.
type Interfaces = Vec<(IpAddr, Arc<str>)>;

/// All nodes but this one, by name.
type OtherNodes = Arc<BTreeMap<Arc<str>, OtherNode>>;

/// Whether this node drains, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// It is not known whether it drains.
    Unknown,
    No,
    Until(Instant),
    /// It drained when this agent started, or has drained for long enough.
    Over,
}

impl Announcer {
    /// Starts the announcer, if announcements are on. Otherwise withdraws what an earlier run has
    /// left.
    pub fn open(
        settings: &RoutingSettings,
        send_notice: SendNotice,
        mut kernel: Kernel,
    ) -> Result<Option<Self>, RouteError> {
        let Some(config) = settings.announced() else {
            note_removed(AnnouncedRoutes::remove_all());
            if let Err(error) = Unserved::remove(&mut kernel) {
                warn!(error = describe(&error), "cannot look for old tables");
            }
            return Ok(None);
        };
        let routes = AnnouncedRoutes::open(config.table)?;
        let routes_changed = Arc::new(Notify::new());
        tokio::spawn(listen(config.table, routes.portid(), routes_changed.clone()));
        Ok(Some(Self {
            config: config.clone(),
            routes,
            unserved: Unserved::new(kernel),
            unrefused: None,
            routes_changed,
            send_notice,
            concerned: None,
            drained: Drained::Unknown,
            freshness: Freshness::default(),
            other_nodes: OtherNodes::default(),
            pod_cidrs: Vec::new(),
            decided: AnnouncePlan::default(),
            surveyed: None,
            published: RouteSync::default(),
            repaired: 0,
            failure: None,
            retry: None,
        }))
    }

    pub async fn due(&self) {
        let drained = match self.drained {
            Drained::Until(until) => Some(until),
            Drained::Unknown | Drained::No | Drained::Over => None,
        };
        let timer = async {
            match drained.into_iter().chain(self.freshness.ends()).chain(self.retry).min() {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.routes_changed.notified() => {}
            () = timer => {}
        }
    }

    /// Another program may have changed something.
    pub fn note_foreign_change(&mut self) {
        self.routes.note_foreign_change();
        self.surveyed = None;
        self.retry = None;
    }

    pub fn portid(&self) -> u32 {
        self.unserved.portid()
    }

    /// Notes which services a change of the plan concerns.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        if let Some(noted) = &mut self.concerned {
            noted.extend(concerned(plan, changes).cloned());
        }
    }

    /// Decides again and withdraws. Announces too, if everything that is planned is programmed.
    pub fn follow(&mut self, programmed: &impl ProgrammedPlan) {
        self.withdraw(programmed, false);
        if programmed.is_complete() {
            self.announce(programmed);
        }
    }

    /// Whether the other nodes differ from those of the last decision.
    pub fn differs(&self, nodes: &Nodes) -> bool {
        !Arc::ptr_eq(&nodes.others, &self.other_nodes)
    }

    pub fn withdraw(&mut self, programmed: &impl ProgrammedPlan, full_resync: bool) {
        if full_resync {
            self.unserved.note_foreign_change();
        }
        let withdrawn = self.decide(programmed).and_then(|()| match self.decided.decided() {
            Some(wanted) => self.routes.withdraw(wanted),
            None => Ok(()),
        });
        self.note_failure(withdrawn.err());
    }

    pub fn announce(&mut self, programmed: &impl ProgrammedPlan) -> bool {
        if (programmed.has_rejected() || self.decided.has_rejected())
            && let Err(error) = self.decide(programmed)
        {
            self.note_failure(Some(error));
            return false;
        }
        let Some(wanted) = self.decided.decided().filter(|_| programmed.is_synced()) else {
            return false;
        };
        // Unserved addresses are refused before they are announced, and until they are withdrawn.
        let refused = self.unserved.sync(wanted.service_addresses().collect());
        let unrefused = refused.err().map(|error| {
            format!("packets that no service takes are not refused: {}", describe(&error))
        });
        if let Some(error) = unrefused.as_ref().filter(|_| self.unrefused != unrefused) {
            error!(error, "cannot keep the table of announced addresses");
        }
        self.unrefused = unrefused;
        match self.routes.sync(wanted) {
            Ok(published) => {
                if published.repaired > 0 {
                    warn!(routes = published.repaired, "repaired announcements");
                    self.repaired += published.repaired as u64;
                }
                let new =
                    published.errors.iter().filter(|error| !self.published.errors.contains(error));
                new.for_each(|error| error!(error, "cannot announce as decided"));
                let is_new = published.added > 0;
                self.published = published;
                self.note_failure(None);
                is_new
            }
            Err(error) => {
                self.note_failure(Some(error));
                false
            }
        }
    }

    pub fn explain(&self, address: IpAddr) -> Announced {
        let failure = self.failure.iter().chain(&self.published.errors).next();
        let is_published = |prefix: &_| self.published.prefixes.contains(prefix);
        Announced::of(address, self.decided.decided(), is_published, failure.map(String::as_str))
    }

    pub fn report(&self, pods: &[LocalPod], report: &mut RoutingReport) {
        let decided = self.decided.decided();
        let wanted = decided.iter().flat_map(|decided| &decided.wanted);
        let mut announced: BTreeMap<String, usize> = BTreeMap::new();
        for (_, announcement) in
            wanted.clone().filter(|(at, _)| self.published.prefixes.contains(*at))
        {
            *announced.entry(announcement.class.as_str().to_owned()).or_default() += 1;
        }
        let refused = decided.into_iter().flat_map(Announcements::refused).map(withheld_text);
        let refused: Vec<String> = refused.collect();
        let dropped = decided.into_iter().flat_map(|decided| decided.dropped.values().flatten());
        let dropped = dropped.map(ToString::to_string);
        report.warnings.extend(refused.iter().cloned().chain(dropped));
        report.announcements = Some(AnnouncementsStatus {
            is_known: decided.is_some(),
            pod_cidrs: self.pod_cidrs.clone(),
            table: self.config.table,
            wanted: wanted.count(),
            in_table: self.published.prefixes.len(),
            announced,
            uncovered_pods: decided.map_or(0, |decided| decided.uncovered(pods).count()),
            refused,
            is_draining: matches!(self.drained, Drained::Until(_) | Drained::Over),
            repaired: self.repaired,
        });
        let errors = self.failure.iter().chain(&self.unrefused).chain(&self.published.errors);
        report.errors.extend(errors.cloned());
    }

    /// Decides what this node announces, by what has changed since the last time. Nothing is
    /// decided while a first list is missing: half a picture would withdraw what is still wanted.
    fn decide(&mut self, programmed: &impl ProgrammedPlan) -> Result<(), RouteError> {
        let settings = &self.config.settings;
        let planner = programmed.planner();
        let (plan, model) = (planner.plan(), planner.model());
        let (Some(world), Some(nodes)) = (model.snapshot(), model.nodes()) else { return Ok(()) };
        let (Some(_pods), Some(_services)) = (plan.pods(), plan.services()) else { return Ok(()) };
        let singles = single_pods(settings, &nodes, plan.recorded());
        self.drained =
            self.drained.now(is_draining(world.node(), settings), self.config.drain_wait);
        let interface = |(pod, address): &(&LocalPod, IpAddr)| (*address, pod.interface.clone());
        let interfaces: Interfaces = singles.iter().map(interface).collect();
        if self.surveyed.as_ref().is_none_or(|(pods, _)| *pods != interfaces) {
            self.surveyed = Some((interfaces, self.routes.survey(&singles)?));
        }
        let Some((_, surveyed)) = &self.surveyed else { return Ok(()) };
        let times = newest(&singles).into_iter().map(|(ip, pod)| (ip, pod.added_at.clone()));
        let recorded = self.freshness.update(times, Instant::now(), Timestamp::now());
        let concerned = self.concerned.replace(BTreeSet::new());
        let by = AnnounceInputs {
            settings,
            plan,
            world,
            nodes: &nodes,
            is_gone: world.node().is_none() && !model.is_node_eligible(),
            drain: self.drained.drain(),
            surveyed,
            recorded: &recorded,
            rejects: programmed.has_rejected(),
            is_rejected: &|frontend| programmed.is_rejected(frontend),
        };
        let noted = self.decided.update(&by, concerned.as_ref());
        self.other_nodes = nodes.others;
        let ranges = nodes.own.iter().flat_map(|node| &node.pod_cidrs);
        self.pod_cidrs = ranges.map(ToString::to_string).collect();
        noted.refused.iter().for_each(|(prefix, withheld)| self.note_withheld(prefix, withheld));
        noted.dropped.iter().for_each(|dropped| self.note_dropped(dropped));
        Ok(())
    }

    /// Logs and reports a prefix that is withheld from now on, and about which somebody must act.
    fn note_withheld(&self, prefix: &IpNetwork, withheld: &Withheld) {
        let text = withheld_text((prefix, withheld));
        warn!(problem = text, "an address is not announced");
        let about = match &withheld.owner {
            PrefixOwner::Service(service) => NoticeSubject::Service(service.clone()),
            PrefixOwner::Node | PrefixOwner::Pod(_) => NoticeSubject::Node,
        };
        (self.send_notice)(Notice { about, reason: NoticeReason::NotAnnounced, text });
    }

    /// Logs and reports connections that are dropped from now on. The event's text is the same on
    /// every node that drops them, so there is only one event.
    fn note_dropped(&self, dropped: &DroppedFrontend) {
        warn!(problem = %dropped, "an announced address is shared by a Service without endpoints here");
        let DroppedFrontend { key, service, announced_for } = dropped;
        let text = format!(
            "connections to {key} are dropped by each node that announces the address for {announced_for} \
             and has no endpoint of this Service: its policy is Local"
        );
        let about = NoticeSubject::Service(service.clone());
        (self.send_notice)(Notice { about, reason: NoticeReason::SharedAddress, text });
    }

    fn note_failure(&mut self, failure: Option<RouteError>) {
        let failure = failure.map(|error| describe(&error));
        if let Some(error) = failure.as_ref().filter(|_| self.failure != failure) {
            error!(error, "cannot keep the announcements; will retry");
        }
        self.retry = failure.is_some().then(|| Instant::now() + RETRY);
        self.failure = failure;
    }
}

impl Drained {
    /// The state now. A node that was draining when this agent started has drained for long enough:
    /// a restart must not bring back what was withdrawn.
    fn now(self, is_draining: bool, wait: Duration) -> Self {
        let now = Instant::now();
        let next = match (self, is_draining) {
            (_, false) => Self::No,
            (Self::Unknown | Self::Over, true) => Self::Over,
            (Self::No, true) => Self::Until(now + wait),
            (Self::Until(until), true) if until <= now => Self::Over,
            (Self::Until(until), true) => Self::Until(until),
        };
        if matches!(next, Self::Until(_)) && self == Self::No {
            info!("this node drains: routers are asked to prefer others");
        }
        next
    }

    fn drain(self) -> Drain {
        match self {
            Self::Unknown | Self::No => Drain::No,
            Self::Until(_) => Drain::Begun,
            Self::Over => Drain::Over,
        }
    }
}

/// The text of a warning.
fn withheld_text((prefix, withheld): (&IpNetwork, &Withheld)) -> String {
    format!("{prefix} of {} is not announced: {}", withheld.owner, withheld.reason)
}

/// Notifies of changes by other programs, and from time to time without a change.
async fn listen(table: u32, portid: u32, routes_changed: Arc<Notify>) {
    loop {
        if let Err(error) = notify_of_changes(table, portid, &routes_changed).await {
            warn!(error = format!("{error:#}"), "cannot listen to changes of routes");
        }
        sleep(RETRY).await;
        routes_changed.notify_one();
    }
}

async fn notify_of_changes(table: u32, portid: u32, routes_changed: &Notify) -> anyhow::Result<()> {
    let mut watch = pollable(RouteWatch::open(vec![portid])?)?;
    loop {
        let depend_on = |change: &_| AnnouncedRoutes::depend_on(change, table);
        tokio::select! {
            relevant = relevant(&mut watch, depend_on) => relevant?,
            () = sleep(AT_LEAST_EVERY) => {}
        }
        routes_changed.notify_one();
        sleep(REST).await;
    }
}
