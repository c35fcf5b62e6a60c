//! ClusterNetworkPolicies in force on this node, with the peers that their rules name.

use std::sync::Arc;

use super::direction::Direction;
use super::peer::{PeerId, PeerScope, PeerTable};
use denizen_model::{
    Action, Block, ClusterNetworkPolicy, Protocol, TierPeer, TierPeers, TierPort, TierPorts,
    TierRule,
};

/// A rule of a policy in force.
#[derive(Debug, Clone)]
pub(super) struct TieredRule {
    /// Its index in the policy's list.
    pub index: usize,
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    pub action: Action,
    /// The peers that it is about; `None` for everybody.
    pub peers: Option<Vec<PeerId>>,
    pub ports: TierPorts,
}

/// A policy in force.
#[derive(Debug)]
pub(super) struct TieredPolicy {
    pub source: ClusterNetworkPolicy,
    ingress: Vec<TieredRule>,
    egress: Vec<TieredRule>,
}

impl TieredPolicy {
    pub fn new(source: &ClusterNetworkPolicy, table: &mut PeerTable) -> Self {
        let mut rules =
            |rules: &[TierRule]| rules.iter().map(|rule| compiled(rule, table)).collect();
        let (ingress, egress) = (rules(&source.ingress), rules(&source.egress));
        Self { source: source.clone(), ingress, egress }
    }

    /// Its rules for a direction, in order.
    pub fn rules(&self, direction: Direction) -> &[TieredRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// The peers that it names.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        let rules = self.ingress.iter().chain(&self.egress);
        rules.flat_map(|rule| rule.peers.iter().flatten()).copied()
    }

    /// The port names in egress rules, which the destination pod defines. Rules name a port without
    /// a protocol, so each name comes with every protocol.
    pub fn egress_names(&self) -> impl Iterator<Item = (Arc<str>, Protocol)> {
        let names = self.egress.iter().flat_map(|rule| names(&rule.ports)).cloned();
        names.flat_map(|name| {
            [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (name.clone(), protocol))
        })
    }
}

fn compiled(rule: &TierRule, table: &mut PeerTable) -> TieredRule {
    let peers = match &rule.peers {
        TierPeers::All => None,
        TierPeers::These(peers) => {
            let (mut all, mut blocks) = (Vec::new(), Vec::new());
            for peer in peers {
                match peer {
                    TierPeer::Pods { namespaces, pods } => {
                        all.push(PeerScope::PodsBySelectors {
                            namespaces: namespaces.clone(),
                            pods: pods.clone(),
                        });
                    }
                    TierPeer::Nodes(nodes) => all.push(PeerScope::Nodes(nodes.clone())),
                    TierPeer::Network(range) => {
                        blocks.push(Block { range: *range, except: Vec::new() });
                    }
                }
            }
            all.extend((!blocks.is_empty()).then(|| PeerScope::Blocks(blocks.into())));
            Some(all.into_iter().map(|scope| table.acquire(scope)).collect())
        }
    };
    let TierRule { index, name, action, ports, .. } = rule;
    TieredRule { index: *index, name: name.clone(), action: *action, peers, ports: ports.clone() }
}

/// The names in the ports of a rule.
pub(super) fn names(ports: &TierPorts) -> impl Iterator<Item = &Arc<str>> {
    let ports = match ports {
        TierPorts::All => &[][..],
        TierPorts::These(ports) => ports,
    };
    ports.iter().filter_map(|port| match port {
        TierPort::Named(name) => Some(name),
        TierPort::Range(..) => None,
    })
}
