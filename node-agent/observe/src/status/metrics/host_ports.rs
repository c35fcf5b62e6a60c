//! The metrics of host ports.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::status::HostPortsStatus;

/// All are 0 if host ports are off.
#[derive(Debug, Clone, Default)]
pub struct HostPortMetrics {
    served: Gauge,
    conflicts: Gauge,
}

impl HostPortMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Host ports that lead to a pod, in each family counted once";
        registry.register("served", help, metrics.served.clone());
        let help = "Host ports that are not served as asked for: status names each";
        registry.register("conflicts", help, metrics.conflicts.clone());
        metrics
    }

    /// Updates them from the status.
    pub fn set(&self, status: &HostPortsStatus) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.served.set(gauge(status.served));
        self.conflicts.set(gauge(status.conflicts.len()));
    }
}
