//! When pods were recorded. While an address moves, two nodes announce it, and routers should
//! prefer the newer record.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;

use denizen_model::LocalPod;

/// A record is fresh for this long. By then, the previous node has usually withdrawn the address.
const FRESH: Duration = Duration::from_secs(60);

/// When an address of a pod was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Seconds since 1970; 1 if the time is not known.
    pub at: NonZeroU32,
    /// It is at most a minute old.
    pub is_fresh: bool,
}

impl Recorded {
    /// For a record without a readable time.
    pub const UNKNOWN: Self = Self { at: NonZeroU32::MIN, is_fresh: false };

    /// From the time of a record, RFC 3339. Also returns how long it stays fresh.
    ///
    /// If the clock was set meanwhile, nothing stays fresh for longer than a minute, and a record
    /// from the future is not newer than others.
    pub fn of(added_at: &str, now: Timestamp) -> (Self, Duration) {
        let Ok(added) = added_at.parse::<Timestamp>() else {
            return (Self::UNKNOWN, Duration::ZERO);
        };
        let left = FRESH.saturating_sub(now.duration_since(added).unsigned_abs());
        let is_fresh = !left.is_zero();
        let second = u32::try_from(added.as_second()).ok().and_then(NonZeroU32::new);
        let at = second.filter(|_| is_fresh || added <= now).unwrap_or(NonZeroU32::MIN);
        (Self { at, is_fresh }, left)
    }
}

/// The newest record of each of these addresses: an ended pod may still be recorded.
pub fn newest<'a>(pods: &[(&'a LocalPod, IpAddr)]) -> BTreeMap<IpAddr, &'a LocalPod> {
    let mut newest = BTreeMap::new();
    for (pod, address) in pods {
        let kept = newest.entry(*address).or_insert(*pod);
        if (&kept.added_at, &kept.id) < (&pod.added_at, &pod.id) {
            *kept = *pod;
        }
    }
    newest
}
