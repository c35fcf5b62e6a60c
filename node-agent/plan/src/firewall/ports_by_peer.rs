//! What may pass between the pods of a class and each of their peers.

use std::collections::HashSet;
use std::sync::Arc;

use super::IdentityId;
use super::permitted_ports::PermittedPorts;

/// What may pass between the pods of a class and each peer that policies distinguish (`None`: all
/// other peers). Shared by the pods of the class.
#[derive(Debug, Clone)]
pub struct PortsByPeer(Arc<AllPorts>);

/// One peer, and what passes between it and the pods.
pub type PeerPorts = (Option<IdentityId>, PermittedPorts);

#[derive(Debug)]
struct AllPorts {
    /// Sorted by peer.
    by_peer: Vec<PeerPorts>,
    /// The port sets of all peers, each once.
    permitted_sets: Vec<PermittedPorts>,
}

impl PartialEq for PortsByPeer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.by_peer == other.0.by_peer
    }
}

impl Eq for PortsByPeer {}

impl PortsByPeer {
    /// From sorted peers. Peers in `before` keep their ports; `decide` decides about the others.
    pub(super) fn new(
        peers: impl Iterator<Item = Option<IdentityId>>,
        before: Option<&Self>,
        mut decide: impl FnMut(Option<IdentityId>) -> PermittedPorts,
    ) -> Self {
        let mut permitted_sets: HashSet<PermittedPorts> =
            before.into_iter().flat_map(Self::permitted_sets).cloned().collect();
        let mut known = before.map_or(&[][..], |before| &before.0.by_peer).iter().peekable();
        let by_peer = peers.map(|peer| {
            while known.next_if(|(id, _)| *id < peer).is_some() {}
            if let Some(same) = known.next_if(|(id, _)| *id == peer) {
                return same.clone();
            }
            let passing = decide(peer);
            // Equal port sets share one copy.
            let permitted = permitted_sets.get(&passing).cloned().unwrap_or(passing);
            permitted_sets.insert(permitted.clone());
            (peer, permitted)
        });
        let by_peer: Vec<PeerPorts> = by_peer.collect();
        let mut seen = HashSet::new();
        let is_new = |permitted: &&PermittedPorts| seen.insert(permitted.address());
        let permitted_sets = by_peer.iter().map(|(_, permitted)| permitted).filter(is_new).cloned();
        Self(Arc::new(AllPorts { permitted_sets: permitted_sets.collect(), by_peer }))
    }

    /// Sorted by peer.
    pub fn iter(&self) -> impl Iterator<Item = &PeerPorts> {
        self.0.by_peer.iter()
    }

    /// The permitted ports between the pods and a peer; `None`: nothing passes.
    pub fn of(&self, peer: Option<IdentityId>) -> Option<&PermittedPorts> {
        let at = self.0.by_peer.binary_search_by_key(&peer, |(id, _)| *id).ok()?;
        Some(&self.0.by_peer[at].1)
    }

    /// The port sets of all peers, each once.
    pub fn permitted_sets(&self) -> impl Iterator<Item = &PermittedPorts> {
        self.0.permitted_sets.iter()
    }

    /// The address of the shared data: equal for copies of one value.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The peers that are missing or have other ports in `other`.
    pub fn beyond<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = &'a PeerPorts> + 'a {
        let is_same = other.is_some_and(|other| self.address() == other.address());
        let by_peer = if is_same { &[][..] } else { &self.0.by_peer };
        let mut others = other.map_or(&[][..], |other| &other.0.by_peer).iter().peekable();
        by_peer.iter().filter(move |of_peer| {
            while others.next_if(|(id, _)| *id < of_peer.0).is_some() {}
            others.next_if(|(id, _)| *id == of_peer.0).is_none_or(|other| other != *of_peer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn id(number: u64) -> Option<IdentityId> {
        NonZeroU64::new(number).map(IdentityId)
    }

    fn by_peer(of: &[(u64, bool)], before: Option<&PortsByPeer>) -> PortsByPeer {
        let peers = of.iter().map(|(number, _)| id(*number));
        PortsByPeer::new(peers, before, |of_peer| {
            let passes = of.iter().any(|(peer, passes)| id(*peer) == of_peer && *passes);
            if passes { PermittedPorts::all() } else { PermittedPorts::none() }
        })
    }

    fn ids<'a>(by_peer: impl Iterator<Item = &'a PeerPorts>) -> Vec<u64> {
        by_peer.filter_map(|(id, _)| id.map(|id| id.0.get())).collect()
    }

    #[test]
    fn what_differs_is_found_on_both_sides() {
        let before = by_peer(&[(1, true), (2, true), (4, false), (7, true)], None);
        let after = by_peer(&[(2, true), (4, true), (5, false), (7, true)], None);
        assert_eq!(ids(after.beyond(Some(&before))), [4, 5]);
        assert_eq!(ids(before.beyond(Some(&after))), [1, 4]);
        assert_eq!(ids(after.beyond(None)), [2, 4, 5, 7]);
        assert!(ids(after.beyond(Some(&after.clone()))).is_empty());
    }

    #[test]
    fn what_is_known_stays_and_equal_port_sets_are_one() {
        let before = by_peer(&[(1, true), (2, false), (3, true)], None);
        assert_eq!(before.permitted_sets().count(), 2);
        // Peers that are in `before` are not decided again.
        let after = by_peer(&[(2, true), (3, false), (4, true)], Some(&before));
        assert!(after.of(id(2)).is_some_and(PermittedPorts::is_none));
        assert!(after.of(id(3)).is_some_and(PermittedPorts::is_all));
        assert_eq!(after.of(id(1)), None);
        let [of_3, of_4] = [3, 4].map(|number| after.of(id(number)).unwrap().address());
        assert_eq!(of_3, of_4);
    }
}
