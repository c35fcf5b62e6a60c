//! Collects which entries of connection tracking may have become stale, change by change. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use denizen_state::Epoch;

use crate::{
    FirewallChanges, FirewallPlan, FrontendAddress, FrontendKey, HostPortKey, HostPortPlace, Plan,
    PlanChanges, ServicePlan,
};
use denizen_model::{Family, PodSet, Protocol, family_of};
use denizen_packet::{FlowSelection, TrackedFlow};

/// Where stale entries may be. [`super::StaleFilter`] decides whether an entry is stale.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaleCandidates {
    /// Frontends that were added, removed, or whose endpoints changed.
    keys: BTreeSet<FrontendKey>,
    /// Addresses of this node's pods that are gone.
    gone_pods: BTreeSet<IpAddr>,
    /// The parts of the table to search for these addresses: families and protocols that services
    /// use. Entries that no service translated are not stale.
    of_pods: BTreeSet<(Family, Protocol)>,
    /// Addresses of this node's pods that were treated as outside until now, so that their flows
    /// may have been masqueraded.
    late: BTreeSet<IpAddr>,
    /// Addresses whose connections, of every protocol, a policy may forbid now.
    restricted: BTreeSet<IpAddr>,
    /// Addresses whose former pods were, or may have been, restricted by policies, and addresses of
    /// pods that do not run yet. All connections from before are stale.
    departed: BTreeSet<IpAddr>,
    /// Addresses of which forbidden connections may be permitted again.
    relaxed: BTreeSet<IpAddr>,
    /// Whether any forbidden connection may be permitted again.
    all_relaxed: bool,
    /// Whether to search for connections that an earlier run forbade.
    marked_before: bool,
    /// Host ports that lead elsewhere now, or nowhere, and where they led.
    host_ports: BTreeMap<HostPortKey, BTreeSet<SocketAddr>>,
}

impl StaleCandidates {
    pub fn add_frontend(&mut self, key: FrontendKey) {
        self.keys.insert(key);
    }

    /// All connections at addresses of pods that do not run yet.
    pub fn before_pods(addresses: BTreeSet<IpAddr>) -> Self {
        Self { departed: addresses, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.gone_pods.is_empty()
            && self.late.is_empty()
            && self.restricted.is_empty()
            && self.departed.is_empty()
            && self.relaxed.is_empty()
            && !self.all_relaxed
            && !self.marked_before
            && self.host_ports.is_empty()
    }

    /// Adds the other candidates to these.
    pub fn absorb(&mut self, other: Self) {
        let Self { keys, gone_pods, of_pods, late, restricted, departed, relaxed, .. } = other;
        self.all_relaxed |= other.all_relaxed;
        self.marked_before |= other.marked_before;
        self.relaxed.extend(relaxed);
        self.departed.extend(departed);
        self.restricted.extend(restricted);
        self.keys.extend(keys);
        self.gone_pods.extend(gone_pods);
        self.of_pods.extend(of_pods);
        self.late.extend(late);
        for (key, former) in other.host_ports {
            self.host_ports.entry(key).or_default().extend(former);
        }
    }

    /// The parts of the kernel's table that must be read. Each costs a dump, in which the kernel
    /// walks the whole table.
    pub fn parts(&self) -> BTreeSet<FlowSelection> {
        let restricted = self.restricted.iter().chain(&self.departed);
        let mut families: BTreeSet<Family> = restricted.map(|ip| family_of(*ip)).collect();
        if self.marked_before {
            families.extend(Family::BOTH);
        }
        let keys = self.keys.iter().map(|key| (key.family(), key.protocol));
        let host_ports = self.host_ports.keys().map(|key| (key.family(), key.protocol));
        let named = keys.chain(self.of_pods.iter().copied()).chain(host_ports);
        let named = named.filter(|(family, _)| !families.contains(family));
        let named = named.map(|(family, protocol)| FlowSelection {
            family,
            protocol: Some(protocol),
            unanswered_syns: protocol == Protocol::Tcp,
        });
        let of_all = |family| FlowSelection { family, protocol: None, unanswered_syns: false };
        let whole = families.iter().copied().map(of_all);
        named.chain(whole).collect()
    }

    /// Whether the search is for unanswered TCP SYNs only.
    pub fn are_syns(&self) -> bool {
        let parts = self.parts();
        !parts.is_empty() && parts.iter().all(|part| part.unanswered_syns)
    }

    /// Limits the search for the pods to entries of these families and protocols, and drops pods of
    /// a family that has none.
    fn keep_pods_of(&mut self, served: &BTreeSet<(Family, Protocol)>) {
        let all = self.gone_pods.iter().chain(&self.late);
        let families: BTreeSet<Family> = all.map(|ip| family_of(*ip)).collect();
        let of_pods = served.iter().filter(|(family, _)| families.contains(family));
        self.of_pods = of_pods.copied().collect();
        let is_served = |ip: &IpAddr| served.iter().any(|(family, _)| *family == family_of(*ip));
        self.gone_pods.retain(is_served);
        self.late.retain(is_served);
    }

    /// Whether an entry matches any candidate. An entry with the firewall's mark (a forbidden
    /// connection) always does: whether it is examined depends only on what is read.
    pub fn concern(&self, entry: &TrackedFlow) -> bool {
        entry.is_marked
            || can_move(entry) && self.concern_service_of(entry)
            || can_move(entry) && self.former_endpoints(entry, |_| true).next().is_some()
            || self.is_restricted(entry)
            || self.departed_ends(entry).next().is_some()
    }

    fn concern_service_of(&self, entry: &TrackedFlow) -> bool {
        let keys = keys_of(entry);
        keys.iter().flatten().any(|key| self.keys.contains(key))
            || [entry.source, entry.reply_source].iter().any(|end| self.is_gone_pod(end.ip()))
            || self.is_late(entry.source.ip())
    }

    /// Whether an entry that was forbidden may be permitted again.
    pub fn may_permit(&self, entry: &TrackedFlow) -> bool {
        let ends = [entry.source, entry.reply_source];
        self.all_relaxed || ends.iter().any(|end| self.relaxed.contains(&end.ip()))
    }

    /// Removes the search for connections to permit again. For callers that know that none is
    /// forbidden.
    pub fn forget_relaxed(&mut self) {
        self.relaxed.clear();
        self.all_relaxed = false;
    }

    /// Takes out the search for connections that an earlier run forbade: no change causes this
    /// search.
    pub fn take_marked_before(&mut self) -> Option<Self> {
        let due = std::mem::take(&mut self.marked_before);
        due.then(|| Self { marked_before: true, ..Self::default() })
    }

    /// The former endpoints of those changed host ports that may match an entry's destination.
    /// `serves_any`: whether host ports that name no address are served at this address.
    pub(super) fn former_endpoints(
        &self,
        entry: &TrackedFlow,
        serves_any: impl Fn(IpAddr) -> bool,
    ) -> impl Iterator<Item = &BTreeSet<SocketAddr>> {
        let (ip, port) = (entry.destination.ip(), NonZeroU16::new(entry.destination.port()));
        let places = [
            Some(HostPortPlace::Ip(ip)),
            serves_any(ip).then_some(HostPortPlace::Any(entry.family())),
        ];
        let key = move |at: HostPortPlace, (protocol, port)| HostPortKey { at, protocol, port };
        let named = entry.protocol().zip(port).filter(|_| !self.host_ports.is_empty());
        let keys = places.into_iter().flatten().filter_map(move |at| Some(key(at, named?)));
        keys.filter_map(move |key| self.host_ports.get(&key))
    }

    /// Whether to search for flows to former endpoints of host ports, of protocols whose senders do
    /// not start a new flow (all but TCP).
    pub fn has_former_host_ports(&self) -> bool {
        let mut former = self.host_ports.iter().filter(|(_, former)| !former.is_empty());
        former.any(|(key, _)| key.protocol != Protocol::Tcp)
    }

    /// Whether to search for connections of departed pods. They must be gone before another pod
    /// gets the address.
    pub fn has_departed(&self) -> bool {
        !self.departed.is_empty()
    }

    /// The addresses whose former pods' connections are searched for.
    pub fn departed(&self) -> impl Iterator<Item = IpAddr> {
        self.departed.iter().copied()
    }

    /// Whether connections of a departed pod with one of these addresses are searched for.
    pub fn has_departed_of(&self, addresses: &[IpAddr]) -> bool {
        addresses.iter().any(|ip| self.departed.contains(ip))
    }

    /// The candidates of the second search. Connections of departed pods are not among them, since
    /// a new pod may have the address by then; nor connections that are permitted again, which no
    /// late packet can undo.
    pub fn for_second_search(&self) -> Self {
        let mut again = Self { departed: BTreeSet::new(), marked_before: false, ..self.clone() };
        again.forget_relaxed();
        again
    }

    /// Whether a flow has the address of a departed pod.
    pub fn is_departed(&self, entry: &TrackedFlow) -> bool {
        self.departed_ends(entry).next().is_some()
    }

    /// The addresses of departed pods among a flow's ends; its original destination counts as an
    /// end.
    pub(super) fn departed_ends(&self, entry: &TrackedFlow) -> impl Iterator<Item = IpAddr> {
        let ends = [entry.source, entry.reply_source, entry.destination];
        ends.into_iter().map(|end| end.ip()).filter(|ip| self.departed.contains(ip))
    }

    /// Whether a policy may forbid a flow now that it permitted before.
    pub(super) fn may_forbid(&self, entry: &TrackedFlow) -> bool {
        self.is_restricted(entry) || self.is_departed(entry)
    }

    /// Whether a policy may now forbid connections of one of a flow's ends.
    fn is_restricted(&self, entry: &TrackedFlow) -> bool {
        let ends = [entry.source, entry.reply_source];
        ends.iter().any(|end| self.restricted.contains(&end.ip()))
    }

    /// Whether a pod that is gone had this address.
    pub(super) fn is_gone_pod(&self, address: IpAddr) -> bool {
        self.gone_pods.contains(&address)
    }

    /// Whether a pod with this address was treated as outside until now.
    pub(super) fn is_late(&self, address: IpAddr) -> bool {
        self.late.contains(&address)
    }

    /// Whether this frontend is a candidate.
    pub(super) fn is_frontend(&self, key: &FrontendKey) -> bool {
        self.keys.contains(key)
    }
}

/// The two frontends that may match an entry's destination; `None` for port 0, and for protocols
/// without ports.
pub(super) fn keys_of(entry: &TrackedFlow) -> Option<[FrontendKey; 2]> {
    let (protocol, port) = (entry.protocol()?, entry.destination.port().try_into().ok()?);
    let at = |address| FrontendKey { address, protocol, port };
    Some([
        at(FrontendAddress::Ip(entry.destination.ip())),
        at(FrontendAddress::Node(entry.family())),
    ])
}

/// Whether a flow can go on at another endpoint, if its entry is deleted. A TCP connection that was
/// answered cannot: its endpoint resets it, and the client connects again.
pub(super) fn can_move(entry: &TrackedFlow) -> bool {
    entry.protocol().is_some_and(|protocol| match protocol {
        Protocol::Udp | Protocol::Sctp => true,
        Protocol::Tcp => entry.is_unanswered_syn,
    })
}

fn all_protocols() -> BTreeSet<(Family, Protocol)> {
    let all = Protocol::ALL.into_iter();
    all.flat_map(|protocol| Family::BOTH.map(|family| (family, protocol))).collect()
}

fn served_by(services: &ServicePlan) -> BTreeSet<(Family, Protocol)> {
    let keys = services.frontends().map(|frontend| frontend.key);
    keys.map(|key| (key.family(), key.protocol)).collect()
}

/// Finds candidates by comparing changes of the plan with the state before, of which it keeps the
/// necessary parts.
#[derive(Debug, Default)]
pub struct CandidateTracker {
    candidates: StaleCandidates,
    pods: Option<(Epoch, BTreeSet<IpAddr>)>,
    /// The last interface of each pod address; `None` until pods are known.
    interfaces: Option<BTreeMap<IpAddr, Arc<str>>>,
    /// Late pods, to become candidates once services are known.
    late: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
    /// Whether the search for connections that an earlier run forbade has been scheduled.
    knows_marked: bool,
}

impl CandidateTracker {
    /// Notes what a change of the plan may have made stale. When a draining endpoint ends, its
    /// service changes but no frontend does, so all frontends of changed services are candidates.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        if let Some(pods) = plan.pods().filter(|_| changes.pods) {
            self.update_pods(pods);
            if plan.policy().detector.goes_by_records() {
                self.note_late(pods);
            }
        }
        self.update_firewall(plan, &changes.firewall);
        for (key, former) in &changes.host_ports.former {
            self.candidates.host_ports.entry(*key).or_default().extend(former);
        }
        let Some(services) = plan.services() else {
            return;
        };
        let of_services = changes.services.iter().flat_map(|name| services.keys_of(name));
        let keys = of_services.chain(&changes.frontends);
        keys.for_each(|key| self.candidates.add_frontend(*key));
        self.candidates.late.append(&mut self.late);
        if changes.node || changes.complete {
            self.update_node_ports(services, &plan.node().node_ports.addresses);
        }
    }

    /// Applies a change of the pod firewall. Until all policies are known, no connection is
    /// permitted again.
    fn update_firewall(&mut self, plan: &Plan, changes: &FirewallChanges) {
        if !plan.firewall().is_some_and(FirewallPlan::is_known) {
            return;
        }
        let candidates = &mut self.candidates;
        candidates.restricted.extend(&changes.narrowed);
        candidates.departed.extend(&changes.departed);
        candidates.relaxed.extend(changes.pod_rules.iter().map(|change| change.address));
        candidates.relaxed.extend(changes.identities.iter().map(|change| change.of));
        candidates.all_relaxed |= changes.state || !changes.blocks.is_empty();
        candidates.marked_before |= !std::mem::replace(&mut self.knows_marked, true);
    }

    /// Applies the current pods of this node. Only a pod that was removed from the same state file
    /// is gone: a lost file removes no pod.
    fn update_pods(&mut self, pods: &PodSet) {
        let Some((epoch, _)) = &pods.version else {
            return;
        };
        let now: BTreeSet<IpAddr> =
            pods.pods.iter().flat_map(|pod| pod.ips.iter().copied()).collect();
        if let Some((before, ips)) = &self.pods
            && before == epoch
        {
            self.candidates.gone_pods.extend(ips.difference(&now).copied());
        }
        self.pods = Some((epoch.clone(), now));
    }

    /// Notes late pods, for detection by pod records. Packets that a pod sent before its record, or
    /// before its interface's new name, was known were treated as from outside. The plugin's ADD
    /// waits for the rules, so a recorded pod is not late, unless it is in the first set: it may
    /// have been added while no agent ran.
    fn note_late(&mut self, pods: &PodSet) {
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

    /// Applies the addresses that serve node ports. On a new one, flows may be older than its
    /// rules.
    fn update_node_ports(&mut self, services: &ServicePlan, addresses: &[IpAddr]) {
        let now: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        let come: BTreeSet<Family> =
            now.difference(&self.node_ports).map(|ip| family_of(*ip)).collect();
        let keys = services.frontends().map(|frontend| frontend.key);
        if !come.is_empty() {
            keys
                .filter(|key| matches!(key.address, FrontendAddress::Node(family) if come.contains(&family)))
                .for_each(|key| self.candidates.add_frontend(key));
        }
        self.node_ports = now;
    }

    /// All candidates since the last [`Self::take`].
    pub fn candidates(&self) -> &StaleCandidates {
        &self.candidates
    }

    /// Adds frontends whose rules were missing for a while, so that flows may have bypassed them,
    /// or that an earlier run programmed and that no longer exist.
    pub fn add_frontends(&mut self, keys: impl IntoIterator<Item = FrontendKey>) {
        keys.into_iter().for_each(|key| self.candidates.add_frontend(key));
    }

    /// All candidates since the last call. While services are not known, entries of every protocol
    /// may be stale.
    pub fn take(&mut self, plan: &Plan) -> StaleCandidates {
        let mut candidates = std::mem::take(&mut self.candidates);
        if !candidates.gone_pods.is_empty() || !candidates.late.is_empty() {
            candidates.keep_pods_of(&plan.services().map_or_else(all_protocols, served_by));
        }
        candidates
    }
}
