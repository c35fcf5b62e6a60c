//! The node's own addresses, which no service may take away from it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use denizen_model::{Node, NodeAddress};

/// The addresses that the Node object names, and those on the node's links.
///
/// Addresses on dummy devices are left out: ipvs proxies and node-local DNS caches put services'
/// addresses there. Link-local addresses are left out too: no service has one.
pub fn own_addresses(node: Option<&Node>, addresses: &[NodeAddress]) -> BTreeSet<IpAddr> {
    let named = node.into_iter().flat_map(|node| node.addresses.iter().copied());
    let on_links =
        addresses.iter().filter(|on| !on.dummy && !is_link_local(on.address)).map(|on| on.address);
    named.chain(on_links).collect()
}

/// Whether an address is valid on one link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
