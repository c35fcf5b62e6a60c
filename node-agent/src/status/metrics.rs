//! What is counted and measured. Under kube-proxy's names (`pkg/proxy/metrics`) where the meaning
//! is the same, under `denizen_` where it is not. The loop writes it, and whoever scrapes reads it.

mod process;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::process::Process;

/// The type of [`Metrics::encode`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A gauge of seconds since 1970.
type Moment = Gauge<f64, AtomicU64>;
/// One label: its name and its value.
type Label = [(&'static str, &'static str); 1];

/// Everything that is counted and measured. A copy counts into the same numbers.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// What kube-proxy has too.
    pub like_kube_proxy: LikeKubeProxy,
    /// What it has not.
    pub own: Own,
    process: Process,
}

/// Named and meant as in kube-proxy. Both families are programmed together, so there is no
/// `ip_family`.
#[derive(Debug, Clone)]
pub struct LikeKubeProxy {
    /// From the first change taken in to the kernel's acknowledgement, in seconds.
    pub sync_duration: Histogram,
    /// From the change of a pod or Service, wherever it was made, to the kernel's acknowledgement
    /// here, in seconds. What was made before the agent started does not count.
    pub network_programming: Histogram,
    /// When that succeeded last.
    pub last_sync: Moment,
    /// When there was something to program last.
    pub last_queued: Moment,
    /// Services that were told otherwise, and those of them that are not programmed yet.
    pub service_changes: (Counter, Gauge),
    /// The same of EndpointSlices.
    pub endpoint_changes: (Counter, Gauge),
    /// Attempts that failed.
    pub sync_failures: Counter,
    /// Services under policy Local, by which policy, that have endpoints, and none here.
    pub no_local_endpoints: Family<Label, Gauge>,
    /// Looks for stale entries of the connection tracking, in seconds.
    pub conntrack_duration: Histogram,
    /// Entries that these looks took away.
    pub conntrack_deleted: Counter,
    /// Answers of `/healthz`, by status code.
    pub healthz: Family<Label, Counter>,
    /// Answers of `/livez`, by status code.
    pub livez: Family<Label, Counter>,
}

/// What only denizen has.
#[derive(Debug, Clone)]
pub struct Own {
    /// Attachments of this node's pods.
    pub local_pods: Gauge,
    /// Interfaces that look like a pod's and have no record.
    pub unrecorded_interfaces: Gauge,
    /// Services that are known.
    pub services: Gauge,
    /// Endpoints that connections are forwarded to, counted once for each service port.
    pub endpoints: Gauge,
    /// From the record that an ADD wrote to the kernel's acknowledgement, in seconds.
    pub pod_programming: Histogram,
    /// How long ADDs waited for the agent, in seconds.
    pub plugin_wait: Histogram,
    /// ADDs that waited, by what came of it.
    pub plugin_waits: Family<Label, Counter>,
    /// How often somebody else's change was repaired.
    pub drift_repaired: Counter,
    /// Packets that found no endpoint in any slot.
    pub missed_lookups: Counter,
    /// New clients of services with session affinity that found the map of all clients full, by how
    /// they are remembered.
    pub affinity_crowded: Family<Label, Counter>,
    /// Elements that each set of the rules should have; of the maps of clients, those that it has.
    pub elements: Family<[(&'static str, String); 2], Gauge>,
    /// How much is wrong right now.
    pub problems: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let like_kube_proxy =
            LikeKubeProxy::register(registry.sub_registry_with_prefix("kubeproxy"));
        let own = Own::register(registry.sub_registry_with_prefix("denizen"));
        let process = Process::register(registry.sub_registry_with_prefix("process"));
        Self { registry: Arc::new(registry), like_kube_proxy, own, process }
    }
}

impl Metrics {
    /// Everything as OpenMetrics text.
    pub fn encode(&self) -> String {
        self.process.measure();
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }
}

/// A histogram whose first bucket ends at `first` seconds, and each other one at twice the one
/// before.
fn doubling(first: f64, buckets: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, buckets))
}

/// kube-proxy's own for its SLI: 0.25 s to 5 minutes.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from))
}

/// Series that are there from the start: what never happened is 0, not missing.
fn from_zero<M: Default + Clone>(
    family: &Family<Label, M>,
    name: &'static str,
    values: &[&'static str],
) {
    for value in values {
        let _ = family.get_or_create(&[(name, *value)]);
    }
}

impl LikeKubeProxy {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            sync_duration: doubling(0.001, 15),
            network_programming: Histogram::new(programming_buckets()),
            last_sync: Moment::default(),
            last_queued: Moment::default(),
            service_changes: Default::default(),
            endpoint_changes: Default::default(),
            sync_failures: Counter::default(),
            no_local_endpoints: Family::default(),
            conntrack_duration: doubling(0.001, 15),
            conntrack_deleted: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
        };
        metrics.register_syncs(registry);
        metrics.register_rest(registry);
        metrics.register_conntrack(registry);
        metrics
    }

    fn register_conntrack(&self, registry: &mut Registry) {
        let (name, help) = (
            "conntrack_reconciler_sync_duration",
            "How long looking for stale flows took, and flushing them",
        );
        registry.register_with_unit(name, help, Unit::Seconds, self.conntrack_duration.clone());
        let help = "Stale flows that were flushed";
        registry.register(
            "conntrack_reconciler_deleted_entries",
            help,
            self.conntrack_deleted.clone(),
        );
    }

    fn register_syncs(&self, registry: &mut Registry) {
        let (name, help) = ("sync_proxy_rules_duration", "How long programming the kernel took");
        registry.register_with_unit(name, help, Unit::Seconds, self.sync_duration.clone());
        let (name, help) = (
            "network_programming_duration",
            "From a change in the cluster to the rules in this kernel",
        );
        registry.register_with_unit(name, help, Unit::Seconds, self.network_programming.clone());
        let (name, help) = ("sync_proxy_rules_last_timestamp", "When programming succeeded last");
        registry.register_with_unit(name, help, Unit::Seconds, self.last_sync.clone());
        let (name, help) =
            ("sync_proxy_rules_last_queued_timestamp", "When there was something to program last");
        registry.register_with_unit(name, help, Unit::Seconds, self.last_queued.clone());
        registry.register(
            "sync_proxy_rules_nftables_sync_failures",
            "Attempts to program the kernel that failed",
            self.sync_failures.clone(),
        );
    }

    fn register_rest(&self, registry: &mut Registry) {
        let changes = [("service", &self.service_changes), ("endpoint", &self.endpoint_changes)];
        for (what, (total, pending)) in changes {
            let name = format!("sync_proxy_rules_{what}_changes");
            registry.register(&name, format!("Changes of {what}s"), total.clone());
            let help = format!("Changes of {what}s that are not programmed yet");
            registry.register(format!("{name}_pending"), help, pending.clone());
        }
        registry.register(
            "sync_proxy_rules_no_local_endpoints_total",
            "Services whose policy is Local and that have endpoints elsewhere alone",
            self.no_local_endpoints.clone(),
        );
        from_zero(&self.no_local_endpoints, "traffic_policy", &["internal", "external"]);
        for (path, family) in [("healthz", &self.healthz), ("livez", &self.livez)] {
            registry.register(
                format!("proxy_{path}"),
                format!("Answers of /{path}"),
                family.clone(),
            );
            from_zero(family, "code", &["200", "503"]);
        }
    }
}

impl Own {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            local_pods: Gauge::default(),
            unrecorded_interfaces: Gauge::default(),
            services: Gauge::default(),
            endpoints: Gauge::default(),
            pod_programming: doubling(0.000_5, 15),
            plugin_wait: doubling(0.000_5, 18),
            plugin_waits: Family::default(),
            drift_repaired: Counter::default(),
            missed_lookups: Counter::default(),
            affinity_crowded: Family::default(),
            elements: Family::default(),
            problems: Gauge::default(),
        };
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The agent that runs", version);
        metrics.register_gauges(registry);
        metrics.register_rest(registry);
        metrics
    }

    fn register_gauges(&self, registry: &mut Registry) {
        let gauges = [
            ("local_pods", "Attachments of this node's pods", &self.local_pods),
            (
                "unrecorded_interfaces",
                "Interfaces that look like a pod's and have no record: status names them",
                &self.unrecorded_interfaces,
            ),
            ("services", "Services that are known", &self.services),
            ("endpoints", "Endpoints of all service ports", &self.endpoints),
            ("problems", "How much is wrong right now: status names each", &self.problems),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let help =
            "Elements that each set or map of the rules should have, or, filled by packets, has";
        registry.register("rule_elements", help, self.elements.clone());
    }

    fn register_rest(&self, registry: &mut Registry) {
        let durations = [
            (
                "pod_programming_duration",
                "From a pod's record, written by CNI ADD, to the rules in the kernel",
                &self.pod_programming,
            ),
            ("plugin_wait_duration", "How long CNI ADDs waited for the rules", &self.plugin_wait),
        ];
        for (name, help, histogram) in durations {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let help = "CNI ADDs that waited for the rules, by what came of it";
        registry.register("plugin_waits", help, self.plugin_waits.clone());
        from_zero(&self.plugin_waits, "outcome", &["programmed", "gave_up"]);
        let counters = [
            (
                "drift_repaired",
                "Times that somebody else's change to the rules was repaired",
                &self.drift_repaired,
            ),
            (
                "missed_lookups",
                "Packets that found no endpoint, dropped to be sent again: 0, or a bug",
                &self.missed_lookups,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let help =
            "New clients of session affinity that found the map full, by how they are remembered";
        registry.register("affinity_crowded", help, self.affinity_crowded.clone());
        from_zero(&self.affinity_crowded, "remembered", &["reserved", "briefly", "no"]);
    }
}
