//! Groups of pods with the same namespace, labels and named ports. Policies can tell the pods of a
//! group apart only by address. A selector is evaluated once for each group, not for each pod.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use super::peer::{PeerChanges, PeerId, PeerTable};
use denizen_model::{ClusterFacts, Labels, NamedPort, Protocol, SortedSet};

/// The index of a group in [`Groups`]. When the group is gone, another group may get its id.
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

    /// Applies changes of peers and of port names. Returns whether it differs.
    fn update(&mut self, facts: &GroupFacts<'_>) -> bool {
        let before = self.peers.len();
        if !facts.changes.removed.is_empty() {
            self.peers.retain(|peer| facts.peers.scope(*peer).is_some());
        }
        let left = self.peers.len();
        if !facts.changes.added.is_empty() {
            let GroupKey { namespace, labels, .. } = &self.key;
            let of_namespace = facts.cluster.namespace_labels(namespace);
            let covering = facts.changes.added.iter();
            let covering =
                covering.filter(|(_, peer)| peer.selects(namespace, &of_namespace, labels));
            self.peers.extend(covering.map(|(id, _)| *id));
            self.peers.sort_unstable();
        }
        let peers_differ = left < before || self.peers.len() > left;
        if !facts.names_changed {
            return peers_differ;
        }
        let before = std::mem::take(&mut self.ports);
        self.name_ports(facts.names);
        peers_differ || before != self.ports
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

impl GroupFacts<'_> {
    /// Whether groups of any namespace may differ.
    fn concerns_all(&self) -> bool {
        let PeerChanges { added, removed, .. } = self.changes;
        !added.is_empty() || !removed.is_empty() || self.names_changed
    }
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

    /// Brings the groups up to date. Returns the groups that changed, without new ones: the
    /// addresses of their pods have just been claimed, and so touched.
    pub fn update(&mut self, facts: &GroupFacts<'_>) -> GroupSet {
        let fresh: BTreeSet<GroupId> = std::mem::take(&mut self.fresh).into_iter().collect();
        let GroupFacts { peers, names, cluster, .. } = *facts;
        for id in &fresh {
            if let Some(group) = self.groups.get_mut(id.place()) {
                group.match_peers(peers, names, cluster);
            }
        }
        let mut changed = GroupSet::default();
        if !facts.concerns_all() && facts.namespaces.is_empty() {
            return changed;
        }
        let groups = self.groups.iter_mut().map(|(place, group)| (GroupId::of(place), group));
        for (id, group) in groups.filter(|(id, _)| !fresh.contains(id)) {
            let differs = match facts.namespaces.contains(&group.key.namespace) {
                true => {
                    let before = (group.peers.clone(), group.ports.clone());
                    group.match_peers(peers, names, cluster);
                    before != (group.peers.clone(), group.ports.clone())
                }
                false => facts.concerns_all() && group.update(facts),
            };
            if differs {
                changed.insert(id);
            }
        }
        changed
    }
}

/// A set of groups with lookup by index: it is asked for the group of each address.
#[derive(Debug, Default)]
pub(super) struct GroupSet {
    /// By the group's place.
    has: Vec<bool>,
}

impl GroupSet {
    fn insert(&mut self, id: GroupId) {
        self.has.resize(self.has.len().max(id.place() + 1), false);
        self.has[id.place()] = true;
    }

    pub fn contains(&self, id: GroupId) -> bool {
        self.has.get(id.place()).is_some_and(|has| *has)
    }

    pub fn is_empty(&self) -> bool {
        self.has.is_empty()
    }
}
