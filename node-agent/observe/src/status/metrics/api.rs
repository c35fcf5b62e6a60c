//! The metrics of what the agent costs the API server.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::status::ApiTraffic;

type Labels<const N: usize> = [(&'static str, String); N];

/// They have no series while objects come from files.
#[derive(Debug, Clone, Default)]
pub struct ApiMetrics {
    received: Family<Labels<1>, Counter>,
    events: Family<Labels<1>, Counter>,
    lists: Family<Labels<2>, Counter>,
    answers: Family<Labels<2>, Counter>,
}

impl ApiMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Bytes of the API server's answers, by kind";
        registry.register_with_unit("received", help, Unit::Bytes, metrics.received.clone());
        let help = "Events of watches, bookmarks included, by kind";
        registry.register("events", help, metrics.events.clone());
        let help = "Lists that were requested, by kind and reason";
        registry.register("lists", help, metrics.lists.clone());
        let help = "Answers by kind and encoding";
        registry.register("answers", help, metrics.answers.clone());
        metrics
    }

    /// Updates them from the status.
    pub fn set(&self, traffic: &[ApiTraffic]) {
        for ApiTraffic { kind, bytes, events, lists, answers } in traffic {
            let of_kind = || ("kind", kind.clone());
            let store = |counter: &Counter, value: u64| {
                counter.inner().store(value, Ordering::Relaxed);
            };
            store(&self.received.get_or_create(&[of_kind()]), *bytes);
            store(&self.events.get_or_create(&[of_kind()]), *events);
            for (reason, count) in lists {
                let labels = [of_kind(), ("reason", reason.clone())];
                store(&self.lists.get_or_create(&labels), *count);
            }
            for (encoding, count) in answers {
                let labels = [of_kind(), ("encoding", encoding.clone())];
                store(&self.answers.get_or_create(&labels), *count);
            }
        }
    }
}
