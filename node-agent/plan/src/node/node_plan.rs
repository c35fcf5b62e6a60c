//! All decisions about this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::egress::EgressMasquerade;
use super::local::Detection;
use super::node_port::{NodePorts, node_port_addresses};
use super::node_side::NodeSide;
use super::own_address::own_addresses;
use super::source_address::source_addresses;
use crate::policy::{Capabilities, Policy};
use denizen_model::{Egress, Family, LocalPod, Snapshot};

/// The decisions about this node that all rules depend on.
///
/// Before all first lists are complete, no address serves node ports, and there are no service
/// ranges and no pod CIDRs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePlan {
    pub detection: Detection,
    /// Connections of local pods to destinations that are not services.
    pub egress: EgressMasquerade,
    pub node_side: NodeSide,
    pub node_ports: NodePorts,
    /// The ranges of cluster IPs. Packets to their unallocated addresses are dropped. Ranges that
    /// contain an address of the node are left out. Empty if the backend does not handle
    /// unallocated addresses.
    pub service_ranges: Vec<IpNetwork>,
    /// The addresses of the node's links.
    pub addresses: BTreeSet<IpAddr>,
    /// The node's own addresses, which no service may take away from it.
    pub protected_addresses: BTreeSet<IpAddr>,
    /// The node's addresses from which its own connections to virtual servers come. (The kernel
    /// would use the virtual server's address as the source, and no other node can answer to that.)
    /// A family is missing if the node has none; empty if the backend has no virtual servers.
    pub route_sources: BTreeMap<Family, IpAddr>,
}

impl NodePlan {
    pub fn new(
        policy: &Policy,
        capabilities: Capabilities,
        egress: Option<&Egress>,
        pods: &[LocalPod],
        world: Option<Snapshot<'_>>,
    ) -> Self {
        let node = world.and_then(|world| world.node());
        let links = world.map(|world| world.addresses()).unwrap_or_default();
        let protected_addresses = own_addresses(node, links);
        let answered = world.filter(|_| capabilities.unused_addresses);
        let has_protected =
            |range: &IpNetwork| protected_addresses.iter().any(|ip| range.contains(*ip));
        let ranges = answered.into_iter().flat_map(|world| world.service_ranges());
        Self {
            detection: Detection::new(
                &policy.detector,
                node.map(|node| &*node.pod_cidrs).unwrap_or_default(),
            ),
            egress: EgressMasquerade::new(egress),
            node_side: policy.node_side,
            node_ports: NodePorts {
                configured: policy.node_ports.clone(),
                addresses: world
                    .map(|_| node_port_addresses(&policy.node_ports, node, links, pods))
                    .unwrap_or_default(),
            },
            service_ranges: ranges.filter(|range| !has_protected(range)).collect(),
            addresses: links.iter().map(|on| on.address).collect(),
            protected_addresses,
            route_sources: match capabilities.balances_by_ipvs {
                true => source_addresses(node, links, pods),
                false => BTreeMap::new(),
            },
        }
    }
}
