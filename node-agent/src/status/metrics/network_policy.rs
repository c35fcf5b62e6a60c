//! The metrics of the pod firewall.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Label, from_zero};
use crate::firewall::Dropped;
use crate::status::NetworkPolicyStatus;

/// The metrics of the pod firewall. All are 0 while it is off.
#[derive(Debug, Clone, Default)]
pub struct NetworkPolicy {
    policies: Gauge,
    pods: Family<Label, Gauge>,
    identities: Gauge,
    elements: Gauge,
    dropped: Family<Label, Counter>,
}

impl NetworkPolicy {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let gauges = [
            ("policies", "NetworkPolicies that select a local pod", &metrics.policies),
            ("identities", "What the policies in force can tell apart", &metrics.identities),
            ("elements", "Elements in all sets of the pod firewall", &metrics.elements),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let help = "Addresses of local pods that are isolated, or whose policies are not known yet";
        registry.register("addresses", help, metrics.pods.clone());
        from_zero(&metrics.pods, "state", &["isolated", "pending"]);
        let help = "Packets dropped since the rules were made, by reason";
        registry.register("dropped_packets", help, metrics.dropped.clone());
        from_zero(&metrics.dropped, "reason", &["ingress", "egress", "pending", "spoofed"]);
        metrics
    }

    /// Brings them up to date.
    pub fn set(&self, status: &NetworkPolicyStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.policies.set(gauge(status.policies));
        self.identities.set(gauge(status.identities));
        self.elements.set(gauge(status.elements));
        for (state, number) in [("isolated", status.isolated), ("pending", status.pending)] {
            self.pods.get_or_create(&[("state", state)]).set(gauge(number));
        }
        let Dropped { ingress, egress, pending, spoofed } = status.dropped;
        for (reason, packets) in
            [("ingress", ingress), ("egress", egress), ("pending", pending), ("spoofed", spoofed)]
        {
            let counter = self.dropped.get_or_create(&[("reason", reason)]);
            counter.inner().store(packets, Ordering::Relaxed);
        }
    }
}
