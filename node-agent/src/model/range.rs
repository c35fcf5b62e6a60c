//! Address ranges in one canonical form.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// A range of IPv4-mapped IPv6 addresses (`::ffff:10.0.0.0/104`) as the range of IPv4 that it
/// means, since no packet has such addresses; every other range as it is. `None` where only part of
/// it is IPv4-mapped.
pub fn canonical_range(range: IpNetwork) -> Option<IpNetwork> {
    match (range, range.ip().to_canonical()) {
        (IpNetwork::V6(_), IpAddr::V4(ip)) => {
            IpNetwork::new(ip.into(), range.prefix().checked_sub(96)?).ok()
        }
        (IpNetwork::V4(_) | IpNetwork::V6(_), _) => Some(range),
    }
}
