//! The metrics of the pod firewall.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Label, doubling, from_zero};
use crate::status::NetworkPolicyStatus;
use denizen_backend::firewall::Dropped;

/// States of namespaces whose pods are watched.
const WATCHED: [&str; 3] = ["known", "waiting", "failed"];

/// The metrics of the pod firewall. All but the engine are 0 while it is off.
#[derive(Debug, Clone)]
pub struct NetworkPolicyMetrics {
    /// From the arrival of a changed NetworkPolicy to the kernel's acknowledgement, in seconds.
    pub programming: Histogram,
    engine: Family<[(&'static str, String); 1], Gauge>,
    policies: Gauge,
    cluster_policies: Gauge,
    not_understood: Gauge,
    pods: Family<Label, Gauge>,
    identities: Gauge,
    elements: Gauge,
    unfiltered_bridges: Gauge,
    all_pods: Gauge,
    watched_namespaces: Family<Label, Gauge>,
    dropped: Family<Label, Counter>,
}

impl NetworkPolicyMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            programming: doubling(0.000_1, 18),
            engine: Family::default(),
            policies: Gauge::default(),
            cluster_policies: Gauge::default(),
            not_understood: Gauge::default(),
            pods: Family::default(),
            identities: Gauge::default(),
            elements: Gauge::default(),
            unfiltered_bridges: Gauge::default(),
            all_pods: Gauge::default(),
            watched_namespaces: Family::default(),
            dropped: Family::default(),
        };
        let help = "1 for the engine that enforces NetworkPolicies on this node";
        registry.register("engine", help, metrics.engine.clone());
        let gauges = [
            ("policies", "NetworkPolicies that select a local pod", &metrics.policies),
            (
                "cluster_policies",
                "ClusterNetworkPolicies that select a local pod",
                &metrics.cluster_policies,
            ),
            (
                "not_understood",
                "Policies of the cluster with parts that are not understood",
                &metrics.not_understood,
            ),
            (
                "unfiltered_bridges",
                "Bridges on which restricted pods are cut off, because rules do not see their frames",
                &metrics.unfiltered_bridges,
            ),
            ("identities", "What the policies in force can tell apart", &metrics.identities),
            ("all_pods_known", "1 if every pod of the cluster is known", &metrics.all_pods),
            ("elements", "Elements in all sets of the pod firewall", &metrics.elements),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let help = "Local pods that are isolated, or whose policies are not known yet";
        registry.register("pods", help, metrics.pods.clone());
        from_zero(&metrics.pods, "state", &["isolated", "pending"]);
        let help = "Namespaces whose pods are watched, unless all are: --watch-pods";
        registry.register("watched_namespaces", help, metrics.watched_namespaces.clone());
        from_zero(&metrics.watched_namespaces, "state", &WATCHED);
        let help = "Packets dropped since the rules were made, by reason";
        registry.register("dropped_packets", help, metrics.dropped.clone());
        let reasons =
            ["ingress", "egress", "pending", "forbidden", "spoofed", "frame", "router", "tunnel"];
        from_zero(&metrics.dropped, "reason", &reasons);
        let help = "From the arrival of a changed NetworkPolicy to the rules in the kernel";
        let programming = metrics.programming.clone();
        registry.register_with_unit("programming_duration", help, Unit::Seconds, programming);
        metrics
    }

    /// Names the engine that enforces policies.
    pub fn set_engine(&self, engine: &str) {
        self.engine.get_or_create(&[("engine", engine.to_owned())]).set(1);
    }

    pub fn set(&self, status: &NetworkPolicyStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.policies.set(gauge(status.policies));
        self.cluster_policies.set(gauge(status.cluster_policies));
        self.not_understood.set(gauge(status.not_understood));
        self.unfiltered_bridges.set(gauge(status.unfiltered_bridges.len()));
        self.identities.set(gauge(status.identities));
        self.elements.set(gauge(status.elements));
        for (state, number) in [("isolated", status.isolated), ("pending", status.pending)] {
            self.pods.get_or_create(&[("state", state)]).set(gauge(number));
        }
        let (all_known, watched) = match &status.watched_pods {
            None => (status.waiting_for.is_empty(), [0; 3]),
            Some(pods) => {
                let of = [&pods.namespaces, &pods.waiting_for, &pods.failed].map(Vec::len);
                (pods.all_known, of)
            }
        };
        self.all_pods.set(i64::from(all_known));
        for (state, number) in WATCHED.into_iter().zip(watched) {
            self.watched_namespaces.get_or_create(&[("state", state)]).set(gauge(number));
        }
        let Dropped { ingress, egress, pending, forbidden, spoofed, frame, router, tunnel } =
            status.dropped;
        for (reason, packets) in [
            ("ingress", ingress),
            ("egress", egress),
            ("pending", pending),
            ("forbidden", forbidden),
            ("spoofed", spoofed),
            ("frame", frame),
            ("router", router),
            ("tunnel", tunnel),
        ] {
            let counter = self.dropped.get_or_create(&[("reason", reason)]);
            counter.inner().store(packets, Ordering::Relaxed);
        }
    }
}
