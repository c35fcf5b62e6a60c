//! Routes to the other nodes' pods (`--routing-mode direct`). Pure.
//!
//! A node's pods have addresses in its `podCIDRs`. If that node is on a network of this node, a
//! route through its InternalIP is enough to reach its pods.
//!
//! A Node object can claim any range. A range that would take addresses from another owner is
//! rejected, with the reason.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::pod_ranges::{
    PodRanges, RangeClaimant, SHORTEST_V4, SHORTEST_V6, is_special, is_too_large, overlap,
};
use denizen_model::{Nodes, OtherNode, family_of};

/// This node's networks, as the kernel reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeNetworks {
    pub addresses: BTreeSet<IpAddr>,
    /// The subnets of its links.
    pub subnets: BTreeSet<IpNetwork>,
    /// For each InternalIP of the other nodes: the index of the link on which it is a neighbour.
    pub links: BTreeMap<IpAddr, Result<u32, NotOnLink>>,
}

/// Why an address is not a neighbour: where packets to it go instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotOnLink {
    Gateway(IpAddr),
    Here,
    Nowhere,
}

/// The neighbour through which packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    pub address: IpAddr,
    /// Index of the link that it is on.
    pub link: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectRoutes {
    /// The next hop for each range.
    pub routes: BTreeMap<IpNetwork, NextHop>,
    /// The ranges without a route, by node and range.
    pub rejected: BTreeSet<RejectedRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectedRange {
    /// The node that claims it in its `podCIDRs`.
    pub node: Arc<str>,
    pub range: IpNetwork,
    pub why: WhyRejected,
}

impl fmt::Display for RejectedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, range, why } = self;
        write!(f, "no route to {range}, the podCIDR of Node {node}: {why}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyRejected {
    /// Addresses that no pod can have.
    Special,
    /// More addresses than a node can have pods.
    TooLarge,
    /// It overlaps a range of this node's pods.
    OwnRange(IpNetwork),
    /// It overlaps a range of an older Node, or another range of the same Node.
    Taken { by: Arc<str>, range: IpNetwork },
    /// It contains the address of a node.
    NodeAddress(IpAddr),
    /// It overlaps the subnet of a link of this node.
    Subnet(IpNetwork),
    /// The node has no InternalIP of this family.
    NoInternalIp,
    /// Its InternalIP is not on a network of this node.
    NotANeighbour {
        address: IpAddr,
        /// Where packets to it go.
        instead: NotOnLink,
    },
}

impl fmt::Display for WhyRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Special => write!(f, "no pod can have these addresses"),
            Self::TooLarge => {
                write!(f, "it is too large (shorter than /{SHORTEST_V4} or /{SHORTEST_V6})")
            }
            Self::OwnRange(range) => write!(f, "it overlaps this node's own podCIDR {range}"),
            Self::Taken { by, range } => write!(f, "it overlaps {range} of Node {by}"),
            Self::NodeAddress(address) => write!(f, "{address} is the address of a node"),
            Self::Subnet(subnet) => write!(f, "it overlaps {subnet}, a network of this node's"),
            Self::NoInternalIp => write!(f, "the Node has no InternalIP of this family"),
            Self::NotANeighbour { address, instead: NotOnLink::Gateway(gateway) } => {
                write!(f, "its InternalIP {address} is behind the gateway {gateway}")
            }
            Self::NotANeighbour { address, instead: NotOnLink::Here } => {
                write!(f, "its InternalIP {address} is an address of this node")
            }
            Self::NotANeighbour { address, instead: NotOnLink::Nowhere } => {
                write!(f, "this node has no route to its InternalIP {address}")
            }
        }
    }
}

/// Decides which routes this node has to the other nodes' pods.
///
/// Of two Nodes that claim one range, the older keeps it even while it cannot be reached: a link
/// that goes down must not give its range to another node.
pub fn direct(nodes: &Nodes, networks: &NodeNetworks) -> DirectRoutes {
    let mut ranges = PodRanges::claimed(nodes);
    let own = nodes.own.iter().flat_map(|node| &node.addresses);
    let own: BTreeSet<IpAddr> = own.chain(&networks.addresses).copied().collect();
    let mut plan = DirectRoutes::default();
    for claimant in ranges.by_age() {
        let Some(node) = nodes.others.get(claimant.name) else { continue };
        for range in claimant.ranges() {
            let why_not = unusable(range, claimant, &ranges, nodes)
                .or_else(|| own_in(range, &own, networks))
                .or_else(|| {
                    let (range, by) = ranges.overlapping(range)?;
                    Some(WhyRejected::Taken { by: Arc::clone(by), range })
                })
                .map_or(Ok(()), Err);
            let next_hop = why_not.and_then(|()| {
                ranges.take(range, claimant);
                next_hop(range, node, networks)
            });
            match next_hop {
                Ok(next_hop) => drop(plan.routes.insert(range, next_hop)),
                Err(why) => {
                    let node = Arc::clone(claimant.name);
                    plan.rejected.insert(RejectedRange { node, range, why });
                }
            }
        }
    }
    plan
}

/// Why a range cannot be the podCIDR of the node that claims it, `of`.
fn unusable(
    range: IpNetwork,
    of: RangeClaimant<'_>,
    ranges: &PodRanges<'_>,
    nodes: &Nodes,
) -> Option<WhyRejected> {
    if is_special(range) {
        return Some(WhyRejected::Special);
    }
    if is_too_large(range) {
        return Some(WhyRejected::TooLarge);
    }
    let mut own = nodes.own.iter().flat_map(|node| &node.pod_cidrs).copied();
    if let Some(own) = own.find(|own| overlap(*own, range)) {
        return Some(WhyRejected::OwnRange(own));
    }
    ranges.address_in(range, of).map(|(address, _)| WhyRejected::NodeAddress(address))
}

/// Why a range is rejected because of this node's own addresses or subnets, whatever the age of the
/// Nodes.
fn own_in(
    range: IpNetwork,
    own: &BTreeSet<IpAddr>,
    networks: &NodeNetworks,
) -> Option<WhyRejected> {
    if let Some(address) = own.range(range.network()..=range.broadcast()).next() {
        return Some(WhyRejected::NodeAddress(*address));
    }
    let subnet = networks.subnets.iter().find(|subnet| overlap(**subnet, range));
    subnet.copied().map(WhyRejected::Subnet)
}

fn next_hop(
    range: IpNetwork,
    node: &OtherNode,
    networks: &NodeNetworks,
) -> Result<NextHop, WhyRejected> {
    let family = family_of(range.ip());
    let of_family = || node.internal.iter().copied().filter(|ip| family_of(*ip) == family);
    let link = |address| *networks.links.get(&address).unwrap_or(&Err(NotOnLink::Nowhere));
    let next_hop = |address| Some(NextHop { address, link: link(address).ok()? });
    of_family().find_map(next_hop).ok_or_else(|| match of_family().next() {
        Some(address) => {
            let instead = link(address).err().unwrap_or(NotOnLink::Nowhere);
            WhyRejected::NotANeighbour { address, instead }
        }
        None => WhyRejected::NoInternalIp,
    })
}
