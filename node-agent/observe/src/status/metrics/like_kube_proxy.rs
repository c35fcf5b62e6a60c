//! Metrics with kube-proxy's names, meanings and labels.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Label, doubling, from_zero};
use denizen_packet::Family as IpFamily;

/// A gauge of seconds since 1970.
type TimestampGauge = Gauge<f64, AtomicU64>;
/// The labels of [`LikeKubeProxy::no_local_endpoints`]: family and policy.
type PolicyLabels = [(&'static str, &'static str); 2];

/// kube-proxy's label. kube-proxy has a proxy for each family; this agent programs both together,
/// so what is measured of a whole sync counts for both.
pub fn ip_family(family: IpFamily) -> Label {
    let name = match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    };
    [("ip_family", name)]
}

/// How much of the rules a sync compares with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncExtent {
    /// All of them: at the start, in a resync and after a foreign change.
    Full,
    /// What changed.
    Partial,
}

/// Metrics with kube-proxy's names and meanings (`pkg/proxy/metrics`). The label, if there is one,
/// is [`ip_family`], unless a metric says something else.
#[derive(Debug, Clone)]
pub struct LikeKubeProxy {
    /// From the first change received to the kernel's acknowledgement, in seconds: all syncs, full
    /// ones, partial ones.
    sync_durations: [Family<Label, Histogram>; 3],
    /// From the change of a pod or Service in the cluster to the kernel's acknowledgement here, in
    /// seconds. Changes from before the agent's start do not count.
    pub network_programming: Family<Label, Histogram>,
    /// When programming last succeeded.
    last_sync: Family<Label, TimestampGauge>,
    /// When a change was last queued for programming.
    last_queued: Family<Label, TimestampGauge>,
    /// Changes of Services, and those that are not programmed yet.
    pub service_changes: (Counter, Gauge),
    /// Changes of EndpointSlices, and those that are not programmed yet.
    pub endpoint_changes: (Counter, Gauge),
    /// Failed attempts to program nf_tables.
    pub nftables_failures: Family<Label, Counter>,
    /// Failed attempts of iptables-restore with all that differs from the plan.
    pub restore_failures: Family<Label, Counter>,
    /// Failed attempts of iptables-restore with what changed.
    pub partial_restore_failures: Family<Label, Counter>,
    /// Packets that iptables dropped because connection tracking calls them invalid.
    pub invalid_dropped: Counter,
    /// Services with a policy Local that have endpoints, but none on this node.
    pub no_local_endpoints: Family<PolicyLabels, Gauge>,
    /// Duration of searches for stale conntrack entries, in seconds. One search reads both
    /// families.
    conntrack_duration: Family<Label, Histogram>,
    /// Stale conntrack entries deleted.
    pub conntrack_deleted: Family<Label, Counter>,
    /// Answers of `/healthz`, by status code.
    pub healthz: Family<Label, Counter>,
    /// Answers of `/livez`, by status code.
    pub livez: Family<Label, Counter>,
}

impl LikeKubeProxy {
    /// Notes a sync that took this many seconds and ended at `at`, in seconds since 1970.
    pub fn synced(&self, extent: SyncExtent, seconds: f64, at: f64) {
        let [all, full, partial] = &self.sync_durations;
        let of_extent = match extent {
            SyncExtent::Full => full,
            SyncExtent::Partial => partial,
        };
        for family in IpFamily::BOTH {
            let label = ip_family(family);
            all.get_or_create(&label).observe(seconds);
            of_extent.get_or_create(&label).observe(seconds);
            self.last_sync.get_or_create(&label).set(at);
        }
    }

    /// Notes that a change was queued at `at`, in seconds since 1970.
    pub fn queued(&self, at: f64) {
        for family in IpFamily::BOTH {
            self.last_queued.get_or_create(&ip_family(family)).set(at);
        }
    }

    /// Notes a search for stale conntrack entries that took this many seconds, and how many of each
    /// family it deleted.
    pub fn searched(&self, seconds: f64, deleted: [usize; 2]) {
        for (family, deleted) in IpFamily::BOTH.into_iter().zip(deleted) {
            let label = ip_family(family);
            self.conntrack_duration.get_or_create(&label).observe(seconds);
            self.conntrack_deleted.get_or_create(&label).inc_by(deleted as u64);
        }
    }

    pub(super) fn register(registry: &mut Registry) -> Self {
        let doubling: fn() -> Histogram = || doubling(0.001, 15);
        let programming: fn() -> Histogram = || Histogram::new(programming_buckets());
        let metrics = Self {
            sync_durations: [(); 3].map(|()| Family::new_with_constructor(doubling)),
            network_programming: Family::new_with_constructor(programming),
            last_sync: Family::default(),
            last_queued: Family::default(),
            service_changes: Default::default(),
            endpoint_changes: Default::default(),
            nftables_failures: Family::default(),
            restore_failures: Family::default(),
            partial_restore_failures: Family::default(),
            invalid_dropped: Counter::default(),
            no_local_endpoints: Family::default(),
            conntrack_duration: Family::new_with_constructor(doubling),
            conntrack_deleted: Family::default(),
            healthz: Family::default(),
            livez: Family::default(),
        };
        metrics.register_syncs(registry);
        metrics.register_failures(registry);
        metrics.register_rest(registry);
        metrics.register_conntrack(registry);
        metrics
    }

    fn register_conntrack(&self, registry: &mut Registry) {
        let (name, help) = (
            "conntrack_reconciler_sync_duration",
            "How long it took to find and flush stale flows",
        );
        for_both(&self.conntrack_duration);
        registry.register_with_unit(name, help, Unit::Seconds, self.conntrack_duration.clone());
        let help = "Stale flows that were flushed";
        for_both(&self.conntrack_deleted);
        registry.register(
            "conntrack_reconciler_deleted_entries",
            help,
            self.conntrack_deleted.clone(),
        );
    }

    fn register_syncs(&self, registry: &mut Registry) {
        let durations = [
            ("sync_proxy_rules_duration", "How long programming the kernel took"),
            (
                "sync_full_proxy_rules_duration",
                "How long it took to compare all rules with the kernel, and to program what differed",
            ),
            ("sync_partial_proxy_rules_duration", "How long programming what changed took"),
        ];
        for ((name, help), durations) in durations.into_iter().zip(&self.sync_durations) {
            for_both(durations);
            registry.register_with_unit(name, help, Unit::Seconds, durations.clone());
        }
        let (name, help) = (
            "network_programming_duration",
            "From a change in the cluster to the rules in this kernel",
        );
        for_both(&self.network_programming);
        registry.register_with_unit(name, help, Unit::Seconds, self.network_programming.clone());
        let moments = [
            ("sync_proxy_rules_last_timestamp", "When programming last succeeded", &self.last_sync),
            (
                "sync_proxy_rules_last_queued_timestamp",
                "When a change was last queued for programming",
                &self.last_queued,
            ),
        ];
        for (name, help, moments) in moments {
            for_both(moments);
            registry.register_with_unit(name, help, Unit::Seconds, moments.clone());
        }
    }

    fn register_failures(&self, registry: &mut Registry) {
        let failures = [
            (
                "nftables_sync_failures",
                "Attempts to program nf_tables that failed",
                &self.nftables_failures,
            ),
            (
                "iptables_restore_failures",
                "Failures of iptables-restore with all that differs",
                &self.restore_failures,
            ),
            (
                "iptables_partial_restore_failures",
                "Failures of iptables-restore with what changed",
                &self.partial_restore_failures,
            ),
        ];
        for (name, help, counters) in failures {
            for_both(counters);
            registry.register(format!("sync_proxy_rules_{name}"), help, counters.clone());
        }
        registry.register(
            "iptables_ct_state_invalid_dropped_packets",
            "Packets that iptables dropped because connection tracking calls them invalid",
            self.invalid_dropped.clone(),
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
            "Services with policy Local that have endpoints only on other nodes",
            self.no_local_endpoints.clone(),
        );
        for family in IpFamily::BOTH {
            for policy in ["internal", "external"] {
                let _ = self.no_local_endpoints.get_or_create(&policy_labels(family, policy));
            }
        }
        for (path, family) in [("healthz", &self.healthz), ("livez", &self.livez)] {
            registry.register(
                format!("proxy_{path}"),
                format!("Answers of /{path}, by status code"),
                family.clone(),
            );
            from_zero(family, "code", &["200", "503"]);
        }
    }
}

/// The labels of [`LikeKubeProxy::no_local_endpoints`].
pub(super) fn policy_labels(family: IpFamily, policy: &'static str) -> PolicyLabels {
    let [of_family] = ip_family(family);
    [of_family, ("traffic_policy", policy)]
}

/// Creates the series of both families at the start: what never happened counts 0.
fn for_both<M: Clone>(family: &Family<Label, M>) {
    for of_family in IpFamily::BOTH {
        let _ = family.get_or_create(&ip_family(of_family));
    }
}

/// kube-proxy's buckets for its SLI: 0.25 s to 5 minutes.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from))
}
