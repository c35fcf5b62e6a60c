//! The metrics of virtual servers.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::status::IpvsStatus;

/// All are 0 with the other backends.
#[derive(Debug, Clone, Default)]
pub struct Ipvs {
    virtual_servers: Gauge,
    carried_by_nftables: Gauge,
    draining_endpoints: Gauge,
    draining_connections: Gauge,
}

impl Ipvs {
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
        metrics
    }

    /// Updates them from the status.
    pub fn set(&self, status: &IpvsStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let IpvsStatus { virtual_servers, carried_by_nftables, draining } = status;
        self.virtual_servers.set(gauge(*virtual_servers));
        self.carried_by_nftables.set(gauge(*carried_by_nftables));
        self.draining_endpoints.set(gauge(draining.len()));
        self.draining_connections.set(draining.iter().map(|it| i64::from(it.active)).sum());
    }
}
