//! All that is decided about this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::egress::EgressMasquerade;
use super::local::Detection;
use super::node_port::{NodePorts, node_port_addresses};
use super::node_side::NodeSide;
use super::own_address::own_addresses;
use crate::model::{Egress, LocalPod, Snapshot};
use crate::plan::policy::{Capabilities, Policy};

/// What is decided about this node, beside its services and pods: what every rule depends on.
///
/// Some of it is known only with the whole picture: until then no address serves node ports, there
/// are no service ranges, and the Node object names no pod CIDRs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePlan {
    /// How local traffic is detected.
    pub detection: Detection,
    /// What becomes of connections of local pods beyond services.
    pub egress: EgressMasquerade,
    /// What the operator settled about this node.
    pub node_side: NodeSide,
    /// Where node ports are served.
    pub node_ports: NodePorts,
    /// The ranges that cluster IPs come from, whose unallocated addresses nobody has: what goes
    /// there is dropped. Without those that have one of the node's own addresses in them; none
    /// where the backend does not answer for them.
    pub service_ranges: Vec<IpNetwork>,
    /// The addresses of the node's links.
    pub addresses: BTreeSet<IpAddr>,
    /// The node's own addresses: those that no service may take away from it.
    pub own: BTreeSet<IpAddr>,
}

impl NodePlan {
    /// Decides by what is known.
    pub fn new(
        policy: &Policy,
        capabilities: Capabilities,
        egress: Option<&Egress>,
        pods: &[LocalPod],
        world: Option<Snapshot<'_>>,
    ) -> Self {
        let node = world.and_then(|world| world.node());
        let links = world.map(|world| world.addresses()).unwrap_or_default();
        let own = own_addresses(node, links);
        let answered = world.filter(|_| capabilities.unused_addresses);
        let has_own = |range: &IpNetwork| own.iter().any(|ip| range.contains(*ip));
        let ranges = answered.into_iter().flat_map(|world| world.service_ranges());
        Self {
            detection: Detection::new(
                &policy.detector,
                node.map(|node| &*node.pod_cidrs).unwrap_or_default(),
            ),
            egress: EgressMasquerade::new(egress),
            node_side: policy.node_side,
            node_ports: NodePorts {
                asked: policy.node_ports.clone(),
                addresses: world
                    .map(|_| node_port_addresses(&policy.node_ports, node, links, pods))
                    .unwrap_or_default(),
            },
            service_ranges: ranges.filter(|range| !has_own(range)).collect(),
            addresses: links.iter().map(|on| on.address).collect(),
            own,
        }
    }
}
