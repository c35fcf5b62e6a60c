//! Which pod has which address, and so which identity.
//!
//! An address has one owner. The state file is the best source for this node's own pods. If two
//! pods in the API claim one address, the younger one has it: the other has ended, and its object
//! is updated late.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use super::IdentityChange;
use super::blocks::{Pieces, piece_of};
use super::group::{GroupId, GroupSet, Groups, PodGroup};
use super::identity::{Identities, IdentityId, IdentityKey, OwnerKnowledge};
use super::peer::PeerId;
use denizen_model::ClusterPod;
use denizen_state::AttachmentId;

/// Who claims an address. If several do, the greatest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressClaimant {
    /// A recorded pod of this node whose annotation names the address. It loses to a pod that
    /// really has the address.
    Additional(Arc<RecordedClaimant>),
    /// A pod of the API.
    Cluster(ClusterClaimant),
    /// A recorded pod of this node.
    Recorded(Arc<RecordedClaimant>),
}

/// A recorded pod.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordedClaimant {
    added_at: Arc<str>,
    id: AttachmentId,
}

/// A pod of the API. Of two, the younger one is greater.
#[derive(Debug, Clone)]
pub(super) struct ClusterClaimant(pub Arc<ClusterPod>);

impl Ord for ClusterClaimant {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0.created, &self.0.name).cmp(&(other.0.created, &other.0.name))
    }
}

impl PartialOrd for ClusterClaimant {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ClusterClaimant {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ClusterClaimant {}

impl AddressClaimant {
    /// The claimants of a recorded pod: for the addresses of its record, and for those of its
    /// annotation.
    pub fn of_record(id: &AttachmentId, added_at: &Arc<str>) -> [Self; 2] {
        let pod = Arc::new(RecordedClaimant { added_at: added_at.clone(), id: id.clone() });
        [Self::Recorded(pod.clone()), Self::Additional(pod)]
    }
}

#[derive(Debug)]
struct AddressClaim {
    by: AddressClaimant,
    /// `None` while the pod's labels are unknown.
    group: Option<GroupId>,
}

/// An address that pods claim, and its identity. A cluster has as many of these as pods.
#[derive(Debug)]
struct AddressState {
    address: IpAddr,
    /// Whether it had claims at the last [`PodAddresses::identify`].
    was_claimed: bool,
    /// The group of the claim that wins.
    group: Option<GroupId>,
    /// Who makes the claim that wins; `None` if there is none any longer.
    by: Option<AddressClaimant>,
    identity: Option<IdentityId>,
}

impl AddressState {
    fn unclaimed(address: IpAddr) -> Self {
        Self { address, was_claimed: false, group: None, by: None, identity: None }
    }

    fn take_winner(&mut self) -> Option<AddressClaim> {
        let group = self.group.take();
        self.by.take().map(|by| AddressClaim { by, group })
    }

    fn set_winner(&mut self, winner: Option<AddressClaim>) {
        (self.by, self.group) = match winner {
            Some(AddressClaim { by, group }) => (Some(by), group),
            None => (None, None),
        };
    }
}

/// What changed about addresses.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pub identities: Vec<IdentityChange<IpAddr>>,
    /// Addresses that became a pod's (`true`), or are no longer a pod's (`false`).
    pub claimed: Vec<(IpAddr, bool)>,
}

/// The addresses of all known pods.
#[derive(Debug, Default)]
pub(super) struct PodAddresses {
    held: HashTable<AddressState>,
    hasher: RandomState,
    /// The claims that lose, sorted, of the few addresses that several pods claim.
    losing: HashMap<IpAddr, Vec<AddressClaim>>,
    /// Addresses whose owner, group or blocks may have changed.
    pub touched: BTreeSet<IpAddr>,
}

impl PodAddresses {
    /// A pod has this address, and is in this group if its labels are known.
    pub fn claim(&mut self, address: IpAddr, by: AddressClaimant, group: Option<GroupId>) {
        self.change(address, |claims| {
            claims.retain(|claim| claim.by != by);
            let at = claims.partition_point(|claim| claim.by < by);
            claims.insert(at, AddressClaim { by, group });
        });
    }

    /// A pod no longer has this address.
    pub fn disclaim(&mut self, address: IpAddr, by: &AddressClaimant) {
        self.change(address, |claims| claims.retain(|claim| claim.by != *by));
    }

    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Vec<AddressClaim>)) {
        self.touched.insert(address);
        let Self { held, hasher, losing, .. } = self;
        let hash = |address: IpAddr| hasher.hash_one(address);
        let is_same = |held: &AddressState| held.address == address;
        let found = held.entry(hash(address), is_same, |held| hash(held.address));
        let mut found = found.or_insert_with(|| AddressState::unclaimed(address));
        let held = found.get_mut();
        let mut claims = losing.remove(&address).unwrap_or_default();
        claims.extend(held.take_winner());
        change(&mut claims);
        held.set_winner(claims.pop());
        if !claims.is_empty() {
            losing.insert(address, claims);
        }
    }

    /// Touches the addresses of pods of these groups.
    pub fn touch(&mut self, groups: &GroupSet) {
        if !groups.is_empty() {
            let of_groups = self.held.iter();
            let of_groups =
                of_groups.filter(|held| held.group.is_some_and(|group| groups.contains(group)));
            self.touched.extend(of_groups.map(|held| held.address));
        }
    }

    fn find(&self, address: IpAddr) -> Option<&AddressState> {
        self.held.find(self.hasher.hash_one(address), |held| held.address == address)
    }

    /// Whether a pod has the address.
    pub fn is_claimed(&self, address: IpAddr) -> bool {
        self.find(address).is_some()
    }

    /// The recorded pod that has an address, and whether only its annotation names the address.
    pub fn recorded(&self, address: IpAddr) -> Option<(&AttachmentId, bool)> {
        match self.find(address)?.by.as_ref()? {
            AddressClaimant::Recorded(pod) => Some((&pod.id, false)),
            AddressClaimant::Additional(pod) => Some((&pod.id, true)),
            AddressClaimant::Cluster(_) => None,
        }
    }

    /// Every address that a pod has.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.held.iter().map(|held| held.address)
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
            let hash = self.hasher.hash_one(address);
            let found = self.held.find_entry(hash, |held| held.address == address);
            let Ok(mut found) = found else { continue };
            let held = found.get_mut();
            let is_claimed = held.by.is_some();
            let group = held.group.and_then(|group| groups.get(group));
            let key = match is_claimed {
                true => key_of(address, group, lookup),
                false => IdentityKey::default(),
            };
            let before = held.identity.take();
            held.identity = identities.acquire(key);
            before.into_iter().for_each(|before| identities.release(before));
            if held.identity != before {
                let after = held.identity;
                changes.identities.push(IdentityChange { of: address, before, after });
            }
            if std::mem::replace(&mut held.was_claimed, is_claimed) != is_claimed {
                changes.claimed.push((address, is_claimed));
            }
            if !is_claimed {
                found.remove();
            }
        }
        changes
    }

    /// The identity of an address, if it has one of its own: see [`key_of`].
    pub fn identity(&self, address: IpAddr) -> Option<IdentityId> {
        self.find(address)?.identity
    }

    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, IdentityId)> {
        self.held.iter().filter_map(|held| Some((held.address, held.identity?)))
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
        (None, _) => OwnerKnowledge::NotNeeded,
        (Some(_), None) => OwnerKnowledge::Unknown,
        (Some(_), Some(_)) => OwnerKnowledge::Known,
    };
    let peers: BTreeSet<_> = labels.iter().copied().chain(blocks).collect();
    IdentityKey { peers: peers.into_iter().collect(), ports, knowledge }
}

/// The ranges that addresses are in.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLookup<'a> {
    /// The ranges of policies and the ranges of pods, cut into disjoint pieces.
    pub pieces: &'a Pieces,
    /// The peer that stands for the ranges of pods, while ClusterNetworkPolicies are in force.
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
