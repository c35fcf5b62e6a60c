//! Address ranges in one canonical form.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// Converts a range of IPv4-mapped IPv6 addresses (`::ffff:10.0.0.0/104`) to the IPv4 range, since
/// no packet has such addresses. Other ranges stay as they are. `None` if only part of the range is
/// IPv4-mapped.
pub fn canonical_range(range: IpNetwork) -> Option<IpNetwork> {
    match (range, range.ip().to_canonical()) {
        (IpNetwork::V6(_), IpAddr::V4(ip)) => {
            IpNetwork::new(ip.into(), range.prefix().checked_sub(96)?).ok()
        }
        (IpNetwork::V4(_) | IpNetwork::V6(_), _) => Some(range),
    }
}
