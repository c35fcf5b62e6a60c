//! What is never announced, whatever the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::direct::{is_special, is_too_large, overlap};
use super::{Announcing, Forbidden};
use crate::model::{ServiceName, Slice};

/// The Service of the API server, whose endpoints are the server's own addresses.
const API_NAMESPACE: &str = "default";
const API_NAME: &str = "kubernetes";

/// Whose addresses are whose.
pub(super) struct Forbidding<'a> {
    /// Those that the Node objects name.
    nodes: BTreeMap<IpAddr, &'a Arc<str>>,
    /// All of this node's links, which no service may take.
    own: &'a BTreeSet<IpAddr>,
    /// This node's name.
    name: &'a Arc<str>,
    api: BTreeSet<IpAddr>,
    gateways: &'a BTreeSet<IpAddr>,
    peers: &'a BTreeSet<IpAddr>,
    pod_ranges: Vec<(IpNetwork, &'a Arc<str>)>,
}

impl<'a> Forbidding<'a> {
    pub(super) fn new(by: &'a Announcing<'_>) -> Self {
        let name = &by.plan.policy().settings.node_name;
        let own = by.nodes.own.iter().flat_map(|node| &node.addresses).map(|ip| (*ip, name));
        let of_others = by.nodes.others.iter().flat_map(|(name, node)| {
            node.internal.iter().chain(&node.external).map(move |ip| (*ip, name))
        });
        let own_ranges = by.nodes.own.iter().flat_map(|node| &node.pod_cidrs);
        let own_ranges = own_ranges.map(|range| (*range, name));
        let others = by.nodes.others.iter();
        let ranges = others.flat_map(|(name, it)| it.pod_cidrs.iter().map(move |at| (*at, name)));
        let api = ServiceName::new(API_NAMESPACE, API_NAME);
        let endpoints = by.world.slices(&api).flat_map(|slice: &Slice| &slice.endpoints);
        Self {
            nodes: of_others.chain(own).collect(),
            own: &by.plan.node().own,
            name,
            api: endpoints.map(|endpoint| endpoint.address).collect(),
            gateways: &by.surveyed.gateways,
            peers: &by.settings.peers,
            pod_ranges: own_ranges.chain(ranges).collect(),
        }
    }

    /// The API server's addresses.
    pub(super) fn api(&self) -> &BTreeSet<IpAddr> {
        &self.api
    }

    /// Why this node's podCIDR is not announced. It may contain addresses of this node's links: a
    /// bridge of its pods has one.
    pub(super) fn pod_range(&self, range: IpNetwork) -> Option<Forbidden> {
        let others = self.pod_ranges.iter().filter(|(_, node)| *node != self.name);
        unroutable(range).or_else(|| self.host_in(range)).or_else(|| overlapping(others, range))
    }

    /// Why a pod is not announced by itself. It may be in another node's podCIDR: it has moved.
    pub(super) fn pod(&self, address: IpAddr) -> Option<Forbidden> {
        self.of_host(address)
    }

    /// The podCIDRs that some of these ranges overlap: [`Self::service`] looks at no others.
    pub(super) fn contested(&self, ranges: &[IpNetwork]) -> Vec<(IpNetwork, &'a Arc<str>)> {
        let is_contested = |at: &IpNetwork| ranges.iter().any(|range| overlap(*range, *at));
        self.pod_ranges.iter().filter(|(at, _)| is_contested(at)).copied().collect()
    }

    /// Why a service's address is not announced.
    pub(super) fn service(
        &self,
        address: IpAddr,
        contested: &[(IpNetwork, &Arc<str>)],
    ) -> Option<Forbidden> {
        self.of_host(address).or_else(|| overlapping(contested.iter(), address.into()))
    }

    /// Whose address this is, of those that are no pod's and no service's.
    fn of_host(&self, address: IpAddr) -> Option<Forbidden> {
        let own = self.own.get(&address).map(|ip| (ip, self.name));
        let node = self.nodes.get_key_value(&address).map(|(ip, name)| (ip, *name)).or(own);
        unroutable(address.into())
            .or_else(|| {
                node.map(|(_, node)| Forbidden::NodeAddress { address, node: node.clone() })
            })
            .or_else(|| self.host_in(address.into()))
    }

    /// An address of a node, of the API server, of a gateway or of a peer in a range.
    fn host_in(&self, range: IpNetwork) -> Option<Forbidden> {
        let (first, last) = (range.network(), range.broadcast());
        let node = self.nodes.range(first..=last).next().map(|(address, node)| {
            Forbidden::NodeAddress { address: *address, node: Arc::clone(node) }
        });
        let api = || self.api.range(first..=last).next().copied().map(Forbidden::ApiServer);
        let gateway = || self.gateways.range(first..=last).next().copied().map(Forbidden::Gateway);
        let peer = || self.peers.range(first..=last).next().copied().map(Forbidden::Peer);
        node.or_else(api).or_else(gateway).or_else(peer)
    }
}

fn unroutable(range: IpNetwork) -> Option<Forbidden> {
    if is_special(range) {
        return Some(Forbidden::Special);
    }
    is_too_large(range).then_some(Forbidden::TooLarge)
}

fn overlapping<'a>(
    mut ranges: impl Iterator<Item = &'a (IpNetwork, &'a Arc<str>)>,
    range: IpNetwork,
) -> Option<Forbidden> {
    let found = ranges.find(|(other, _)| overlap(*other, range));
    found.map(|(range, node)| Forbidden::PodRange { range: *range, node: Arc::clone(node) })
}
