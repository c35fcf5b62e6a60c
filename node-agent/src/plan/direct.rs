//! Routes to the other nodes' pods (`--routing-mode direct`). Pure.
//!
//! The pods of a node have addresses of its `podCIDRs`. Where the node is a neighbour, on a network
//! of this node's, a route through its InternalIP is all that its pods need to be reached.
//!
//! A Node object can claim any range. What would take addresses away from somebody else is
//! rejected, with the reason.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::model::{Nodes, OtherNode, family_of};

/// The shortest prefixes of ranges that are taken for one node's pods.
pub(super) const SHORTEST_V4: u8 = 12;
pub(super) const SHORTEST_V6: u8 = 32;

/// What the kernel knows of this node's networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbourhood {
    /// Its own addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The subnets of its links.
    pub subnets: BTreeSet<IpNetwork>,
    /// The index of the link on which each of the other nodes' InternalIPs is a neighbour's.
    pub links: BTreeMap<IpAddr, Result<u32, NotNear>>,
}

/// Where packets to an address go that is no neighbour's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotNear {
    /// To a gateway.
    Gateway(IpAddr),
    /// To this node itself.
    Here,
    /// Nowhere.
    Nowhere,
}

/// The neighbour through whom packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Its address.
    pub address: IpAddr,
    /// Index of the link that it is on.
    pub link: u32,
}

/// The routes to other nodes' pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectRoutes {
    /// The next hop for each range.
    pub routes: BTreeMap<IpNetwork, NextHop>,
    /// The ranges that have none, by node and range.
    pub rejected: BTreeSet<RejectedRange>,
}

/// A range that gets no route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectedRange {
    /// The node that has it among its `podCIDRs`.
    pub node: Arc<str>,
    /// The range.
    pub range: IpNetwork,
    /// Why.
    pub why: WhyRejected,
}

impl fmt::Display for RejectedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, range, why } = self;
        write!(f, "no route to {range}, the podCIDR of Node {node}: {why}")
    }
}

/// Why a range gets no route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyRejected {
    /// Addresses that no pod can have.
    Special,
    /// More addresses than a node can have pods.
    TooLarge,
    /// It overlaps a range of this node's pods.
    OwnRange(IpNetwork),
    /// It overlaps a range of an older Node, or another one of the same Node.
    Taken {
        /// That Node.
        by: Arc<str>,
        /// Its range.
        range: IpNetwork,
    },
    /// It contains the address of a node.
    NodeAddress(IpAddr),
    /// It overlaps the subnet of a link of this node.
    Subnet(IpNetwork),
    /// The node has no InternalIP of this family.
    NoInternalIp,
    /// Its InternalIP is not a neighbour's.
    NotANeighbour {
        /// The InternalIP.
        address: IpAddr,
        /// Where packets to it go.
        instead: NotNear,
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
            Self::NotANeighbour { address, instead: NotNear::Gateway(gateway) } => {
                write!(f, "its InternalIP {address} is behind the gateway {gateway}")
            }
            Self::NotANeighbour { address, instead: NotNear::Here } => {
                write!(f, "its InternalIP {address} is an address of this node")
            }
            Self::NotANeighbour { address, instead: NotNear::Nowhere } => {
                write!(f, "this node has no route to its InternalIP {address}")
            }
        }
    }
}

/// Decides which routes this node has to the other nodes' pods.
///
/// Of two Nodes that claim one range, the older has it, whether it is reached or not: a link that
/// goes down must not give its range to another.
pub fn direct(nodes: &Nodes, around: &Neighbourhood) -> DirectRoutes {
    let addresses = addresses(nodes, around);
    let mut by_age: Vec<(&Arc<str>, &OtherNode)> = nodes.others.iter().collect();
    by_age.sort_by_key(|(name, node)| (&node.created, *name));
    let mut taken: BTreeMap<IpNetwork, &Arc<str>> = BTreeMap::new();
    let mut plan = DirectRoutes::default();
    for (name, node) in by_age {
        for range in node.pod_cidrs.iter().copied().map(without_host_bits) {
            let why_not = unusable(range, nodes, &addresses, around)
                .or_else(|| overlapping(&taken, range))
                .map_or(Ok(()), Err);
            let next_hop = why_not.and_then(|()| {
                taken.insert(range, name);
                next_hop(range, node, around)
            });
            match next_hop {
                Ok(next_hop) => drop(plan.routes.insert(range, next_hop)),
                Err(why) => {
                    let node = name.clone();
                    plan.rejected.insert(RejectedRange { node, range, why });
                }
            }
        }
    }
    plan
}

/// The addresses of all nodes.
fn addresses(nodes: &Nodes, around: &Neighbourhood) -> BTreeSet<IpAddr> {
    let of_others =
        nodes.others.values().flat_map(|node| node.internal.iter().chain(&node.external));
    let own = nodes.own.iter().flat_map(|node| &node.addresses);
    of_others.chain(own).chain(&around.addresses).copied().collect()
}

/// Why no node's pods can have this range.
fn unusable(
    range: IpNetwork,
    nodes: &Nodes,
    addresses: &BTreeSet<IpAddr>,
    around: &Neighbourhood,
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
    if let Some(address) = addresses.range(range.network()..=range.broadcast()).next() {
        return Some(WhyRejected::NodeAddress(*address));
    }
    let subnet = around.subnets.iter().find(|subnet| overlap(**subnet, range));
    subnet.copied().map(WhyRejected::Subnet)
}

/// Which of these ranges, which do not overlap each other, overlaps this one.
fn overlapping(taken: &BTreeMap<IpNetwork, &Arc<str>>, range: IpNetwork) -> Option<WhyRejected> {
    // A range that contains this one begins before it or at the same address, and none is between.
    let before = taken.range(..=range).next_back();
    let behind = taken.range(range..).next();
    let other = before.into_iter().chain(behind).find(|(other, _)| overlap(**other, range));
    other.map(|(range, by)| WhyRejected::Taken { by: Arc::clone(by), range: *range })
}

fn next_hop(
    range: IpNetwork,
    node: &OtherNode,
    around: &Neighbourhood,
) -> Result<NextHop, WhyRejected> {
    let family = family_of(range.ip());
    let of_family = || node.internal.iter().copied().filter(|ip| family_of(*ip) == family);
    let link = |address| *around.links.get(&address).unwrap_or(&Err(NotNear::Nowhere));
    let next_hop = |address| Some(NextHop { address, link: link(address).ok()? });
    of_family().find_map(next_hop).ok_or_else(|| match of_family().next() {
        Some(address) => {
            let instead = link(address).err().unwrap_or(NotNear::Nowhere);
            WhyRejected::NotANeighbour { address, instead }
        }
        None => WhyRejected::NoInternalIp,
    })
}

/// Whether some of these addresses are no pod's and no service's.
pub(super) fn is_special(range: IpNetwork) -> bool {
    special().any(|special| overlap(special, range))
}

/// Whether a range has more addresses than a node can have pods.
pub(super) fn is_too_large(range: IpNetwork) -> bool {
    let shortest = match range {
        IpNetwork::V4(_) => SHORTEST_V4,
        IpNetwork::V6(_) => SHORTEST_V6,
    };
    range.prefix() < shortest
}

/// Ranges that no pod's address is in: "this network", loopback, link-local, multicast and reserved
/// addresses (RFC 6890).
fn special() -> impl Iterator<Item = IpNetwork> {
    let special = |octets: [u8; 4], prefix| IpNetwork::new(octets.into(), prefix);
    let special6 = |first: u16, prefix| IpNetwork::new([first, 0, 0, 0, 0, 0, 0, 0].into(), prefix);
    [
        special([0, 0, 0, 0], 8),
        special([127, 0, 0, 0], 8),
        special([169, 254, 0, 0], 16),
        special([224, 0, 0, 0], 3),
        // With ::1 and IPv4-mapped addresses.
        special6(0, 8),
        special6(0xfe80, 10),
        special6(0xff00, 8),
    ]
    .into_iter()
    .flatten()
}

pub(super) fn without_host_bits(range: IpNetwork) -> IpNetwork {
    IpNetwork::new(range.network(), range.prefix()).unwrap_or(range)
}

pub(super) fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}
