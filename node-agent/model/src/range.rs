//! Address ranges in one canonical form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// The first two addresses of a podCIDR: the network's own, from which flannel's tunnel sends, and
/// the next one, which by custom is the bridge's. They are addresses of the range's node.
pub fn node_addresses_in(pod_cidr: IpNetwork) -> impl Iterator<Item = IpAddr> {
    let first = pod_cidr.network();
    let next = match first {
        IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits().saturating_add(1))),
        IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits().saturating_add(1))),
    };
    [first, next].into_iter().filter(move |ip| pod_cidr.contains(*ip))
}
