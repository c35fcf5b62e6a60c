//! The metrics of the routes to other nodes' pods.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::status::RoutingStatus;

/// All are 0 while it is off.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    routes: Gauge,
    rejected: Gauge,
    repaired: Counter,
}

impl Routing {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Routes to other nodes' pods in the kernel";
        registry.register("routes", help, metrics.routes.clone());
        let help = "podCIDRs of other nodes that get no route: status names each, with the reason";
        registry.register("rejected_ranges", help, metrics.rejected.clone());
        let help = "Routes that were repaired after another program changed them";
        registry.register("repaired_routes", help, metrics.repaired.clone());
        metrics
    }

    /// Updates them from the status.
    pub fn set(&self, status: &RoutingStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.routes.set(gauge(status.routes));
        self.rejected.set(gauge(status.rejected.len()));
        self.repaired.inner().store(status.repaired, Ordering::Relaxed);
    }
}
