//! The identity keys of addresses that no known pod has: nodes' addresses, and addresses in nodes'
//! pod ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::FirewallPlan;
use super::address::BlockLookup;
use super::identity::{IdentityKey, OwnerKnowledge};
use super::peer::PeerId;
use denizen_model::{Block, ClusterFacts, node_addresses_in};

/// The identity keys of nodes' addresses, while ClusterNetworkPolicies are in force: these
/// addresses are known not to be pods', and a `nodes` peer may select those of Node objects.
pub fn keys_of_nodes(
    plan: &FirewallPlan,
    cluster: ClusterFacts<'_>,
) -> BTreeMap<IpAddr, IdentityKey> {
    if plan.pod_ranges.is_none() {
        return BTreeMap::new();
    }
    let mut named: BTreeMap<IpAddr, BTreeSet<PeerId>> = BTreeMap::new();
    for (addresses, labels) in cluster.nodes() {
        let peers: Vec<PeerId> = plan.peers.of_node(labels).collect();
        for address in addresses {
            named.entry(address).or_default().extend(&peers);
        }
    }
    let lookup = BlockLookup { pieces: &plan.pieces, pod_ranges: plan.pod_ranges };
    let nodes = plan.nodes.iter().filter(|ip| !plan.addresses.is_claimed(**ip));
    let key = |address: &IpAddr| {
        let mut peers = named.remove(address).unwrap_or_default();
        peers.extend(lookup.blocks(*address));
        let peers = peers.into_iter().collect();
        (*address, IdentityKey { peers, ports: Vec::new(), knowledge: OwnerKnowledge::Known })
    };
    nodes.map(key).collect()
}

/// The identity key of those addresses of a range that no known pod or node has.
pub fn key_of_range(peers: &[PeerId], pod_ranges: Option<PeerId>) -> IdentityKey {
    let is_of_pods = |peer: &PeerId| Some(*peer) == pod_ranges;
    let knowledge = match peers.iter().any(is_of_pods) {
        true => OwnerKnowledge::Unknown,
        false => OwnerKnowledge::NotNeeded,
    };
    let peers = peers.iter().filter(|peer| !is_of_pods(peer)).copied().collect();
    IdentityKey { peers, ports: Vec::new(), knowledge }
}

/// The ranges in which an address may be a pod's: the podCIDRs, and link-local addresses, which
/// neighbours on a bridge give themselves. While not all pods are known, it is every address: a
/// rule that denies by labels must also hold for pods that the sources do not show.
pub fn ranges_of_pods(cluster: ClusterFacts<'_>) -> Arc<[Block]> {
    if !cluster.knows_all_pods() {
        let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let all = all.into_iter().filter_map(|first| IpNetwork::new(first, 0).ok());
        return all.map(|range| Block { range, except: Vec::new() }).collect();
    }
    let ranges: BTreeSet<IpNetwork> = cluster.pod_ranges().collect();
    let link_local = IpNetwork::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10);
    let link_local = link_local.into_iter().map(|range| Block { range, except: Vec::new() });
    ranges.into_iter().map(block_of_pods).chain(link_local).collect()
}

/// A podCIDR without the addresses that its node has.
fn block_of_pods(range: IpNetwork) -> Block {
    Block { range, except: node_addresses_in(range).map(IpNetwork::from).collect() }
}
