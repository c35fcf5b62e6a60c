//! The range of loopback addresses.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;

use denizen_model::Family;

/// The loopback addresses of a family.
pub fn loopback(family: Family) -> IpNetwork {
    let (address, prefix) = match family {
        Family::V4 => (IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => (IpAddr::from(Ipv6Addr::LOCALHOST), 128),
    };
    IpNetwork::new(address, prefix).expect("these prefixes are no longer than their addresses")
}
