//! Which pod has which address, and so which identity.
//!
//! An address has one owner. The state file is the best source for this node's own pods. If two
//! pods in the API claim one address, the younger one has it: the other has ended, and its object
//! is updated late.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::IdentityChange;
use super::blocks::{Pieces, piece_of};
use super::group::{GroupId, Groups, PodGroup};
use super::identity::{Identities, IdentityId, IdentityKey, Knowledge};
use super::peer::PeerId;
use denizen_model::PodName;
use denizen_state::AttachmentId;

/// Who claims an address. If several do, the greatest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressClaimant {
    /// A recorded pod of this node whose annotation names the address: when it was recorded, and
    /// its attachment. It loses to a pod that really has the address.
    Additional(Arc<str>, AttachmentId),
    /// A pod of the API: when it was created, and its name.
    Cluster(i64, PodName),
    /// A recorded pod of this node: when it was recorded, and its attachment.
    Recorded(Arc<str>, AttachmentId),
}

impl AddressClaimant {
    /// The claimants of a recorded pod: for the addresses of its record, and for those of its
    /// annotation.
    pub fn of_record(id: &AttachmentId, added_at: &Arc<str>) -> [Self; 2] {
        [
            Self::Recorded(added_at.clone(), id.clone()),
            Self::Additional(added_at.clone(), id.clone()),
        ]
    }
}

#[derive(Debug)]
struct AddressClaim {
    by: AddressClaimant,
    /// `None` while the pod's labels are unknown.
    group: Option<GroupId>,
}

/// The claims on one address, and its identity.
#[derive(Debug)]
struct AddressState {
    /// Sorted: the last one wins.
    claims: Vec<AddressClaim>,
    identity: Option<IdentityId>,
    /// Whether it had claims at the last [`PodAddresses::identify`].
    was_claimed: bool,
}

impl AddressState {
    fn group(&self) -> Option<GroupId> {
        self.claims.last()?.group
    }
}

/// What changed about addresses.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pub identities: Vec<IdentityChange<IpAddr>>,
    /// Those that are a pod's from now on (`true`), or no longer are.
    pub claimed: Vec<(IpAddr, bool)>,
}

/// The addresses of all known pods.
#[derive(Debug, Default)]
pub(super) struct PodAddresses {
    held: HashMap<IpAddr, AddressState>,
    /// Those whose owner, group or blocks may have changed.
    pub touched: BTreeSet<IpAddr>,
}

impl PodAddresses {
    /// A pod has this address, and is in this group if its labels are known.
    pub fn claim(
        &mut self,
        address: IpAddr,
        by: AddressClaimant,
        group: Option<GroupId>,
        groups: &mut Groups,
    ) {
        self.change(address, groups, |claims| {
            claims.retain(|claim| claim.by != by);
            let at = claims.partition_point(|claim| claim.by < by);
            claims.insert(at, AddressClaim { by, group });
        });
    }

    /// A pod no longer has this address.
    pub fn disclaim(&mut self, address: IpAddr, by: &AddressClaimant, groups: &mut Groups) {
        self.change(address, groups, |claims| claims.retain(|claim| claim.by != *by));
    }

    fn change(
        &mut self,
        address: IpAddr,
        groups: &mut Groups,
        change: impl FnOnce(&mut Vec<AddressClaim>),
    ) {
        self.touched.insert(address);
        let unclaimed =
            || AddressState { claims: Vec::with_capacity(1), identity: None, was_claimed: false };
        let held = self.held.entry(address).or_insert_with(unclaimed);
        let before = held.group();
        change(&mut held.claims);
        let after = held.group();
        if before != after {
            before.into_iter().for_each(|group| groups.note_address(group, address, false));
            after.into_iter().for_each(|group| groups.note_address(group, address, true));
        }
    }

    /// Whether a pod has it.
    pub fn is_claimed(&self, address: IpAddr) -> bool {
        self.held.contains_key(&address)
    }

    /// The recorded pod that has an address, and whether only its annotation names the address.
    pub fn recorded(&self, address: IpAddr) -> Option<(&AttachmentId, bool)> {
        match &self.held.get(&address)?.claims.last()?.by {
            AddressClaimant::Recorded(_, id) => Some((id, false)),
            AddressClaimant::Additional(_, id) => Some((id, true)),
            AddressClaimant::Cluster(..) => None,
        }
    }

    /// Every address that a pod has.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.held.keys().copied()
    }

    /// Gives the touched addresses their identities. Returns what changed.
    pub fn identify(
        &mut self,
        groups: &Groups,
        lookup: BlockLookup<'_>,
        identities: &mut Identities,
    ) -> AddressChanges {
        let mut changes = AddressChanges::default();
        for address in std::mem::take(&mut self.touched) {
            let Some(held) = self.held.get_mut(&address) else { continue };
            let group = held.group().and_then(|group| groups.get(group));
            let key = match held.claims.is_empty() {
                true => IdentityKey::default(),
                false => key_of(address, group, lookup),
            };
            let before = held.identity.take();
            held.identity = identities.acquire(key);
            before.into_iter().for_each(|before| identities.release(before));
            if held.identity != before {
                let after = held.identity;
                changes.identities.push(IdentityChange { of: address, before, after });
            }
            let is_claimed = !held.claims.is_empty();
            if std::mem::replace(&mut held.was_claimed, is_claimed) != is_claimed {
                changes.claimed.push((address, is_claimed));
            }
            if held.claims.is_empty() {
                self.held.remove(&address);
            }
        }
        changes
    }

    /// The identity of an address, if it has one of its own: see [`key_of`].
    pub fn identity(&self, address: IpAddr) -> Option<IdentityId> {
        self.held.get(&address)?.identity
    }

    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, IdentityId)> {
        self.held.iter().filter_map(|(address, held)| Some((*address, held.identity?)))
    }
}

/// The identity key of a pod's address. `group`: what is known of the pod. A pod that policies
/// cannot distinguish from any other address of the blocks around it needs no identity of its own.
fn key_of(address: IpAddr, group: Option<&PodGroup>, lookup: BlockLookup<'_>) -> IdentityKey {
    let blocks = lookup.blocks(address);
    let (labels, ports) = match group {
        Some(group) => (&group.peers[..], group.ports.clone()),
        None => (&[][..], Vec::new()),
    };
    let knowledge = match (lookup.pod_ranges, group) {
        (None, _) if labels.is_empty() && ports.is_empty() => return IdentityKey::default(),
        (None, _) => Knowledge::NotNeeded,
        (Some(_), None) => Knowledge::Unknown,
        (Some(_), Some(_)) => Knowledge::Known,
    };
    let peers: BTreeSet<_> = labels.iter().copied().chain(blocks).collect();
    IdentityKey { peers: peers.into_iter().collect(), ports, knowledge }
}

/// The ranges that addresses are in.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLookup<'a> {
    /// Those of policies, and those of pods.
    pub pieces: &'a Pieces,
    /// The peer that stands for those of pods, while ClusterNetworkPolicies are in force.
    pub pod_ranges: Option<PeerId>,
}

impl BlockLookup<'_> {
    /// The policies' blocks that hold an address.
    pub fn blocks(self, address: IpAddr) -> impl Iterator<Item = PeerId> {
        let piece = piece_of(self.pieces, address).into_iter();
        let peers = piece.flat_map(|piece| &piece.peers).copied();
        peers.filter(move |peer| Some(*peer) != self.pod_ranges)
    }
}
