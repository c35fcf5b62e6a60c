//! When pods were recorded. An address that moves is announced by two nodes for a while, and
//! routers are to prefer the newest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;

use denizen_model::LocalPod;

/// So long a record is fresh. Whoever had the address before has withdrawn it by then, in most
/// cases.
const FRESH: Duration = Duration::from_secs(60);

/// When an address of a pod was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// In seconds since 1970; 1 if that is not known.
    pub at: NonZeroU32,
    /// Not long ago.
    pub is_fresh: bool,
}

impl Recorded {
    /// Of a record whose time is not known.
    pub const UNKNOWN: Self = Self { at: NonZeroU32::MIN, is_fresh: false };

    /// Of a record with this time, RFC 3339. Returns for how long it is fresh from now on.
    ///
    /// A clock that was set since, a little, does no harm: whatever it says, nothing is fresh for
    /// longer than a minute. A record from the future is no newer than any other.
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

/// The newest record of each of these addresses: a pod that ended may still be recorded.
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
