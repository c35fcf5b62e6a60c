//! Identities: classes of addresses that the policies in force on this node cannot distinguish.
//!
//! Two addresses have one identity if the same peers of these policies cover them and if they have
//! the same named ports. So most pods of a Deployment share an identity, and a label that no policy
//! uses never splits it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;

use super::peer::PeerId;
use denizen_model::NamedPort;

/// An identity. Its number is never used again while the agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityId(pub NonZeroU64);

/// The properties that all addresses of an identity share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct IdentityKey {
    /// The peers that cover the address, sorted.
    pub peers: Vec<PeerId>,
    /// The pod's named ports that egress rules in force name, sorted.
    pub ports: Vec<NamedPort>,
    /// Whether it is known whose address it is.
    pub knowledge: OwnerKnowledge,
}

/// Whether the owner of the address is known. Rules that deny by labels must also hold for pods
/// that the agent does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum OwnerKnowledge {
    /// No ClusterNetworkPolicy is in force, or no pod can have the address.
    #[default]
    NotNeeded,
    /// The address belongs to a pod whose labels are known, or to a node.
    Known,
    /// The address is in a range of pods, but no known pod has it; or the labels of its pod are not
    /// known yet.
    Unknown,
}

impl IdentityKey {
    /// Whether no policy in force can match such an address.
    pub fn is_nobody(&self) -> bool {
        self.peers.is_empty()
            && self.ports.is_empty()
            && self.knowledge == OwnerKnowledge::NotNeeded
    }

    /// Whether one of these peers covers the address.
    pub fn is_any_of(&self, peers: &[PeerId]) -> bool {
        peers.iter().any(|peer| self.peers.binary_search(peer).is_ok())
    }
}

#[derive(Debug)]
struct UsedIdentity {
    key: IdentityKey,
    users: usize,
}

#[derive(Debug, Default)]
pub(super) struct Identities {
    ids: HashMap<IdentityKey, IdentityId>,
    known: BTreeMap<IdentityId, UsedIdentity>,
    of_peer: HashMap<PeerId, BTreeSet<IdentityId>>,
    last: u64,
    /// Created since [`Self::take_changes`].
    fresh: Vec<IdentityId>,
    /// Identities whose last address left since [`Self::take_changes`]. They may have got another
    /// address since.
    left: BTreeSet<IdentityId>,
}

/// What changed about identities.
#[derive(Debug, Default)]
pub(super) struct IdentityChanges {
    /// The keys of new and of removed identities.
    pub keys: Vec<IdentityKey>,
    pub gone: Vec<IdentityId>,
}

impl Identities {
    /// Counts one more address of this identity; `None` if no policy in force can match it.
    pub fn acquire(&mut self, key: IdentityKey) -> Option<IdentityId> {
        if key.is_nobody() {
            return None;
        }
        if let Some(id) = self.ids.get(&key) {
            self.known.get_mut(id)?.users += 1;
            return Some(*id);
        }
        self.last += 1;
        let id = IdentityId(NonZeroU64::new(self.last)?);
        for peer in &key.peers {
            self.of_peer.entry(*peer).or_default().insert(id);
        }
        self.ids.insert(key.clone(), id);
        self.known.insert(id, UsedIdentity { key, users: 1 });
        self.fresh.push(id);
        Some(id)
    }

    /// Counts one address less.
    pub fn release(&mut self, id: IdentityId) {
        if let Some(known) = self.known.get_mut(&id) {
            known.users -= 1;
            if known.users == 0 {
                self.left.insert(id);
            }
        }
    }

    pub fn key(&self, id: IdentityId) -> Option<&IdentityKey> {
        self.known.get(&id).map(|known| &known.key)
    }

    /// The identities that any of these peers covers, in order.
    pub fn of(&self, peers: &[PeerId]) -> BTreeSet<IdentityId> {
        peers.iter().filter_map(|peer| self.of_peer.get(peer)).flatten().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (IdentityId, &IdentityKey)> {
        self.known.iter().map(|(id, known)| (*id, &known.key))
    }

    /// Forgets unused identities. Returns what changed since the last call.
    pub fn take_changes(&mut self) -> IdentityChanges {
        let mut changes = IdentityChanges::default();
        for id in std::mem::take(&mut self.fresh) {
            changes.keys.extend(self.key(id).cloned());
        }
        for id in std::mem::take(&mut self.left) {
            if self.known.get(&id).is_some_and(|known| known.users == 0)
                && let Some(UsedIdentity { key, .. }) = self.known.remove(&id)
            {
                self.forget(id, &key);
                changes.keys.push(key);
                changes.gone.push(id);
            }
        }
        changes
    }

    fn forget(&mut self, id: IdentityId, key: &IdentityKey) {
        self.ids.remove(key);
        for peer in &key.peers {
            if let Some(of_peer) = self.of_peer.get_mut(peer) {
                of_peer.remove(&id);
                if of_peer.is_empty() {
                    self.of_peer.remove(peer);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}
