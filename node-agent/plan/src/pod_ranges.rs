//! Which podCIDR belongs to which Node. Pure.
//!
//! A Node object can claim any range and any address. Only ranges that a node's pods can have
//! count, and of two Nodes with one claim the older has it: one object never takes from others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use denizen_model::{Node, Nodes, OtherNode};

/// The shortest prefixes that count as the range of one node's pods.
pub(super) const SHORTEST_V4: u8 = 12;
pub(super) const SHORTEST_V6: u8 = 32;

/// A Node and its claims.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeClaimant<'a> {
    pub name: &'a Arc<str>,
    created: &'a Arc<str>,
    addresses: [&'a [IpAddr]; 2],
    pod_cidrs: &'a [IpNetwork],
}

impl<'a> From<&'a Node> for RangeClaimant<'a> {
    fn from(node: &'a Node) -> Self {
        let Node { name, created, addresses, pod_cidrs, .. } = node;
        Self { name, created, addresses: [addresses, &[]], pod_cidrs }
    }
}

impl<'a> From<(&'a Arc<str>, &'a OtherNode)> for RangeClaimant<'a> {
    fn from((name, node): (&'a Arc<str>, &'a OtherNode)) -> Self {
        let OtherNode { created, internal, external, pod_cidrs, labels: _ } = node;
        Self { name, created, addresses: [internal, external], pod_cidrs }
    }
}

impl<'a> RangeClaimant<'a> {
    /// Its podCIDRs.
    pub fn ranges(self) -> impl Iterator<Item = IpNetwork> + use<'a> {
        self.pod_cidrs.iter().copied().map(without_host_bits)
    }

    /// A sort key by age: the oldest Node has the smallest.
    fn age(self) -> (&'a Arc<str>, &'a Arc<str>) {
        (self.created, self.name)
    }
}

/// The addresses of all Nodes, and the podCIDRs that count.
#[derive(Debug)]
pub(super) struct PodRanges<'a> {
    nodes: Vec<RangeClaimant<'a>>,
    /// Each address with the oldest Node that has it.
    addresses: BTreeMap<IpAddr, RangeClaimant<'a>>,
    /// No two overlap.
    taken: BTreeMap<IpNetwork, &'a Arc<str>>,
}

impl<'a> PodRanges<'a> {
    /// The claims of these nodes. No range is taken yet.
    pub fn claimed(nodes: &'a Nodes) -> Self {
        let own = nodes.own.iter().map(RangeClaimant::from);
        let mut all: Vec<_> = own.chain(nodes.others.iter().map(RangeClaimant::from)).collect();
        all.sort_by_key(|node| node.age());
        let of_node = |node: &RangeClaimant<'a>| {
            let node = *node;
            node.addresses.into_iter().flatten().map(move |address| (*address, node))
        };
        let addresses = all.iter().rev().flat_map(of_node).collect();
        Self { nodes: all, addresses, taken: BTreeMap::new() }
    }

    /// The claims of these nodes. Each range that counts is taken.
    pub fn taken(nodes: &'a Nodes) -> Self {
        let mut all = Self::claimed(nodes);
        for node in all.nodes.clone() {
            for range in node.ranges() {
                let is_usable = !is_special(range) && !is_too_large(range);
                let is_free = is_usable
                    && all.address_in(range, node).is_none()
                    && all.overlapping(range).is_none();
                if is_free {
                    all.take(range, node);
                }
            }
        }
        all
    }

    /// The oldest first.
    pub fn by_age(&self) -> Vec<RangeClaimant<'a>> {
        self.nodes.clone()
    }

    pub fn node(&self, name: &str) -> Option<RangeClaimant<'a>> {
        self.nodes.iter().find(|node| **node.name == *name).copied()
    }

    /// The node with this address: the oldest one.
    pub fn with_address(&self, address: IpAddr) -> Option<&'a Arc<str>> {
        self.addresses.get(&address).map(|node| node.name)
    }

    /// A node address in a range that the Node `of` claims: one of that Node itself, or of an older
    /// one. Addresses of younger Nodes do not matter.
    pub fn address_in(
        &self,
        range: IpNetwork,
        of: RangeClaimant<'_>,
    ) -> Option<(IpAddr, &'a Arc<str>)> {
        let mut within = self.addresses.range(range.network()..=range.broadcast());
        let (address, node) = within.find(|(_, node)| node.age() <= of.age())?;
        Some((*address, node.name))
    }

    /// A range that is taken and overlaps this one.
    pub fn overlapping(&self, range: IpNetwork) -> Option<(IpNetwork, &'a Arc<str>)> {
        // A range that contains this one begins before it or at the same address, and no taken
        // range is between.
        let before = self.taken.range(..=range).next_back();
        let behind = self.taken.range(range..).next();
        let mut around = before.into_iter().chain(behind);
        around.find(|(other, _)| overlap(**other, range)).map(|(range, name)| (*range, *name))
    }

    /// Gives a range to a node. No taken range may overlap it.
    pub fn take(&mut self, range: IpNetwork, node: RangeClaimant<'a>) {
        self.taken.insert(range, node.name);
    }

    /// The ranges that are taken.
    pub fn ranges(&self) -> impl Iterator<Item = (IpNetwork, &'a Arc<str>)> {
        self.taken.iter().map(|(range, name)| (*range, *name))
    }
}

/// Whether the range contains addresses that neither a pod nor a service can have.
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
        // Contains ::1 and IPv4-mapped addresses.
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
