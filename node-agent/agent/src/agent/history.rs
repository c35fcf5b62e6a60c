//! The last attempts to program the kernel, for people.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use denizen_model::Event;
use denizen_observe::status::view::SyncRow;

/// The number of attempts kept.
const KEPT: usize = 20;

/// The last attempts, and the changes behind them.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The changes received since, with their numbers.
    due: BTreeMap<&'static str, usize>,
    kept: VecDeque<SyncRow>,
}

impl History {
    /// Notes events that are to be programmed.
    pub(super) fn taken(&mut self, events: &[Event]) {
        for event in events {
            let what = match event {
                Event::Service(..) | Event::ForeignService(..) => "service",
                Event::Slice(..) => "endpoint slice",
                Event::Node(_) => "node",
                Event::ServiceCidr(..) => "service range",
                Event::Pods(_) => "pod set",
                Event::Addresses(_) => "address list",
                Event::Egress(_) => "egress configuration",
                Event::Namespace(..) => "namespace",
                Event::ClusterPod(..) => "pod",
                Event::NetworkPolicy(..) => "network policy",
                Event::ClusterNetworkPolicy(..) => "cluster network policy",
                Event::OtherNode(..)
                | Event::Triggered(..)
                | Event::PodCoverage(_)
                | Event::Listed(_)
                | Event::Links(_)
                | Event::Refused(_) => continue,
            };
            *self.due.entry(what).or_default() += 1;
        }
    }

    /// An attempt has ended.
    pub(super) fn tried(&mut self, at: Timestamp, took: Duration, error: Option<String>) {
        let words = self.due.iter().map(|(what, number)| match number {
            1 => format!("1 {what}"),
            number => format!("{number} {what}s"),
        });
        let words: Vec<String> = words.collect();
        let what =
            if words.is_empty() { "a check of the rules".to_owned() } else { words.join(", ") };
        if error.is_none() {
            self.due.clear();
        }
        self.kept.truncate(KEPT - 1);
        self.kept.push_front(SyncRow {
            at: at.strftime("%FT%T%.3fZ").to_string(),
            milliseconds: took.as_secs_f64() * 1e3,
            what,
            error,
        });
    }

    /// The attempts, newest first.
    pub(super) fn rows(&self) -> Vec<SyncRow> {
        self.kept.iter().cloned().collect()
    }
}
