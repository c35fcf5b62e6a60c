//! What the engine has done, for `status`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use denizen_backend::Draining;
use denizen_observe::status::{DrainingSince, LastSync};

/// What was programmed, repaired and flushed.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    /// When the kernel was programmed last.
    pub last_sync: Option<LastSync>,
    /// How often foreign changes were repaired.
    pub drift_repaired: u64,
    /// How long the last such repair took, from the kernel's notification.
    pub last_repair: Option<Duration>,
    /// Stale conntrack entries that were deleted.
    pub flushed: u64,
    /// A search for stale entries is due or runs.
    pub is_flushing: bool,
    /// Since when each endpoint drains.
    pub draining: BTreeMap<Draining, DrainingSince>,
}

impl Activity {
    /// Remembers a repair.
    pub fn repaired(&mut self, took: Duration) {
        self.drift_repaired += 1;
        self.last_repair = Some(took);
    }

    /// What drains now; what did not before does since `at` (RFC 3339 in UTC).
    pub fn drains(&mut self, now: &BTreeSet<Draining>, at: &str) {
        let mut before = std::mem::take(&mut self.draining);
        for endpoint in now {
            let since =
                before.remove(endpoint).unwrap_or_else(|| DrainingSince(Some(at.to_owned())));
            self.draining.insert(*endpoint, since);
        }
    }
}
