//! The source of the node's own connections to virtual servers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::node_port::reachable;
use denizen_model::{Family, LocalPod, Node, NodeAddress, family_of};

/// The first address of each family that the Node object names and a link has; else the first that
/// can be reached from outside. The kernel accepts only addresses that a link has.
pub(super) fn source_addresses(
    node: Option<&Node>,
    links: &[NodeAddress],
    pods: &[LocalPod],
) -> BTreeMap<Family, IpAddr> {
    let real: Vec<NodeAddress> = links.iter().filter(|on| !on.dummy).cloned().collect();
    let is_here = |ip: &IpAddr| real.iter().any(|on| on.address == *ip);
    let source = |family: Family| {
        let named = node.into_iter().flat_map(|node| node.addresses.iter().copied());
        let mut named = named.filter(|ip| family_of(*ip) == family && is_here(ip));
        named.next().or_else(|| reachable(family, &real, pods).first().copied())
    };
    Family::BOTH.into_iter().filter_map(|family| Some((family, source(family)?))).collect()
}
