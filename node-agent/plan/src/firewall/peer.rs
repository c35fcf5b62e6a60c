//! The peers of the policies in force on this node, each once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use denizen_model::{Block, Labels, Namespaces, Operator, PolicyPeer, Selector, SortedSet};

/// A peer of policies in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PeerId(u32);

/// What a peer covers, independent of the policy that names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PeerScope {
    /// Pods of one namespace.
    PodsInNamespace { namespace: Arc<str>, pods: Selector },
    /// Pods of namespaces with these labels.
    PodsBySelectors { namespaces: Selector, pods: Selector },
    /// Addresses: all `ipBlock`s of one rule together. Nothing has to tell them apart, and there
    /// may be thousands.
    Blocks(Arc<[Block]>),
    /// Addresses of nodes with these labels.
    Nodes(Selector),
    /// The ranges of pods' addresses. No policy names this peer.
    PodRanges(Arc<[Block]>),
    /// Addresses that only pods have, by configuration: what an empty namespaceSelector covers
    /// where not all pods are known.
    EveryPod(Arc<[Block]>),
}

impl PeerScope {
    /// What the peers of a rule in a policy of this namespace cover. `every_pod`: the ranges of
    /// [`Self::EveryPod`].
    pub fn all(peers: &[PolicyPeer], namespace: &Arc<str>, every_pod: &Arc<[Block]>) -> Vec<Self> {
        let (mut all, mut blocks) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer {
                PolicyPeer::Pods { namespaces: Namespaces::Own, pods } => {
                    all.push(Self::PodsInNamespace {
                        namespace: namespace.clone(),
                        pods: pods.clone(),
                    });
                }
                PolicyPeer::Pods { namespaces: Namespaces::Selected(namespaces), pods } => {
                    all.push(Self::PodsBySelectors {
                        namespaces: namespaces.clone(),
                        pods: pods.clone(),
                    });
                    if namespaces.is_empty() && pods.is_empty() && !every_pod.is_empty() {
                        all.push(Self::EveryPod(every_pod.clone()));
                    }
                }
                PolicyPeer::Block(block) => blocks.push(block.clone()),
            }
        }
        all.extend((!blocks.is_empty()).then(|| Self::Blocks(blocks.into())));
        all
    }

    /// The part that covers this address: of several `ipBlock`s, the one that contains it.
    pub fn covering(&self, address: IpAddr) -> Self {
        match self {
            Self::Blocks(blocks) => Self::Blocks(
                blocks.iter().filter(|block| block.contains(address)).take(1).cloned().collect(),
            ),
            Self::PodsInNamespace { .. }
            | Self::PodsBySelectors { .. }
            | Self::Nodes(_)
            | Self::PodRanges(_)
            | Self::EveryPod(_) => self.clone(),
        }
    }

    /// What it covers by address.
    pub fn blocks(&self) -> Option<&[Block]> {
        match self {
            Self::Blocks(blocks) | Self::PodRanges(blocks) | Self::EveryPod(blocks) => Some(blocks),
            Self::PodsInNamespace { .. } | Self::PodsBySelectors { .. } | Self::Nodes(_) => None,
        }
    }

    /// Whether it covers a pod, by labels.
    pub fn selects(&self, namespace: &str, of_namespace: &Labels, labels: &Labels) -> bool {
        match self {
            Self::PodsInNamespace { namespace: own, pods } => {
                **own == *namespace && pods.selects(labels)
            }
            Self::PodsBySelectors { namespaces, pods } => {
                namespaces.selects(of_namespace) && pods.selects(labels)
            }
            Self::Blocks(_) | Self::Nodes(_) | Self::PodRanges(_) | Self::EveryPod(_) => false,
        }
    }
}

impl fmt::Display for PeerScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodsInNamespace { namespace, pods } if pods.is_empty() => {
                write!(f, "every pod of namespace {namespace}")
            }
            Self::PodsInNamespace { namespace, pods } => {
                write!(f, "pods of namespace {namespace} with {}", SelectorText(pods))
            }
            Self::PodsBySelectors { namespaces, pods } => {
                match pods.is_empty() {
                    true => f.write_str("every pod of ")?,
                    false => write!(f, "pods with {} of ", SelectorText(pods))?,
                }
                match namespaces.is_empty() {
                    true => f.write_str("every namespace"),
                    false => write!(f, "namespaces with {}", SelectorText(namespaces)),
                }
            }
            Self::Nodes(nodes) if nodes.is_empty() => f.write_str("every node"),
            Self::Nodes(nodes) => write!(f, "nodes with {}", SelectorText(nodes)),
            Self::PodRanges(_) => f.write_str("addresses of pods"),
            Self::EveryPod(_) => f.write_str("addresses of --pod-ranges, as every pod"),
            Self::Blocks(blocks) => {
                for (n, Block { range, except }) in blocks.iter().enumerate() {
                    write!(f, "{}ipBlock {range}", if n == 0 { "" } else { ", " })?;
                    for (n, range) in except.iter().enumerate() {
                        write!(f, "{} {range}", if n == 0 { " except" } else { "," })?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// A selector, as `kubectl --selector` writes it.
struct SelectorText<'a>(&'a Selector);

impl fmt::Display for SelectorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, requirement) in self.0.requirements.iter().enumerate() {
            let key = &requirement.key;
            let joined = |values: &SortedSet<Arc<str>>| {
                values.iter().map(|value| &**value).collect::<Vec<_>>().join(",")
            };
            f.write_str(if n == 0 { "" } else { "," })?;
            match &requirement.operator {
                Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", joined(values))?,
                Operator::In(values) => write!(f, "{key} in ({})", joined(values))?,
                Operator::NotIn(values) => write!(f, "{key} notin ({})", joined(values))?,
                Operator::Exists => write!(f, "{key}")?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct PeerTable {
    /// The ranges of [`PeerScope::EveryPod`]; empty if there is none.
    pub every_pod: Arc<[Block]>,
    ids: HashMap<PeerScope, PeerId>,
    users: BTreeMap<PeerId, (PeerScope, usize)>,
    /// Peers that cover pods of one namespace only, by namespace.
    of_namespace: HashMap<Arc<str>, BTreeSet<PeerId>>,
    /// Peers that may cover pods of any namespace.
    of_any: BTreeSet<PeerId>,
    next: u32,
    /// Created since [`Self::take_changes`].
    fresh: Vec<PeerId>,
    /// Peers whose last user left since [`Self::take_changes`]. They may have got another user
    /// since.
    left: BTreeSet<PeerId>,
}

/// What changed about peers.
#[derive(Debug, Default)]
pub(super) struct PeerChanges {
    pub added: Vec<(PeerId, PeerScope)>,
    pub removed: Vec<(PeerId, PeerScope)>,
}

impl PeerChanges {
    /// Whether peers by address came or went.
    pub fn has_blocks(&self) -> bool {
        let mut all = self.added.iter().chain(&self.removed);
        all.any(|(_, scope)| scope.blocks().is_some())
    }

    /// Whether peers by labels of nodes came or went.
    pub fn has_nodes(&self) -> bool {
        let mut all = self.added.iter().chain(&self.removed);
        all.any(|(_, scope)| matches!(scope, PeerScope::Nodes(_)))
    }
}

impl PeerTable {
    /// `pod_ranges`: the ranges of [`PeerScope::EveryPod`].
    pub fn new(pod_ranges: &[IpNetwork]) -> Self {
        let block = |range: &IpNetwork| Block { range: *range, except: [].into() };
        Self { every_pod: pod_ranges.iter().map(block).collect(), ..Self::default() }
    }

    /// Counts one more user of this peer.
    pub fn acquire(&mut self, scope: PeerScope) -> PeerId {
        if let Some(id) = self.ids.get(&scope) {
            if let Some((_, users)) = self.users.get_mut(id) {
                *users += 1;
            }
            return *id;
        }
        let id = PeerId(self.next);
        self.next += 1;
        match &scope {
            PeerScope::PodsInNamespace { namespace, .. } => {
                self.of_namespace.entry(namespace.clone()).or_default().insert(id);
            }
            PeerScope::PodsBySelectors { .. } => drop(self.of_any.insert(id)),
            PeerScope::Blocks(_)
            | PeerScope::Nodes(_)
            | PeerScope::PodRanges(_)
            | PeerScope::EveryPod(_) => {}
        }
        self.ids.insert(scope.clone(), id);
        self.users.insert(id, (scope, 1));
        self.fresh.push(id);
        id
    }

    /// Counts one user less.
    pub fn release(&mut self, id: PeerId) {
        if let Some((_, users)) = self.users.get_mut(&id) {
            *users -= 1;
            if *users == 0 {
                self.left.insert(id);
            }
        }
    }

    pub fn scope(&self, id: PeerId) -> Option<&PeerScope> {
        self.users.get(&id).map(|(scope, _)| scope)
    }

    /// The peers that may cover pods of this namespace by labels.
    pub fn by_labels(&self, namespace: &str) -> impl Iterator<Item = (PeerId, &PeerScope)> {
        let own = self.of_namespace.get(namespace).into_iter().flatten();
        own.chain(&self.of_any).filter_map(|id| Some((*id, self.scope(*id)?)))
    }

    /// The peers that cover a node with these labels, in order.
    pub fn of_node<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = PeerId> + 'a {
        self.iter().filter_map(move |(id, scope)| match scope {
            PeerScope::Nodes(nodes) => nodes.selects(labels).then_some(id),
            PeerScope::PodsInNamespace { .. }
            | PeerScope::PodsBySelectors { .. }
            | PeerScope::Blocks(_)
            | PeerScope::PodRanges(_)
            | PeerScope::EveryPod(_) => None,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &PeerScope)> {
        self.users.iter().map(|(id, (scope, _))| (*id, scope))
    }

    /// Forgets unused peers. Returns what changed since the last call.
    pub fn take_changes(&mut self) -> PeerChanges {
        let mut removed = Vec::new();
        for id in std::mem::take(&mut self.left) {
            if self.users.get(&id).is_some_and(|(_, users)| *users == 0)
                && let Some((scope, _)) = self.users.remove(&id)
            {
                self.forget(id, &scope);
                removed.push((id, scope));
            }
        }
        let fresh = std::mem::take(&mut self.fresh).into_iter();
        let added = fresh.filter_map(|id| Some((id, self.scope(id)?.clone()))).collect();
        PeerChanges { added, removed }
    }

    fn forget(&mut self, id: PeerId, scope: &PeerScope) {
        self.ids.remove(scope);
        self.of_any.remove(&id);
        if let PeerScope::PodsInNamespace { namespace, .. } = scope
            && let Some(of_namespace) = self.of_namespace.get_mut(namespace)
        {
            of_namespace.remove(&id);
            if of_namespace.is_empty() {
                self.of_namespace.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_named_again_before_the_change_ends_stays() {
        let mut table = PeerTable::default();
        let of = |namespace: &str| PeerScope::PodsInNamespace {
            namespace: namespace.into(),
            pods: Selector::default(),
        };
        let (kept, gone) = (table.acquire(of("a")), table.acquire(of("b")));
        let any = table.acquire(PeerScope::PodsBySelectors {
            namespaces: Selector::default(),
            pods: Selector::default(),
        });
        assert_eq!(table.take_changes().added.len(), 3);
        table.release(kept);
        table.release(gone);
        assert_eq!(table.acquire(of("a")), kept);
        let changes = table.take_changes();
        assert!(changes.added.is_empty());
        assert_eq!(changes.removed, [(gone, of("b"))]);
        for (namespace, expected) in [("a", vec![kept, any]), ("b", vec![any])] {
            let found = table.by_labels(namespace).map(|(id, _)| id);
            assert_eq!(found.collect::<Vec<_>>(), expected, "{namespace}");
        }
    }
}
