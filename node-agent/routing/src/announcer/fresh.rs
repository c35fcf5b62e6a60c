//! Which records of pods are fresh. A record is compared with the wall clock once, when it is seen
//! first: a clock that is set afterwards changes nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use denizen_plan::Recorded;

/// What is known of the records of single pods.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// By address and time of the record.
    known: BTreeMap<(IpAddr, Arc<str>), Seen>,
}

/// A record, as it was when it was seen first.
#[derive(Debug, Clone, Copy)]
struct Seen {
    recorded: Recorded,
    /// Until when it is fresh; `None` if it is not any more.
    until: Option<Instant>,
}

impl Freshness {
    /// Takes in the addresses that are recorded now, each with the time of its record. Returns what
    /// is to be said of them.
    pub(super) fn update(
        &mut self,
        times: impl Iterator<Item = (IpAddr, Arc<str>)>,
        now: Instant,
        clock: Timestamp,
    ) -> BTreeMap<IpAddr, Recorded> {
        let before = std::mem::take(&mut self.known);
        let mut all = BTreeMap::new();
        for (address, added_at) in times {
            let key = (address, added_at);
            let seen = before.get(&key).copied().unwrap_or_else(|| {
                let (recorded, left) = Recorded::of(&key.1, clock);
                Seen { recorded, until: Some(now + left) }
            });
            let until = seen.until.filter(|until| *until > now);
            let recorded = Recorded { is_fresh: until.is_some(), ..seen.recorded };
            all.insert(address, recorded);
            self.known.insert(key, Seen { recorded, until });
        }
        all
    }

    /// When the next one of those that are fresh ceases to be; `None` without one.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.known.values().filter_map(|seen| seen.until).min()
    }
}
