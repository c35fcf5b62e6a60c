//! The host ports that pods claim, and which of the recorded pods still exist.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::key::{HostPortKey, HostPortPlace};
use super::remark::HostPortRemark;
use denizen_model::{HostPort, LocalPod, differing_pods, family_of};
use denizen_state::AttachmentId;

/// A pod's claim of one key. Of two claims the smaller one wins, which is the newer one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    added_at: Reverse<Arc<str>>,
    pub id: AttachmentId,
    pub endpoint: SocketAddr,
    pub requested: HostPort,
    pub pod: Arc<str>,
}

/// The claims of all pods. A record whose address is in a newer record is of a pod that is gone.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    by_key: BTreeMap<HostPortKey, BTreeSet<Claim>>,
    of_pods: BTreeMap<AttachmentId, PodClaims>,
    /// The records that have an address, the newest last.
    owners: BTreeMap<IpAddr, BTreeSet<(Arc<str>, AttachmentId)>>,
}

/// What one pod claims.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PodClaims {
    claims: Vec<(HostPortKey, Claim)>,
    /// What it asks for and cannot get.
    pub remarks: Vec<HostPortRemark>,
}

/// What a change of pods changes.
#[derive(Debug, Default)]
pub(super) struct ClaimChanges {
    /// The keys whose claims changed.
    pub keys: BTreeSet<HostPortKey>,
    /// The former and the new claims of each pod whose claims changed.
    pub pods: Vec<[PodClaims; 2]>,
}

impl Claims {
    /// The claims of a key, the winner's first.
    pub fn of_key(&self, key: HostPortKey) -> impl Iterator<Item = &Claim> {
        self.by_key.get(&key).into_iter().flatten()
    }

    /// Every key that is claimed.
    pub fn keys(&self) -> impl Iterator<Item = HostPortKey> {
        self.by_key.keys().copied()
    }

    /// The keys that are claimed at a place.
    pub fn keys_at(&self, at: HostPortPlace) -> impl Iterator<Item = HostPortKey> {
        self.by_key.range(HostPortKey::all_at(at)).map(|(key, _)| *key)
    }

    pub fn has_key(&self, key: &HostPortKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Applies a change of the recorded pods. Both lists are sorted by id.
    pub fn change(&mut self, before: &[LocalPod], now: &[LocalPod]) -> ClaimChanges {
        let mut concerned = BTreeSet::new();
        for (was, is) in differing_pods(before, now) {
            concerned.extend([was, is].into_iter().flatten().map(|pod| &pod.id).cloned());
            for (pod, is_there) in [(was, false), (is, true)] {
                let Some(pod) = pod else { continue };
                let owner = (pod.added_at.clone(), pod.id.clone());
                for ip in &pod.ips {
                    let owners = self.owners.entry(*ip).or_default();
                    match is_there {
                        true => owners.insert(owner.clone()),
                        false => owners.remove(&owner),
                    };
                    concerned.extend(owners.iter().map(|(_, id)| id.clone()));
                    if owners.is_empty() {
                        self.owners.remove(ip);
                    }
                }
            }
        }
        let mut changes = ClaimChanges::default();
        for id in concerned {
            let pod = now.binary_search_by(|pod| pod.id.cmp(&id)).ok().and_then(|at| now.get(at));
            let claimed = pod.map(|pod| self.claimed_by(pod)).unwrap_or_default();
            self.replace(id, claimed, &mut changes);
        }
        changes
    }

    fn replace(&mut self, id: AttachmentId, claimed: PodClaims, changes: &mut ClaimChanges) {
        let before = self.of_pods.remove(&id).unwrap_or_default();
        if claimed != PodClaims::default() {
            self.of_pods.insert(id, claimed.clone());
        }
        if before == claimed {
            return;
        }
        for (key, claim) in &before.claims {
            changes.keys.insert(*key);
            let of_key = self.by_key.entry(*key).or_default();
            of_key.remove(claim);
            if of_key.is_empty() {
                self.by_key.remove(key);
            }
        }
        for (key, claim) in &claimed.claims {
            changes.keys.insert(*key);
            self.by_key.entry(*key).or_default().insert(claim.clone());
        }
        changes.pods.push([before, claimed]);
    }

    fn claimed_by(&self, pod: &LocalPod) -> PodClaims {
        let is_gone = |ip: &IpAddr| {
            let newest = self.owners.get(ip).and_then(BTreeSet::last);
            newest.is_some_and(|(_, id)| *id != pod.id)
        };
        let mut claimed = PodClaims::default();
        if pod.host_ports.is_empty() {
            return claimed;
        }
        let name: Arc<str> = pod.to_string().into();
        for requested in pod.host_ports.iter().copied() {
            let mut has_address = false;
            for key in HostPortKey::of(requested) {
                let ip = pod.ips.iter().find(|ip| family_of(**ip) == key.family());
                let Some(ip) = ip else { continue };
                has_address = true;
                if !is_gone(ip) {
                    let claim = Claim {
                        added_at: Reverse(pod.added_at.clone()),
                        id: pod.id.clone(),
                        endpoint: SocketAddr::new(*ip, requested.pod_port.get()),
                        requested,
                        pod: name.clone(),
                    };
                    claimed.claims.push((key, claim));
                }
            }
            if !has_address {
                claimed.remarks.push(HostPortRemark::NoPodAddress { pod: name.clone(), requested });
            }
        }
        claimed
    }
}
