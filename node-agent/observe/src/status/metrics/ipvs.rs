//! The metrics of virtual servers.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Label;
use crate::status::IpvsStatus;
use denizen_backend::EndedConnections;

/// All are 0 with the other backends.
#[derive(Debug, Clone, Default)]
pub struct IpvsMetrics {
    virtual_servers: Gauge,
    carried_by_nftables: Gauge,
    draining_endpoints: Gauge,
    draining_connections: Gauge,
    ended_connections: Family<Label, Counter>,
}

impl IpvsMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Planned virtual servers";
        registry.register("virtual_servers", help, metrics.virtual_servers.clone());
        let help = "Service ports with endpoints that nftables carries: explain names the reason";
        registry.register("carried_by_nftables", help, metrics.carried_by_nftables.clone());
        let help = "Endpoints that keep their connections and get no new ones: status names each";
        registry.register("draining_endpoints", help, metrics.draining_endpoints.clone());
        let help = "Established connections to endpoints that drain";
        registry.register("draining_connections", help, metrics.draining_connections.clone());
        let help = "Connections that ended because their endpoint was removed, by why it was";
        registry.register("ended_connections", help, metrics.ended_connections.clone());
        metrics.set(&IpvsStatus::default());
        metrics
    }

    pub fn set(&self, status: &IpvsStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let IpvsStatus { virtual_servers, carried_by_nftables, draining, ended_connections } =
            status;
        self.virtual_servers.set(gauge(*virtual_servers));
        self.carried_by_nftables.set(gauge(*carried_by_nftables));
        self.draining_endpoints.set(gauge(draining.len()));
        self.draining_connections
            .set(draining.iter().map(|endpoint| i64::from(endpoint.active)).sum());
        let EndedConnections { pod_ended, timed_out } = *ended_connections;
        for (reason, connections) in [("pod_ended", pod_ended), ("timed_out", timed_out)] {
            let counter = self.ended_connections.get_or_create(&[("reason", reason)]);
            counter.inner().store(connections, Ordering::Relaxed);
        }
    }
}
