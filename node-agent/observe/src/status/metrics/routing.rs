//! The metrics of the routes to other nodes' pods, and of announcements.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Label;
use denizen_plan::AnnouncementClass;
use denizen_routing::{AnnouncementsStatus, RoutingStatus};

/// All are 0 while routing is off.
#[derive(Debug, Clone, Default)]
pub struct RoutingMetrics {
    routes: Gauge,
    rejected: Gauge,
    repaired: Counter,
    announced: Family<Label, Gauge>,
    unannounced: Gauge,
    refused: Gauge,
}

impl RoutingMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Routes to other nodes' pods in the kernel";
        registry.register("routes", help, metrics.routes.clone());
        let help = "podCIDRs of other nodes that get no route: status names each, with the reason";
        registry.register("rejected_ranges", help, metrics.rejected.clone());
        let help = "Routes that were repaired after another program changed them";
        registry.register("repaired_routes", help, metrics.repaired.clone());
        let help = "Prefixes that are announced, by what they are";
        registry.register("announced_prefixes", help, metrics.announced.clone());
        let help = "Prefixes that are to be announced and are not in the kernel's table";
        registry.register("unannounced_prefixes", help, metrics.unannounced.clone());
        let help = "Addresses that are refused: status names each, with the reason";
        registry.register("refused_announcements", help, metrics.refused.clone());
        metrics
    }

    /// Updates those of announcements from the status.
    pub fn set_announced(&self, status: &AnnouncementsStatus) {
        for class in AnnouncementClass::ALL.map(AnnouncementClass::as_str) {
            let count = status.announced.get(class).copied().unwrap_or_default();
            self.announced.get_or_create(&[("class", class)]).set(gauge(count));
        }
        let announced: usize = status.announced.values().sum();
        self.unannounced.set(gauge(status.wanted - announced.min(status.wanted)));
        self.refused.set(gauge(status.refused.len()));
        self.repaired.inner().store(status.repaired, Ordering::Relaxed);
    }

    /// Updates those of routes from the status.
    pub fn set(&self, status: &RoutingStatus) {
        self.routes.set(gauge(status.routes));
        self.rejected.set(gauge(status.rejected.len()));
        self.repaired.inner().store(status.repaired, Ordering::Relaxed);
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
