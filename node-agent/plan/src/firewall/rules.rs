//! The policies in force on this node: those that select one of its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::budget::{ExcessPolicy, excess};
use super::direction::Direction;
use super::group::PortNames;
use super::peer::{PeerId, PeerScope, PeerTable};
use super::tiered_policy::TieredPolicy;
use denizen_model::{
    ClusterNetworkPolicy, NetworkPolicy, Peers, PolicyName, PolicyRule, PortMatch, Ports,
};

/// A rule of a policy in force.
#[derive(Debug, Clone)]
pub(super) struct RuleInForce {
    /// Index in the policy's list.
    pub index: usize,
    /// `None` for everybody.
    pub peers: Option<Vec<PeerId>>,
    pub ports: Ports,
}

impl RuleInForce {
    /// The port names in `ports`, each with its protocol.
    pub fn names(&self) -> impl Iterator<Item = (Arc<str>, denizen_model::Protocol)> {
        let ports = match &self.ports {
            Ports::All => &[][..],
            Ports::These(ports) => ports,
        };
        ports.iter().filter_map(|port| match &port.port {
            PortMatch::Named(name) => Some((name.clone(), port.protocol)),
            PortMatch::Any | PortMatch::Range(..) => None,
        })
    }
}

/// A policy in force: the rules of each direction that it isolates.
#[derive(Debug)]
struct PolicyInForce {
    source: NetworkPolicy,
    /// Whether its rules are left out ([`budget`](super::budget)).
    is_excess: bool,
    ingress: Option<Vec<RuleInForce>>,
    egress: Option<Vec<RuleInForce>>,
}

#[derive(Debug, Default)]
pub(super) struct PoliciesInForce {
    policies: BTreeMap<PolicyName, PolicyInForce>,
    tiers: BTreeMap<Arc<str>, TieredPolicy>,
    /// The port names in egress rules: the destination pod defines what they stand for.
    pub egress_names: PortNames,
}

impl PoliciesInForce {
    /// Makes these the policies in force. Returns the names of those that differ.
    pub fn set(
        &mut self,
        wanted: &BTreeMap<&PolicyName, &NetworkPolicy>,
        peers: &mut PeerTable,
    ) -> BTreeSet<PolicyName> {
        let mut changed = BTreeSet::new();
        let excess = excess(wanted.values().copied());
        let stays = |name: &PolicyName, policy: &PolicyInForce| {
            wanted.get(name).is_some_and(|wanted| **wanted == policy.source)
                && policy.is_excess == excess.contains(name)
        };
        // Old versions are released last, so that peers of both versions keep their ids.
        let mut stale = Vec::new();
        for (name, policy) in self.policies.extract_if(.., |name, policy| !stays(name, policy)) {
            changed.insert(name);
            stale.push(policy);
        }
        for (name, policy) in wanted {
            if !self.policies.contains_key(*name) {
                let policy = match excess.contains(*name) {
                    true => PolicyInForce::excess(policy),
                    false => PolicyInForce::new(policy, peers),
                };
                self.policies.insert((*name).clone(), policy);
                changed.insert((*name).clone());
            }
        }
        for policy in stale {
            policy.peers().for_each(|peer| peers.release(peer));
        }
        if !changed.is_empty() {
            self.collect_names();
        }
        changed
    }

    /// As [`Self::set`], for ClusterNetworkPolicies.
    pub fn set_tiers(
        &mut self,
        wanted: &BTreeMap<&str, &ClusterNetworkPolicy>,
        peers: &mut PeerTable,
    ) -> BTreeSet<Arc<str>> {
        let mut changed = BTreeSet::new();
        let stays = |name: &Arc<str>, policy: &TieredPolicy| {
            wanted.get(&**name).is_some_and(|wanted| **wanted == policy.source)
        };
        let mut stale = Vec::new();
        for (name, policy) in self.tiers.extract_if(.., |name, policy| !stays(name, policy)) {
            changed.insert(name);
            stale.push(policy);
        }
        for (name, policy) in wanted {
            if !self.tiers.contains_key(*name) {
                self.tiers.insert(policy.name.clone(), TieredPolicy::new(policy, peers));
                changed.insert(policy.name.clone());
            }
        }
        for policy in stale {
            policy.peers().for_each(|peer| peers.release(peer));
        }
        if !changed.is_empty() {
            self.collect_names();
        }
        changed
    }

    fn collect_names(&mut self) {
        let rules = self.policies.values().flat_map(|policy| policy.egress.iter().flatten());
        let of_tiers = self.tiers.values().flat_map(TieredPolicy::egress_names);
        self.egress_names = rules.flat_map(RuleInForce::names).chain(of_tiers).collect();
    }

    /// A ClusterNetworkPolicy in force.
    pub fn tier(&self, name: &str) -> Option<&TieredPolicy> {
        self.tiers.get(name)
    }

    /// How many ClusterNetworkPolicies are in force.
    pub fn tier_count(&self) -> usize {
        self.tiers.len()
    }

    /// A policy's rules for a direction.
    pub fn of(&self, policy: &PolicyName, direction: Direction) -> &[RuleInForce] {
        let policy = self.policies.get(policy);
        let rules = policy.and_then(|policy| match direction {
            Direction::Ingress => policy.ingress.as_deref(),
            Direction::Egress => policy.egress.as_deref(),
        });
        rules.unwrap_or_default()
    }

    /// The policies whose rules are left out ([`budget`](super::budget)).
    pub fn excess(&self) -> impl Iterator<Item = ExcessPolicy> {
        let excess = self.policies.iter().filter(|(_, policy)| policy.is_excess);
        excess.map(|(name, _)| ExcessPolicy(name.clone()))
    }

    pub fn len(&self) -> usize {
        self.policies.len()
    }
}

impl PolicyInForce {
    fn new(source: &NetworkPolicy, peers: &mut PeerTable) -> Self {
        let mut rules = |rules: &Option<Vec<PolicyRule>>| {
            let rules = rules.as_ref()?.iter();
            Some(rules.map(|rule| compiled(rule, &source.name.namespace, peers)).collect())
        };
        let (ingress, egress) = (rules(&source.ingress), rules(&source.egress));
        Self { source: source.clone(), is_excess: false, ingress, egress }
    }

    /// It isolates the pods that it selects, and permits nothing.
    fn excess(source: &NetworkPolicy) -> Self {
        Self { source: source.clone(), is_excess: true, ingress: None, egress: None }
    }

    fn peers(&self) -> impl Iterator<Item = PeerId> {
        let rules = [&self.ingress, &self.egress].into_iter().flatten().flatten();
        rules.flat_map(|rule| rule.peers.iter().flatten()).copied()
    }
}

fn compiled(rule: &PolicyRule, namespace: &Arc<str>, table: &mut PeerTable) -> RuleInForce {
    let peers = match &rule.peers {
        Peers::All => None,
        Peers::These(peers) => {
            let scopes = PeerScope::all(peers, namespace, &table.every_pod).into_iter();
            Some(scopes.map(|scope| table.acquire(scope)).collect())
        }
    };
    RuleInForce { index: rule.index, peers, ports: rule.ports.clone() }
}
