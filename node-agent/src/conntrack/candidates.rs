//! What may have become stale, noticed change by change. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use denizen_shared::state::Epoch;

use super::entry::Entry;
use crate::model::{Family, PodSet, Protocol, ServiceName, family_of};
use crate::plan::{FrontendAddress, FrontendKey, Plan};

/// Where stale entries may be found. Whether an entry is stale is for [`super::StaleFilter`] to
/// say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaleCandidates {
    /// Frontends whose endpoints differ, or that came or went. Never of TCP.
    keys: BTreeSet<FrontendKey>,
    /// Addresses of pods of this node that are gone.
    pods: BTreeSet<IpAddr>,
    /// The entries in which these addresses are looked for: those of protocols that services use.
    /// What came through no service was not translated here, and leads nobody astray.
    of_pods: BTreeSet<(Family, Protocol)>,
    /// Addresses of pods of this node that were taken for somebody else's until now, so that flows
    /// from there may have been masqueraded.
    late: BTreeSet<IpAddr>,
}

impl StaleCandidates {
    /// One more frontend; those of TCP are never suspected.
    pub fn add_frontend(&mut self, key: FrontendKey) {
        if is_tracked(key.protocol) {
            self.keys.insert(key);
        }
    }

    /// There is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pods.is_empty() && self.late.is_empty()
    }

    /// What is looked for there as well.
    pub fn absorb(&mut self, other: Self) {
        let Self { keys, pods, of_pods, late } = other;
        self.keys.extend(keys);
        self.pods.extend(pods);
        self.of_pods.extend(of_pods);
        self.late.extend(late);
    }

    /// The parts of the kernel's table that must be read. Each costs a dump, for which the kernel
    /// walks through all of it.
    pub fn parts(&self) -> BTreeSet<(Family, Protocol)> {
        let keys = self.keys.iter().map(|key| (key.family(), key.protocol));
        keys.chain(self.of_pods.iter().copied()).collect()
    }

    /// Looks for the pods among the entries of these protocols alone, and forgets those of a family
    /// without any.
    fn keep_pods_of(&mut self, served: &BTreeSet<(Family, Protocol)>) {
        let all = self.pods.iter().chain(&self.late);
        let families: BTreeSet<Family> = all.map(|ip| family_of(*ip)).collect();
        let of_pods = served.iter().filter(|(family, _)| families.contains(family));
        self.of_pods = of_pods.copied().collect();
        let is_served = |ip: &IpAddr| served.iter().any(|(family, _)| *family == family_of(*ip));
        self.pods.retain(is_served);
        self.late.retain(is_served);
    }

    /// Whether an entry is about any of them.
    pub fn concern(&self, entry: &Entry) -> bool {
        let keys = keys_of(entry);
        keys.iter().flatten().any(|key| self.keys.contains(key))
            || [entry.source, entry.reply_source].iter().any(|end| self.is_pod(end.ip()))
            || self.is_late(entry.source.ip())
    }

    /// Whether a pod that is gone had this address.
    pub(super) fn is_pod(&self, address: IpAddr) -> bool {
        self.pods.contains(&address)
    }

    /// Whether a pod with this address was taken for somebody else until now.
    pub(super) fn is_late(&self, address: IpAddr) -> bool {
        self.late.contains(&address)
    }

    /// Whether it is one of the suspected frontends.
    pub(super) fn is_frontend(&self, key: &FrontendKey) -> bool {
        self.keys.contains(key)
    }
}

/// The two frontends that an entry's first packet may have been addressed to; none for port 0.
pub(super) fn keys_of(entry: &Entry) -> Option<[FrontendKey; 2]> {
    let port = entry.destination.port().try_into().ok()?;
    let at = |address| FrontendKey { address, protocol: entry.protocol, port };
    Some([
        at(FrontendAddress::Ip(entry.destination.ip())),
        at(FrontendAddress::Node(entry.family())),
    ])
}

/// Whether flows of this protocol outlive their endpoint unnoticed: whoever uses TCP connects
/// again.
fn is_tracked(protocol: Protocol) -> bool {
    match protocol {
        Protocol::Udp | Protocol::Sctp => true,
        Protocol::Tcp => false,
    }
}

fn all_tracked() -> BTreeSet<(Family, Protocol)> {
    let tracked = Protocol::ALL.into_iter().filter(|protocol| is_tracked(*protocol));
    tracked.flat_map(|protocol| Family::BOTH.map(|family| (family, protocol))).collect()
}

fn served_by(plan: &Plan) -> BTreeSet<(Family, Protocol)> {
    let keys = plan.frontends().map(|frontend| frontend.key);
    keys.filter(|key| is_tracked(key.protocol)).map(|key| (key.family(), key.protocol)).collect()
}

/// Remembers as much of the last state as it takes to see what may have become stale.
#[derive(Debug, Default)]
pub struct CandidateTracker {
    candidates: StaleCandidates,
    pods: Option<(Epoch, BTreeSet<IpAddr>)>,
    /// Where each address of a pod was last; `None` while no pods were told.
    interfaces: Option<BTreeMap<IpAddr, Arc<str>>>,
    /// To be suspected when it is known which services there are.
    late: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
}

impl CandidateTracker {
    /// These are the pods of this node now. Only what was taken out of one and the same state file
    /// is gone: a file that was lost takes no pod with it.
    pub fn pods_are(&mut self, pods: &PodSet) {
        let Some((epoch, _)) = &pods.version else {
            return;
        };
        let now: BTreeSet<IpAddr> =
            pods.pods.iter().flat_map(|pod| pod.ips.iter().copied()).collect();
        if let Some((before, ips)) = &self.pods
            && before == epoch
        {
            self.candidates.pods.extend(ips.difference(&now).copied());
        }
        self.pods = Some((epoch.clone(), now));
    }

    /// Where pods are local by their records: what a pod sent before it was known, or before its
    /// interface's new name was, went by the rules for strangers. The plugin's ADD waits for the
    /// rules, so a pod that it recorded is not late, unless it is of the first set: it may have
    /// come while no agent ran.
    pub fn note_late(&mut self, pods: &PodSet) {
        let before = self.interfaces.take();
        let mut now = BTreeMap::new();
        for pod in &pods.pods {
            for ip in &pod.ips {
                let is_late = match before.as_ref().map(|before| before.get(ip)) {
                    None => true,
                    Some(None) => pod.adopted,
                    Some(Some(before)) => *before != pod.interface,
                };
                if is_late {
                    self.late.insert(*ip);
                }
                now.insert(*ip, pod.interface.clone());
            }
        }
        self.interfaces = Some(now);
    }

    /// These services and their endpoints differ, and the plan was made anew: these frontends with
    /// it. Where a draining endpoint ends, no frontend does.
    pub fn changed(
        &mut self,
        plan: &Plan,
        services: &BTreeSet<ServiceName>,
        keys: &BTreeSet<FrontendKey>,
    ) {
        let of_services = services.iter().flat_map(|name| plan.keys_of(name));
        of_services.chain(keys).for_each(|key| self.candidates.add_frontend(*key));
        self.candidates.late.append(&mut self.late);
    }

    /// Node ports are served on these addresses now. On a new one, flows may have come before.
    pub fn node_ports_are(&mut self, plan: &Plan, addresses: &[IpAddr]) {
        let now: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        let come: BTreeSet<Family> =
            now.difference(&self.node_ports).map(|ip| family_of(*ip)).collect();
        let keys = plan.frontends().map(|frontend| frontend.key);
        if !come.is_empty() {
            keys
                .filter(|key| matches!(key.address, FrontendAddress::Node(family) if come.contains(&family)))
                .for_each(|key| self.candidates.add_frontend(key));
        }
        self.node_ports = now;
    }

    /// The rules were not there for a while: flows may have passed them by at every frontend.
    pub fn rules_were_missing(&mut self, plan: &Plan) {
        plan.frontends().for_each(|frontend| self.candidates.add_frontend(frontend.key));
    }

    /// An earlier run programmed these frontends, and they are none any more.
    pub fn left(&mut self, keys: impl IntoIterator<Item = FrontendKey>) {
        keys.into_iter().for_each(|key| self.candidates.add_frontend(key));
    }

    /// All that is suspected since the last call; `plan` is `None` while services are not known,
    /// and all protocols may be theirs.
    pub fn take(&mut self, plan: Option<&Plan>) -> StaleCandidates {
        let mut candidates = std::mem::take(&mut self.candidates);
        if !candidates.pods.is_empty() || !candidates.late.is_empty() {
            candidates.keep_pods_of(&plan.map_or_else(all_tracked, served_by));
        }
        candidates
    }
}
