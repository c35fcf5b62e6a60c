//! The facts: services, endpoints, this node, its pods. Plain values; no kernel, no Kubernetes
//! client.

mod change;
mod cluster;
mod cluster_network_policy;
mod cluster_pod;
mod egress;
mod endpoint;
mod event;
mod host_addresses;
mod host_port;
mod labels;
mod link;
mod network_policy;
mod node;
mod notice;
mod pod;
mod pod_coverage;
mod range;
mod service;
mod sorted_set;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use host_addresses::HostAddresses;

pub use denizen_packet::{Family, Protocol, family_of};

pub use change::ModelChange;
pub use cluster::ClusterFacts;
pub use cluster_network_policy::{
    Action, ClusterNetworkPolicy, Tier, TierPeer, TierPeers, TierPort, TierPorts, TierRule,
};
pub use cluster_pod::{ClusterPod, NamedPort, Namespace, OwnPodFacts, PodByName, PodName};
pub use egress::Egress;
pub use endpoint::{EndpointState, Slice, SliceEndpoint, SliceName, SlicePort};
pub use event::{Event, Listing};
pub use host_port::{HostPort, HostPortAddress};
pub use labels::{Labels, Operator, Requirement, Selector};
pub use link::{Mac, NodeLinks, NotEthernet, Tunnel};
pub use network_policy::{
    Block, Namespaces, NetworkPolicy, Peers, PolicyName, PolicyPeer, PolicyPort, PolicyRule,
    PortMatch, Ports,
};
pub use node::{Node, NodeAddress, Nodes, OtherNode};
pub use notice::{Notice, NoticeReason, NoticeSubject};
pub use pod::{LocalPod, PodSet, PodVersion, differing_pods};
pub use pod_coverage::{CoveredNamespaces, PodCoverage};
pub use range::{canonical_range, node_addresses_in};
pub use service::{
    ForeignService, RequestedScheduler, Service, ServiceName, ServicePort, ServicePortName,
    SessionAffinity, SourceRanges, TrafficPolicy,
};
pub use sorted_set::SortedSet;

#[derive(Debug, Default)]
pub struct Model {
    listed: BTreeSet<Listing>,
    refused: BTreeSet<Listing>,
    services: HashMap<ServiceName, Service>,
    /// No rule depends on them: see [`Self::foreign_service`].
    foreign_services: BTreeMap<ServiceName, ForeignService>,
    /// Sorted by name. Most services have one slice, for which a tree would take eleven times the
    /// memory.
    slices: HashMap<ServiceName, Vec<Slice>>,
    slice_owner: HashMap<SliceName, ServiceName>,
    node: Option<Node>,
    node_gone: bool,
    other_nodes: Arc<BTreeMap<Arc<str>, OtherNode>>,
    service_ranges: BTreeMap<String, Vec<IpNetwork>>,
    pods: Option<Arc<PodSet>>,
    egress: Option<Egress>,
    addresses: Vec<NodeAddress>,
    links: NodeLinks,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    cluster_pods: BTreeSet<PodByName>,
    pod_coverage: PodCoverage,
    host_addresses: HostAddresses,
    network_policies: BTreeMap<PolicyName, NetworkPolicy>,
    cluster_network_policies: BTreeMap<Arc<str>, ClusterNetworkPolicy>,
    /// Policies that are deleted, and stay in force: see [`Self::apply_network_policy`].
    outliving: BTreeSet<PolicyName>,
}

impl Model {
    /// Applies a fact, and adds what it changes to `change`. A repeated fact changes nothing.
    pub fn apply(&mut self, event: Event, change: &mut ModelChange) {
        match event {
            Event::Service(name, service) => {
                self.foreign_services.remove(&name);
                self.apply_service(name, service, change);
            }
            Event::ForeignService(name, foreign) => {
                self.apply_service(name.clone(), None, change);
                self.foreign_services.insert(name, foreign);
            }
            Event::Slice(name, slice) => self.apply_slice(name, slice, change),
            Event::Triggered(name, at) => self.apply_trigger(&name, at, change),
            Event::Node(node) => self.apply_node(node, change),
            Event::OtherNode(name, node) => self.apply_other_node(&name, node, change),
            Event::ServiceCidr(name, ranges) => {
                let before = match ranges {
                    Some(ranges) => self.service_ranges.insert(name.clone(), ranges),
                    None => self.service_ranges.remove(&name),
                };
                change.service_ranges |= before.as_ref() != self.service_ranges.get(&name);
            }
            Event::Namespace(name, namespace) => {
                let namespace = namespace.map(Namespace::with_name_label);
                if set(&mut self.namespaces, &name, namespace) {
                    self.end_policies(&name, change);
                    change.namespaces.insert(name);
                }
            }
            Event::ClusterPod(name, pod) => self.apply_cluster_pod(name, pod, change),
            Event::NetworkPolicy(name, policy) => self.apply_network_policy(name, policy, change),
            Event::ClusterNetworkPolicy(name, policy) => {
                if set(&mut self.cluster_network_policies, &name, policy) {
                    change.cluster_network_policies.insert(name);
                }
            }
            Event::Pods(pods) => change.pods |= replace(&mut self.pods, Some(pods.into())),
            Event::Addresses(addresses) => {
                if replace(&mut self.addresses, addresses) {
                    (change.addresses, change.node_addresses) = (true, true);
                }
            }
            Event::Links(links) => change.links |= replace(&mut self.links, links),
            Event::Egress(egress) => change.egress |= replace(&mut self.egress, Some(egress)),
            Event::PodCoverage(coverage) => {
                // Coverage decides whether an address without a known pod may be a pod's.
                change.node_facts |= coverage.is_all() != self.pod_coverage.is_all();
                change.pod_coverage |= replace(&mut self.pod_coverage, coverage);
            }
            Event::Listed(listing) => {
                self.listed.insert(listing);
                self.refused.remove(&listing);
            }
            // An API server that starts refuses everything for a while. Only after it has permitted
            // what services need does a refusal count as one of this kind alone.
            Event::Refused(listing) => {
                if self.snapshot().is_some() {
                    change.refused |= self.refused.insert(listing);
                }
            }
        }
    }

    /// An unchanged slice, or one without a service, needs no programming, so its trigger does not
    /// count.
    fn apply_trigger(&self, name: &SliceName, at: Timestamp, change: &mut ModelChange) {
        let owner = self.slice_owner.get(name);
        let owner = owner.filter(|owner| change.services.contains(*owner));
        let slices = owner.and_then(|owner| self.slices.get(owner));
        let slice = slices.into_iter().flatten().find(|slice| slice.name == *name);
        change.triggers.extend(slice.map(|slice| (slice.family, at)));
    }

    fn apply_node(&mut self, node: Option<Node>, change: &mut ModelChange) {
        self.node_gone = node.is_none() && (self.node_gone || self.node.is_some());
        if replace(&mut self.node, node) {
            (change.node, change.node_addresses, change.node_facts) = (true, true, true);
        }
    }

    /// No service depends on other nodes: see [`Self::nodes`].
    fn apply_other_node(
        &mut self,
        name: &Arc<str>,
        node: Option<OtherNode>,
        change: &mut ModelChange,
    ) {
        if self.other_nodes.get(name) != node.as_ref() {
            (change.node_addresses, change.node_facts) = (true, true);
            set(Arc::make_mut(&mut self.other_nodes), name, node);
        }
    }

    fn apply_service(
        &mut self,
        name: ServiceName,
        service: Option<Service>,
        change: &mut ModelChange,
    ) {
        if self.services.get(&name) == service.as_ref() {
            return;
        }
        match service {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(&name),
        };
        change.services.insert(name);
    }

    /// When a namespace is deleted, its policies go before its pods have ended. They stay in force
    /// until the namespace is gone.
    fn apply_network_policy(
        &mut self,
        name: PolicyName,
        policy: Option<NetworkPolicy>,
        change: &mut ModelChange,
    ) {
        if policy.is_none() && self.is_ending(&name.namespace) {
            self.outliving.insert(name);
            return;
        }
        self.outliving.remove(&name);
        if set(&mut self.network_policies, &name, policy) {
            change.network_policies.insert(name);
        }
    }

    /// Removes the policies that outlived their deletion, unless their namespace is still ending.
    fn end_policies(&mut self, namespace: &Arc<str>, change: &mut ModelChange) {
        if self.is_ending(namespace) {
            return;
        }
        for name in self.outliving.extract_if(.., |name| name.namespace == *namespace) {
            if self.network_policies.remove(&name).is_some() {
                change.network_policies.insert(name);
            }
        }
    }

    fn is_ending(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|namespace| namespace.is_ending)
    }

    /// The facts that policies need; `None` while one of the first full lists in
    /// [`Listing::FIREWALL`] is missing: half a list of policies leaves open what is forbidden.
    pub fn cluster(&self) -> Option<ClusterFacts<'_>> {
        self.owed(Listing::FIREWALL).next().is_none().then_some(ClusterFacts { model: self })
    }

    /// [`Self::cluster`] as if there were no ClusterNetworkPolicies; `None` unless their list is
    /// the only missing one, and the API refuses it.
    pub fn cluster_without_tiers(&self) -> Option<ClusterFacts<'_>> {
        let tiers = Listing::ClusterNetworkPolicies;
        let is_refused = self.refused().any(|listing| listing == tiers);
        let owes_others = self.owed(Listing::FIREWALL).any(|listing| listing != tiers);
        (is_refused && !owes_others).then_some(ClusterFacts { model: self })
    }

    /// [`Self::cluster`] without waiting for the lists of pods and of this node's addresses. If the
    /// API refuses ClusterNetworkPolicies, they count as none.
    pub fn cluster_but_pods(&self) -> Option<ClusterFacts<'_>> {
        let may_lack = |listing: &Listing| match listing {
            Listing::Pods | Listing::Addresses => true,
            Listing::ClusterNetworkPolicies => self.refused.contains(listing),
            Listing::Services
            | Listing::Slices
            | Listing::Node
            | Listing::ServiceCidrs
            | Listing::Namespaces
            | Listing::NetworkPolicies
            | Listing::OtherNodes => false,
        };
        let is_complete = self.owed(Listing::FIREWALL).all(|listing| may_lack(&listing));
        is_complete.then_some(ClusterFacts { model: self })
    }

    /// A slice may move from one service to another: the label that names the service can be
    /// changed.
    fn apply_slice(&mut self, name: SliceName, slice: Option<Slice>, change: &mut ModelChange) {
        let owner = self.slice_owner.get(&name);
        let before = owner
            .and_then(|owner| self.slices.get_mut(owner))
            .and_then(|slices| slices.iter_mut().find(|slice| slice.name == name));
        let slice = match (before, slice) {
            (None, None) => return,
            (Some(before), Some(slice)) if *before == slice => return,
            (Some(before), Some(slice)) if before.service == slice.service => {
                change.services.insert(slice.service.clone());
                *before = slice;
                return;
            }
            (_, slice) => slice,
        };
        if let Some(owner) = self.slice_owner.remove(&name) {
            if let Some(slices) = self.slices.get_mut(&owner) {
                slices.retain(|slice| slice.name != name);
                if slices.is_empty() {
                    self.slices.remove(&owner);
                }
            }
            change.services.insert(owner);
        }
        if let Some(slice) = slice {
            let owner = slice.service.clone();
            change.services.insert(owner.clone());
            self.slice_owner.insert(name, owner.clone());
            let slices = self.slices.entry(owner).or_insert_with(|| Vec::with_capacity(1));
            let at = slices.partition_point(|other| other.name < slice.name);
            slices.insert(at, slice);
        }
    }

    fn apply_cluster_pod(
        &mut self,
        name: PodName,
        pod: Option<Arc<ClusterPod>>,
        change: &mut ModelChange,
    ) {
        let before = match &pod {
            None => self.cluster_pods.take(&name),
            Some(pod) => self.cluster_pods.replace(PodByName(pod.clone())),
        };
        let before = before.map(|PodByName(pod)| pod);
        if before == pod {
            return;
        }
        let ips = |pod: &Option<Arc<ClusterPod>>| {
            pod.as_ref().map(|pod| pod.host_ips.clone()).unwrap_or_default()
        };
        change.node_addresses |= self.host_addresses.replace(&ips(&before), &ips(&pod));
        change.cluster_pods.insert(name);
    }

    /// Which pods of the cluster are known, once the first list of pods is complete.
    pub fn pod_coverage(&self) -> &PodCoverage {
        &self.pod_coverage
    }

    /// How many pods of these namespaces are known, and how many pods there are in all.
    pub fn pod_counts(&self, namespaces: &BTreeSet<Arc<str>>) -> (usize, usize) {
        let of = |namespace: &Arc<str>| {
            let first = PodName { namespace: namespace.clone(), name: "".into() };
            let from = self.cluster_pods.range(first..);
            from.take_while(|PodByName(pod)| pod.name.namespace == *namespace).count()
        };
        (namespaces.iter().map(of).sum(), self.cluster_pods.len())
    }

    /// The pods of the last readable state file; `None` if it was never readable. Pods are
    /// programmed even if nothing else is known.
    pub fn pods(&self) -> Option<&Arc<PodSet>> {
        self.pods.as_ref()
    }

    /// Whether load balancers may send to this node: it is not deleted or being deleted. If there
    /// never was a Node object, they may.
    pub fn is_node_eligible(&self) -> bool {
        !self.node_gone && !self.node.as_ref().is_some_and(|node| node.leaving)
    }

    /// The addresses of this node's links.
    pub fn addresses(&self) -> &[NodeAddress] {
        &self.addresses
    }

    /// This node's bridges and tunnels.
    pub fn links(&self) -> &NodeLinks {
        &self.links
    }

    /// The addresses of this node's links, and the known addresses of other nodes: from their Node
    /// objects, if these are followed, and from `status.hostIPs` of pods.
    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let own = self.addresses.iter().map(|own| own.address);
        let node = self.node.iter().flat_map(|node| &node.addresses);
        let others = self.other_nodes.values();
        let others = others.flat_map(|node| node.internal.iter().chain(&node.external));
        let all = own.chain(node.chain(others).chain(self.host_addresses.iter()).copied());
        // Loopback addresses never name another node.
        all.filter(|ip| !ip.is_loopback())
    }

    /// The podCIDRs of all known nodes.
    pub fn pod_ranges(&self) -> impl Iterator<Item = IpNetwork> {
        let own = self.node.iter().flat_map(|node| &node.pod_cidrs);
        let others = self.other_nodes.values().flat_map(|node| &node.pod_cidrs);
        own.chain(others).copied()
    }

    /// All nodes, if their objects are followed; `None` before the first list.
    pub fn nodes(&self) -> Option<Nodes> {
        let nodes = || Nodes { own: self.node.clone(), others: self.other_nodes.clone() };
        self.listed.contains(&Listing::Node).then(nodes)
    }

    /// The egress configuration; `None` if egress masquerade is off.
    pub fn egress(&self) -> Option<&Egress> {
        self.egress.as_ref()
    }

    /// The Service of another proxy that has this cluster IP.
    pub fn foreign_service(&self, address: IpAddr) -> Option<(&ServiceName, &ForeignService)> {
        self.foreign_services.iter().find(|(_, service)| service.cluster_ips.contains(&address))
    }

    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// The first lists among `of` that are still missing.
    pub fn owed<const N: usize>(&self, of: [Listing; N]) -> impl Iterator<Item = Listing> + '_ {
        of.into_iter().filter(|listing| !self.listed.contains(listing))
    }

    /// The first lists that are missing because the API refuses them, although it permits all that
    /// services need.
    pub fn refused(&self) -> impl Iterator<Item = Listing> + '_ {
        self.refused.iter().copied()
    }

    /// The complete facts; `None` while a source's first full list is missing.
    ///
    /// A plan made from incomplete facts deletes rules that are still wanted. Planning takes a
    /// [`Snapshot`], and only this function makes one, so that mistake does not compile.
    pub fn snapshot(&self) -> Option<Snapshot<'_>> {
        self.owed(Listing::SERVICES).next().is_none().then_some(Snapshot { model: self })
    }
}

/// Stores, or removes, the value of a key. Returns whether it differs from the old one.
fn set<K: Ord + Clone, V: PartialEq>(map: &mut BTreeMap<K, V>, key: &K, new: Option<V>) -> bool {
    if map.get(key) == new.as_ref() {
        return false;
    }
    match new {
        Some(new) => drop(map.insert(key.clone(), new)),
        None => drop(map.remove(key)),
    }
    true
}

/// Stores `new`. Returns whether it differs from the old value.
fn replace<T: PartialEq>(slot: &mut T, new: T) -> bool {
    let differs = *slot != new;
    *slot = new;
    differs
}

/// A complete set of facts.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    model: &'a Model,
}

impl<'a> Snapshot<'a> {
    pub fn service(&self, name: &ServiceName) -> Option<&'a Service> {
        self.model.services.get(name)
    }

    /// Every service, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &'a Service> + use<'a> {
        self.model.services.values()
    }

    pub fn slices(&self, service: &ServiceName) -> impl Iterator<Item = &'a Slice> + use<'a> {
        self.model.slices.get(service).into_iter().flatten()
    }

    /// The Node object of this node, if there is one.
    pub fn node(&self) -> Option<&'a Node> {
        self.model.node.as_ref()
    }

    /// The addresses of this node's links.
    pub fn addresses(&self) -> &'a [NodeAddress] {
        &self.model.addresses
    }

    /// The ranges of cluster IPs, if they are known.
    pub fn service_ranges(&self) -> impl Iterator<Item = IpNetwork> + use<'a> {
        self.model.service_ranges.values().flatten().copied()
    }
}
