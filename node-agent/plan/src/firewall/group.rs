//! Groups of pods with the same namespace, labels and named ports: policies can tell them apart by
//! address alone. A selector is evaluated once for each group, not for each pod.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use super::peer::{PeerChanges, PeerId, PeerTable};
use denizen_model::{ClusterFacts, Labels, NamedPort, Protocol, SortedSet};

/// A group, by its place in [`Groups`]. When the group is gone, another one may get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupId(NonZeroU32);

impl GroupId {
    fn of(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer groups than pods, and fewer pods than 4 billion"))
    }

    fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What the pods of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    pub namespace: Arc<str>,
    pub labels: Labels,
    pub ports: SortedSet<NamedPort>,
}

/// Port names that egress rules in force use.
pub(super) type PortNames = BTreeSet<(Arc<str>, Protocol)>;

#[derive(Debug)]
pub(super) struct PodGroup {
    key: GroupKey,
    /// The peers that cover its pods by labels, sorted.
    pub peers: Vec<PeerId>,
    /// Those of its named ports that egress rules in force use.
    pub ports: Vec<NamedPort>,
    users: usize,
}

impl PodGroup {
    fn match_peers(&mut self, peers: &PeerTable, names: &PortNames, cluster: ClusterFacts<'_>) {
        let GroupKey { namespace, labels, .. } = &self.key;
        let of_namespace = cluster.namespace_labels(namespace);
        let covering = peers
            .by_labels(namespace)
            .filter(|(_, peer)| peer.selects(namespace, &of_namespace, labels));
        self.peers = covering.map(|(id, _)| id).collect();
        self.peers.sort_unstable();
        self.name_ports(names);
    }

    fn name_ports(&mut self, names: &PortNames) {
        let ports = self.key.ports.iter();
        let used = ports.filter(|port| names.contains(&(port.name.clone(), port.protocol)));
        self.ports = used.cloned().collect();
    }
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    ids: HashMap<GroupKey, GroupId>,
    groups: Slab<PodGroup>,
    /// Created since the last [`Self::update`].
    fresh: Vec<GroupId>,
}

/// The facts by which groups are updated, and what changed about them.
pub(super) struct GroupFacts<'a> {
    pub peers: &'a PeerTable,
    pub changes: &'a PeerChanges,
    pub names: &'a PortNames,
    pub names_changed: bool,
    /// Namespaces whose labels may have changed.
    pub namespaces: &'a BTreeSet<Arc<str>>,
    pub cluster: ClusterFacts<'a>,
}

impl Groups {
    /// Adds a pod to the group of this key.
    pub fn acquire(&mut self, key: GroupKey) -> GroupId {
        if let Some(id) = self.ids.get(&key) {
            if let Some(group) = self.groups.get_mut(id.place()) {
                group.users += 1;
            }
            return *id;
        }
        let (peers, ports) = Default::default();
        let id =
            GroupId::of(self.groups.insert(PodGroup { key: key.clone(), peers, ports, users: 1 }));
        self.ids.insert(key, id);
        self.fresh.push(id);
        id
    }

    /// Removes a pod from the group.
    pub fn release(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(id.place()) else { return };
        group.users -= 1;
        if group.users == 0 {
            self.ids.remove(&self.groups.remove(id.place()).key);
        }
    }

    pub fn get(&self, id: GroupId) -> Option<&PodGroup> {
        self.groups.get(id.place())
    }

    /// Brings the groups up to date. Returns those that changed, without new ones: the addresses of
    /// their pods have just been claimed.
    pub fn update(&mut self, facts: &GroupFacts<'_>) -> HashSet<GroupId> {
        let fresh: BTreeSet<GroupId> = std::mem::take(&mut self.fresh).into_iter().collect();
        let GroupFacts { peers, changes, names, names_changed, namespaces, cluster } = facts;
        for id in &fresh {
            if let Some(group) = self.groups.get_mut(id.place()) {
                group.match_peers(peers, names, *cluster);
            }
        }
        let peers_changed = !changes.added.is_empty() || !changes.removed.is_empty();
        if namespaces.is_empty() && !peers_changed && !names_changed {
            return HashSet::new();
        }
        let mut changed = HashSet::new();
        let groups = self.groups.iter_mut().map(|(place, group)| (GroupId::of(place), group));
        for (id, group) in groups.filter(|(id, _)| !fresh.contains(id)) {
            let before = (group.peers.clone(), group.ports.clone());
            if namespaces.contains(&group.key.namespace) {
                group.match_peers(peers, names, *cluster);
            } else if peers_changed || *names_changed {
                let GroupKey { namespace, labels, .. } = &group.key;
                group.peers.retain(|peer| peers.scope(*peer).is_some());
                if !changes.added.is_empty() {
                    let of_namespace = cluster.namespace_labels(namespace);
                    let covering = changes.added.iter();
                    let covering =
                        covering.filter(|(_, peer)| peer.selects(namespace, &of_namespace, labels));
                    group.peers.extend(covering.map(|(id, _)| *id));
                    group.peers.sort_unstable();
                }
                group.name_ports(names);
            }
            if before != (group.peers.clone(), group.ports.clone()) {
                changed.insert(id);
            }
        }
        changed
    }
}
