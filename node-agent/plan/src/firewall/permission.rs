//! What the pods of one class may do: the union of the rules of the policies that select them.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::direction::Direction;
use super::identity::{Identities, IdentityId, IdentityKey};
use super::peer::PeerTable;
use super::permitted_ports::{PermittedPorts, PortSet};
use super::ports_by_peer::PortsByPeer;
use super::rules::{PoliciesInForce, RuleInForce};
use super::tier::{Rulebook, TierEvaluator};
use denizen_model::{NamedPort, PolicyName, PolicyPort, PortMatch, Ports, Protocol};

/// One permission. Permissions only add up: none takes anything away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permission {
    /// The peer; `None` for everybody.
    pub peer: Option<IdentityId>,
    pub ports: PortKey,
}

/// Ports of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortKey {
    /// Every port of every protocol, including protocols without ports.
    All,
    Protocol(Protocol),
    /// From the first port to the second, both included.
    Range(Protocol, NonZeroU16, NonZeroU16),
}

impl PortKey {
    /// Whether it covers this port. [`PolicyFlow`](super::PolicyFlow) says what `None` means.
    pub fn covers(self, protocol: Option<Protocol>, port: Option<NonZeroU16>) -> bool {
        match self {
            Self::All => true,
            Self::Protocol(its) => Some(its) == protocol,
            Self::Range(its, first, last) => {
                Some(its) == protocol && port.is_some_and(|port| (first..=last).contains(&port))
            }
        }
    }

    fn named(port: &NamedPort) -> Self {
        Self::Range(port.protocol, port.port, port.port)
    }
}

/// Pods with equal keys have equal permissions in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub direction: Direction,
    /// The policies that select the pods, sorted.
    pub policies: Vec<PolicyName>,
    /// The pods' own named ports, if the key is for ingress and rules name ports.
    pub ports: Vec<NamedPort>,
    /// Whether the pods are isolated by [`Self::policies`], which may permit nothing.
    pub is_isolated: bool,
    /// The ClusterNetworkPolicies that say something about this direction, in order; `None` if
    /// none says anything about any direction of the pods.
    pub tiers: Option<Vec<Arc<str>>>,
}

/// The permissions of a class, sorted.
pub(super) type Permissions = Arc<[Permission]>;

impl ClassKey {
    pub(super) fn permissions(
        &self,
        rules: &PoliciesInForce,
        identities: &Identities,
    ) -> Permissions {
        let mut all = BTreeSet::new();
        for (_, rule) in self.rules(rules) {
            self.add(rule, identities, &mut all);
        }
        let everything = Permission { peer: None, ports: PortKey::All };
        if all.contains(&everything) {
            return Arc::new([everything]);
        }
        without_overlaps(all)
    }

    /// What may pass between these pods and each identity. Results of `before` are kept for
    /// identities that are still in use.
    pub(super) fn by_peer(
        &self,
        rules: &PoliciesInForce,
        identities: &Identities,
        table: &PeerTable,
        before: Option<&PortsByPeer>,
    ) -> Option<PortsByPeer> {
        let book = self.rulebook(rules)?;
        let evaluator = self.evaluator(table);
        let nobody = IdentityKey::default();
        let peers = [None].into_iter().chain(identities.iter().map(|(id, _)| Some(id)));
        Some(PortsByPeer::new(peers, before, |peer| {
            let key = peer.and_then(|id| identities.key(id)).unwrap_or(&nobody);
            let permitted = || self.permitted(rules, key);
            book.permitted(&evaluator, key, self.is_isolated.then_some(permitted))
        }))
    }

    /// The rules of tiers, if any ClusterNetworkPolicy selects these pods.
    pub(super) fn rulebook<'a>(&self, rules: &'a PoliciesInForce) -> Option<Rulebook<'a>> {
        let policies = self.tiers.as_ref()?.iter().filter_map(|name| rules.tier(name));
        Some(Rulebook::new(policies, self.direction))
    }

    pub(super) fn evaluator<'a>(&'a self, table: &'a PeerTable) -> TierEvaluator<'a> {
        TierEvaluator { direction: self.direction, ports: &self.ports, table }
    }

    /// What passes between one of these pods and itself, through a service. NetworkPolicies never
    /// forbid that.
    pub(super) fn itself(
        &self,
        rules: &PoliciesInForce,
        table: &PeerTable,
        own: &IdentityKey,
    ) -> Option<PermittedPorts> {
        let book = self.rulebook(rules)?;
        let permitted = self.is_isolated.then_some(PortSet::all);
        Some(book.permitted(&self.evaluator(table), own, permitted))
    }

    /// What NetworkPolicies permit to a peer.
    fn permitted(&self, rules: &PoliciesInForce, key: &IdentityKey) -> PortSet {
        let mut set = PortSet::default();
        for (_, rule) in self.rules(rules) {
            if rule.peers.as_ref().is_some_and(|peers| !key.is_any_of(peers)) {
                continue;
            }
            for ports in self.fixed_ports(rule).into_iter().chain(self.named_ports(rule, key)) {
                match ports {
                    PortKey::All => return PortSet::all(),
                    PortKey::Protocol(protocol) => set.add_all(protocol),
                    PortKey::Range(protocol, first, last) => set.add(protocol, first, last),
                }
            }
        }
        set
    }

    /// The rules, each with its policy.
    pub(super) fn rules<'a>(
        &'a self,
        rules: &'a PoliciesInForce,
    ) -> impl Iterator<Item = (&'a PolicyName, &'a RuleInForce)> {
        let of = |policy| rules.of(policy, self.direction).iter().map(move |rule| (policy, rule));
        self.policies.iter().flat_map(of)
    }

    fn add(&self, rule: &RuleInForce, identities: &Identities, all: &mut BTreeSet<Permission>) {
        let fixed = self.fixed_ports(rule);
        let peers: Vec<IdentityId> = match &rule.peers {
            None => {
                all.extend(fixed.iter().map(|ports| Permission { peer: None, ports: *ports }));
                self.has_names(rule).then(|| identities.iter().map(|(id, _)| id).collect())
            }
            Some(peers) => Some(identities.of(peers).into_iter().collect()),
        }
        .unwrap_or_default();
        for id in peers {
            let peer = Some(id);
            if rule.peers.is_some() {
                all.extend(fixed.iter().map(|ports| Permission { peer, ports: *ports }));
            }
            let key = identities.key(id).into_iter();
            let named = key.flat_map(|key| self.named_ports(rule, key));
            all.extend(named.map(|ports| Permission { peer, ports }));
        }
    }

    /// The ports that are the same for every peer.
    fn fixed_ports(&self, rule: &RuleInForce) -> Vec<PortKey> {
        let Ports::These(ports) = &rule.ports else { return vec![PortKey::All] };
        let fixed = ports.iter().flat_map(|port| match &port.port {
            PortMatch::Any => vec![PortKey::Protocol(port.protocol)],
            PortMatch::Range(first, last) => vec![PortKey::Range(port.protocol, *first, *last)],
            PortMatch::Named(name) => match self.direction {
                Direction::Ingress => {
                    resolved(&self.ports, name, port.protocol).map(PortKey::named).collect()
                }
                Direction::Egress => Vec::new(),
            },
        });
        fixed.collect()
    }

    fn has_names(&self, rule: &RuleInForce) -> bool {
        self.direction == Direction::Egress && rule.names().next().is_some()
    }

    /// Named ports of an egress rule, on a destination of this identity.
    fn named_ports(&self, rule: &RuleInForce, key: &IdentityKey) -> Vec<PortKey> {
        if !self.has_names(rule) {
            return Vec::new();
        }
        let names = rule.names();
        names
            .flat_map(|(name, protocol)| {
                let ports = resolved(&key.ports, &name, protocol).map(PortKey::named);
                ports.collect::<Vec<_>>()
            })
            .collect()
    }

    /// The ports that an entry of `ports` permits with a peer of this identity.
    fn ports_of(&self, entry: &PolicyPort, peer: &IdentityKey) -> Vec<PortKey> {
        match &entry.port {
            PortMatch::Any => vec![PortKey::Protocol(entry.protocol)],
            PortMatch::Range(first, last) => {
                vec![PortKey::Range(entry.protocol, *first, *last)]
            }
            PortMatch::Named(name) => {
                let ports = match self.direction {
                    Direction::Ingress => &self.ports,
                    Direction::Egress => &peer.ports,
                };
                resolved(ports, name, entry.protocol).map(PortKey::named).collect()
            }
        }
    }

    /// Whether an identity that came or went may change the permissions.
    pub(super) fn may_name(&self, key: &IdentityKey, rules: &PoliciesInForce) -> bool {
        self.rules(rules).any(|(_, rule)| match &rule.peers {
            None => self.has_names(rule) && !key.ports.is_empty(),
            Some(peers) => key.is_any_of(peers),
        })
    }

    /// The first rule that permits this port to this peer, and the peer of the rule that covers it
    /// (`None`: everybody).
    pub(super) fn permitting<'a>(
        &'a self,
        rules: &'a PoliciesInForce,
        peer: &IdentityKey,
        protocol: Option<Protocol>,
        port: Option<NonZeroU16>,
    ) -> Option<PermittingRule<'a>> {
        self.rules(rules).find_map(|(policy, rule)| {
            let covering = match &rule.peers {
                None => None,
                Some(peers) => Some(*peers.iter().find(|id| peer.is_any_of(&[**id]))?),
            };
            let covers = |entry: &&PolicyPort| {
                let mut ports = self.ports_of(entry, peer).into_iter();
                ports.any(|ports| ports.covers(protocol, port))
            };
            let entry = match &rule.ports {
                Ports::All => None,
                Ports::These(entries) => Some(entries.iter().find(covers)?),
            };
            Some(PermittingRule { policy, index: rule.index, peer: covering, entry })
        })
    }
}

/// The policies that changed.
#[derive(Debug, Default)]
pub(super) struct RuleChanges {
    pub policies: BTreeSet<PolicyName>,
    pub tiers: BTreeSet<Arc<str>>,
}

impl RuleChanges {
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.tiers.is_empty()
    }

    /// Whether the rules of a class changed.
    pub fn concerns(&self, class: &ClassKey) -> bool {
        class.policies.iter().any(|policy| self.policies.contains(policy))
            || class.tiers.iter().flatten().any(|policy| self.tiers.contains(policy))
    }
}

/// Merges overlapping port ranges of one peer, so that each port is permitted once.
fn without_overlaps(all: BTreeSet<Permission>) -> Permissions {
    let mut merged: Vec<Permission> = Vec::with_capacity(all.len());
    for next in all {
        if let Some(Permission { peer, ports: PortKey::Range(protocol, _, last) }) =
            merged.last_mut()
            && let PortKey::Range(its, from, to) = next.ports
            && (*peer, *protocol) == (next.peer, its)
            && from <= *last
        {
            *last = to.max(*last);
        } else {
            merged.push(next);
        }
    }
    merged.into()
}

/// The rule that permits something.
pub(super) struct PermittingRule<'a> {
    pub policy: &'a PolicyName,
    pub index: usize,
    pub peer: Option<super::peer::PeerId>,
    /// The entry of `ports` that covers the packet; `None` if the rule permits all ports.
    pub entry: Option<&'a PolicyPort>,
}

fn resolved<'a>(
    ports: &'a [NamedPort],
    name: &'a str,
    protocol: Protocol,
) -> impl Iterator<Item = &'a NamedPort> {
    ports.iter().filter(move |port| *port.name == *name && port.protocol == protocol)
}
