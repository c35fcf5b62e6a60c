//! Which records of pods are fresh. A record is compared with the wall clock once, when it is first
//! seen: later changes of the clock do not matter.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use denizen_plan::Recorded;

/// The records of single pods.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// By address and time of the record.
    known: BTreeMap<(IpAddr, Arc<str>), FreshRecord>,
}

/// A record, as it was when it was first seen.
#[derive(Debug, Clone, Copy)]
struct FreshRecord {
    recorded: Recorded,
    /// Until when it is fresh; `None` if it no longer is.
    until: Option<Instant>,
}

impl Freshness {
    /// Takes over the addresses that are recorded now, each with the time of its record. Returns
    /// when each was recorded.
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
                FreshRecord { recorded, until: Some(now + left) }
            });
            let until = seen.until.filter(|until| *until > now);
            let recorded = Recorded { is_fresh: until.is_some(), ..seen.recorded };
            all.insert(address, recorded);
            self.known.insert(key, FreshRecord { recorded, until });
        }
        all
    }

    /// When the next fresh record ceases to be fresh.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.known.values().filter_map(|seen| seen.until).min()
    }
}
