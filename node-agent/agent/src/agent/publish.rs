//! What the loop publishes for the HTTP servers: health, the health-check node ports, metrics.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem::{replace, take};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use denizen_state::AttachmentId;
use denizen_state::run_dir::STATE_FILE;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{mpsc, watch};

use super::history::History;
use crate::config::Config;
use crate::control::AgentRequest;
use crate::engine::Engine;
use crate::http::{Published, StartFacts};
use denizen_backend::Backend;
use denizen_model::{Event, Family, Listing, PodSet};
use denizen_observe::status::health::LoopState;
use denizen_observe::status::metrics::{Metrics, SyncExtent, ip_family};
use denizen_plan::{HealthPorts, PlanChanges};
use denizen_routing::ProgrammedPlan as _;

/// The loop's end of [`Published`].
#[derive(Debug)]
pub(super) struct Publisher {
    loop_state: watch::Sender<LoopState>,
    ports: watch::Sender<HealthPorts>,
    pub(super) metrics: Metrics,
    pub(super) history: History,
    state_file: PathBuf,
    /// The attachments of the last pod set.
    last_attachments: Option<BTreeSet<AttachmentId>>,
    /// When the oldest record of a pod that is not programmed yet was written.
    oldest_unprogrammed_record: Option<SystemTime>,
    /// The first list of NetworkPolicies is complete: later events are changes.
    policies_listed: bool,
    /// When the oldest change of a NetworkPolicy that is not programmed yet was received.
    policy_changed: Option<Instant>,
    /// Whether a changed NetworkPolicy changed the plan. A new label on a policy, for instance,
    /// does not.
    policies_differ: bool,
    /// When pods and Services changed whose EndpointSlices are not programmed yet, each with the
    /// slice's family: the start of kube-proxy's `network_programming_duration_seconds`.
    triggers: Vec<(Family, Timestamp)>,
    /// The health-check node ports may differ from those that are published.
    health_ports_differ: bool,
    /// The widest extent of the attempts since the last success.
    extent: SyncExtent,
}

impl Publisher {
    /// A publisher and its receivers. `requests` is the channel to the loop.
    pub(super) fn new(
        config: &Config,
        requests: mpsc::Sender<AgentRequest>,
        start: StartFacts,
    ) -> (Self, Published) {
        let (loop_state, loop_state_receiver) = watch::channel(LoopState::starting(start.instant));
        let (ports, ports_receiver) = watch::channel(HealthPorts::default());
        let metrics = Metrics::default();
        let published = Published {
            loop_state: loop_state_receiver,
            ports: ports_receiver,
            metrics: metrics.clone(),
            requests,
            start: Arc::new(start),
        };
        let state_file = config.run_dir.join(STATE_FILE);
        let publisher = Self::of(loop_state, ports, metrics, state_file);
        (publisher, published)
    }

    /// The state before the first event.
    fn of(
        loop_state: watch::Sender<LoopState>,
        ports: watch::Sender<HealthPorts>,
        metrics: Metrics,
        state_file: PathBuf,
    ) -> Self {
        Self {
            loop_state,
            ports,
            metrics,
            history: History::default(),
            state_file,
            last_attachments: None,
            oldest_unprogrammed_record: None,
            policies_listed: false,
            policy_changed: None,
            policies_differ: false,
            triggers: Vec::new(),
            health_ports_differ: false,
            extent: SyncExtent::Full,
        }
    }

    /// Notes that the loop runs. `predecessor_rules_remain`: rules of a previous backend cannot
    /// be removed.
    pub(super) fn alive(&self, now: Instant, predecessor_rules_remain: bool) {
        self.loop_state.send_modify(|loop_state| {
            loop_state.alive = now;
            loop_state.predecessor_rules_remain = predecessor_rules_remain;
        });
    }

    /// Publishes whether only a restart restores the run directory.
    pub(super) fn run_dir_lost(&self, lost: bool) {
        self.loop_state.send_modify(|loop_state| loop_state.run_dir_lost = lost);
    }

    /// Counts events that were received now.
    pub(super) fn taken(&mut self, events: &[Event], now: Instant) {
        let is_policy = |event: &Event| matches!(event, Event::NetworkPolicy(..));
        if self.policies_listed && events.iter().any(is_policy) {
            self.policy_changed.get_or_insert(now);
        }
        self.policies_listed |= events.contains(&Event::Listed(Listing::NetworkPolicies));
        let count = |(total, pending): &(Counter, Gauge)| {
            total.inc();
            pending.inc();
        };
        for event in events {
            let what = match event {
                Event::Service(..) | Event::ForeignService(..) => {
                    count(&self.metrics.like_kube_proxy.service_changes);
                    "service"
                }
                Event::Slice(..) => {
                    count(&self.metrics.like_kube_proxy.endpoint_changes);
                    "endpoint slice"
                }
                Event::Pods(pods) => {
                    self.note_pods(pods);
                    "pod set"
                }
                Event::Node(_) => "node",
                Event::ServiceCidr(..) => "service range",
                Event::Addresses(_) => "address list",
                Event::Egress(_) => "egress configuration",
                Event::Namespace(..) => "namespace",
                Event::ClusterPod(..) => "pod",
                Event::NetworkPolicy(..) => "network policy",
                Event::ClusterNetworkPolicy(..) => "cluster network policy",
                Event::OtherNode(..)
                | Event::Triggered(..)
                | Event::PodCoverage(_)
                | Event::Listed(_)
                | Event::Links(_)
                | Event::Refused(_) => continue,
            };
            self.history.note_change(what);
        }
    }

    /// Notes which published values a change of the plan affects, once it is programmed.
    pub(super) fn update(&mut self, changes: &PlanChanges) {
        self.policies_differ |= changes.network_policies;
        self.triggers.extend(&changes.triggers);
        self.health_ports_differ |= changes.health_checks || changes.node || changes.complete;
    }

    /// Notes that the events taken in change no rule.
    pub(super) fn unchanged(&mut self) {
        self.policy_changed = None;
    }

    /// Notes that everything decided about NetworkPolicies is in the kernel.
    pub(super) fn firewall_programmed(&mut self, now: Instant) {
        let is_changed = take(&mut self.policies_differ);
        let changed = self.policy_changed.take();
        if let Some(changed) = changed.filter(|_| is_changed) {
            let took = now.saturating_duration_since(changed);
            self.metrics.network_policy.programming.observe(took.as_secs_f64());
        }
    }

    /// Remembers when the record of an added pod was written: its programming is measured from
    /// then. If a later record has already replaced the file, from that record's time.
    fn note_pods(&mut self, pods: &PodSet) {
        let now: BTreeSet<AttachmentId> = pods.pods.iter().map(|pod| pod.id.clone()).collect();
        let is_added = self.last_attachments.as_ref().is_some_and(|last| !now.is_subset(last));
        self.last_attachments = Some(now);
        if is_added && self.oldest_unprogrammed_record.is_none() {
            let written = std::fs::metadata(&self.state_file).and_then(|file| file.modified());
            self.oldest_unprogrammed_record = written.ok();
        }
    }

    /// Notes that a change is queued, or that everything is to be compared with the kernel.
    pub(super) fn queued<B: Backend>(
        &mut self,
        engine: &Engine<B>,
        extent: SyncExtent,
        now: Instant,
    ) {
        self.metrics.like_kube_proxy.queued(seconds(Timestamp::now()));
        if extent == SyncExtent::Full {
            self.extent = extent;
        }
        self.loop_state.send_modify(|loop_state| {
            loop_state.alive = now;
            loop_state.node_eligible = engine.model().is_node_eligible();
            loop_state.waiting.get_or_insert(now);
        });
    }

    /// Notes that another program keeps writing the same rules, so nothing waits to be programmed.
    pub(super) fn contended(&self, now: Instant) {
        self.loop_state.send_modify(|loop_state| {
            loop_state.alive = now;
            loop_state.waiting = None;
            loop_state.contended = true;
        });
    }

    /// Notes that all changes since `begun` are in the kernel. Only now do load balancers
    /// get the new endpoints.
    pub(super) fn programmed<B: Backend>(
        &mut self,
        engine: &Engine<B>,
        begun: Instant,
        now: Instant,
    ) {
        let clock = Timestamp::now();
        self.measure(begun, now, clock);
        for (family, at) in take(&mut self.triggers) {
            // Another machine's clock may be ahead.
            let took = clock.duration_since(at).as_secs_f64().max(0.0);
            let metric = &self.metrics.like_kube_proxy.network_programming;
            metric.get_or_create(&ip_family(family)).observe(took);
        }
        self.loop_state.send_modify(|loop_state| {
            loop_state.alive = now;
            loop_state.waiting = None;
            loop_state.updated = Some(clock);
            loop_state.synced = engine.is_synced();
            loop_state.rules_rejected = engine.has_rejected();
            loop_state.unserved = !engine.report().serves;
        });
        if take(&mut self.health_ports_differ)
            && let Some(ports) = engine.plan().health_ports()
        {
            self.ports.send_if_modified(|before| replace(before, ports.clone()) != ports);
        }
    }

    /// Notes that the attempt that began at `begun` has failed, and for which families nf_tables
    /// was not programmed.
    pub(super) fn failed(
        &mut self,
        begun: Instant,
        now: Instant,
        error: &str,
        families: &[Family],
    ) {
        for family in families {
            let metric = &self.metrics.like_kube_proxy.nftables_failures;
            metric.get_or_create(&ip_family(*family)).inc();
        }
        self.history.tried(Timestamp::now(), now - begun, Some(error.to_owned()));
    }

    fn measure(&mut self, begun: Instant, now: Instant, clock: Timestamp) {
        self.history.tried(clock, now - begun, None);
        let metrics = &self.metrics.like_kube_proxy;
        let extent = replace(&mut self.extent, SyncExtent::Partial);
        metrics.synced(extent, (now - begun).as_secs_f64(), seconds(clock));
        metrics.service_changes.1.set(0);
        metrics.endpoint_changes.1.set(0);
        let oldest = self.oldest_unprogrammed_record.take();
        // If the clock was set back, there is no measurement.
        if let Some(Ok(took)) = oldest.map(|at| SystemTime::from(clock).duration_since(at)) {
            self.metrics.own.pod_programming.observe(took.as_secs_f64());
        }
    }
}

/// Seconds since 1970.
fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
