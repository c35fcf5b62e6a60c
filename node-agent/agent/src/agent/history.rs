//! The last attempts to program the kernel, for the status page.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;

use denizen_backend::Repair;
use denizen_observe::status::view::SyncRow;

/// The number of attempts kept.
const KEPT: usize = 20;

/// The last attempts, and the changes behind them.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How many changes of each kind were received since the last success.
    changes_since_success: BTreeMap<&'static str, usize>,
    kept: VecDeque<SyncRow>,
    /// How often other programs' changes were repaired.
    pub(super) drift_repaired: u64,
    /// How long the last such repair took, from the kernel's notification.
    pub(super) last_repair: Option<Duration>,
}

impl History {
    /// Notes a change that is to be programmed.
    pub(super) fn note_change(&mut self, what: &'static str) {
        *self.changes_since_success.entry(what).or_default() += 1;
    }

    /// Notes a repair of what other programs had changed.
    pub(super) fn repaired(&mut self, drift: Repair, took: Duration) {
        if !drift.is_none() {
            self.drift_repaired += 1;
            self.last_repair = Some(took);
            warn!(elements = drift.elements, rebuilt = drift.rebuilt, "drift repaired");
        }
    }

    /// Notes the result of an attempt.
    pub(super) fn tried(&mut self, at: Timestamp, took: Duration, error: Option<String>) {
        let words = self.changes_since_success.iter().map(|(what, number)| match number {
            1 => format!("1 {what}"),
            number => format!("{number} {what}s"),
        });
        let words: Vec<String> = words.collect();
        let what =
            if words.is_empty() { "a check of the rules".to_owned() } else { words.join(", ") };
        if error.is_none() {
            self.changes_since_success.clear();
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
