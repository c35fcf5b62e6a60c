//! What is never announced, whatever the configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::pod_ranges::{PodRanges, is_special, is_too_large, overlap};
use super::{AnnounceInputs, ForbiddenReason};
use denizen_model::{ServiceName, Slice};

/// The Service of the API server. Its endpoints are the API server's own addresses.
const API_NAMESPACE: &str = "default";
const API_NAME: &str = "kubernetes";

/// Who owns which addresses: what belongs to others must never be announced.
pub(super) struct ForbiddenPrefixes<'a> {
    /// The claims of the Node objects.
    nodes: PodRanges<'a>,
    /// The addresses of all links of this node. No service may take one.
    protected_addresses: &'a BTreeSet<IpAddr>,
    name: &'a Arc<str>,
    api: BTreeSet<IpAddr>,
    gateways: &'a BTreeSet<IpAddr>,
    peers: &'a BTreeSet<IpAddr>,
}

impl<'a> ForbiddenPrefixes<'a> {
    pub(super) fn new(by: &'a AnnounceInputs<'_>) -> Self {
        let api = ServiceName::new(API_NAMESPACE, API_NAME);
        let endpoints = by.world.slices(&api).flat_map(|slice: &Slice| &slice.endpoints);
        Self {
            nodes: PodRanges::taken(by.nodes),
            protected_addresses: &by.plan.node().protected_addresses,
            name: &by.plan.policy().settings.node_name,
            api: endpoints.map(|endpoint| endpoint.address).collect(),
            gateways: &by.surveyed.gateways,
            peers: &by.settings.peers,
        }
    }

    /// The API server's addresses.
    pub(super) fn api(&self) -> &BTreeSet<IpAddr> {
        &self.api
    }

    /// Why a podCIDR of this node is not announced. It may contain addresses of this node's own
    /// links: those of its pods' bridge.
    pub(super) fn pod_range(&self, range: IpNetwork) -> Option<ForbiddenReason> {
        let node = || {
            let (address, node) = self.nodes.address_in(range, self.nodes.node(self.name)?)?;
            Some(ForbiddenReason::NodeAddress { address, node: Arc::clone(node) })
        };
        let others = self.nodes.ranges().filter(|(_, node)| *node != self.name);
        unroutable(range)
            .or_else(node)
            .or_else(|| self.host_in(range))
            .or_else(|| overlapping(others, range))
    }

    /// Whether pods of this node have addresses of this range.
    pub(super) fn has_own_pods(&self, range: IpNetwork) -> bool {
        self.nodes.ranges().any(|(at, node)| node == self.name && overlap(at, range))
    }

    /// Why a single pod is not announced. It may lie in another node's podCIDR: then it has moved
    /// here.
    pub(super) fn pod(&self, address: IpAddr) -> Option<ForbiddenReason> {
        self.of_host(address)
    }

    /// The podCIDRs that overlap one of these ranges: [`Self::service`] checks no others.
    pub(super) fn contested(&self, ranges: &[IpNetwork]) -> Vec<(IpNetwork, &'a Arc<str>)> {
        let is_contested = |at: IpNetwork| ranges.iter().any(|range| overlap(*range, at));
        self.nodes.ranges().filter(|(at, _)| is_contested(*at)).collect()
    }

    /// Why a service's address is not announced.
    pub(super) fn service(
        &self,
        address: IpAddr,
        contested: &[(IpNetwork, &Arc<str>)],
    ) -> Option<ForbiddenReason> {
        let contested = contested.iter().copied();
        self.of_host(address).or_else(|| overlapping(contested, address.into()))
    }

    /// The owner of an address that is neither a pod's nor a service's.
    fn of_host(&self, address: IpAddr) -> Option<ForbiddenReason> {
        let own = || self.protected_addresses.contains(&address).then_some(self.name);
        let node = || {
            let node = Arc::clone(self.nodes.with_address(address).or_else(own)?);
            Some(ForbiddenReason::NodeAddress { address, node })
        };
        unroutable(address.into()).or_else(node).or_else(|| self.host_in(address.into()))
    }

    /// An address of the API server, of a gateway or of a peer in a range.
    fn host_in(&self, range: IpNetwork) -> Option<ForbiddenReason> {
        let (first, last) = (range.network(), range.broadcast());
        let first_of = |hosts: &BTreeSet<IpAddr>| hosts.range(first..=last).next().copied();
        let gateway = || first_of(self.gateways).map(ForbiddenReason::Gateway);
        let peer = || first_of(self.peers).map(ForbiddenReason::Peer);
        first_of(&self.api).map(ForbiddenReason::ApiServer).or_else(gateway).or_else(peer)
    }
}

fn unroutable(range: IpNetwork) -> Option<ForbiddenReason> {
    if is_special(range) {
        return Some(ForbiddenReason::Special);
    }
    is_too_large(range).then_some(ForbiddenReason::TooLarge)
}

fn overlapping<'a>(
    mut ranges: impl Iterator<Item = (IpNetwork, &'a Arc<str>)>,
    range: IpNetwork,
) -> Option<ForbiddenReason> {
    let (range, node) = ranges.find(|(other, _)| overlap(*other, range))?;
    Some(ForbiddenReason::PodRange { range, node: Arc::clone(node) })
}
