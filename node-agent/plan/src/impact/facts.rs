//! The facts, reduced to what policies can tell apart.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::{FirewallPlan, FirewallSettings};
use denizen_model::{
    ClusterNetworkPolicy, ClusterPod, Event, Labels, Listing, LocalPod, Model, ModelChange,
    NamedPort, NetworkPolicy, OwnPodFacts, Peers, PodName, PodSet, PolicyPeer, PortMatch, Ports,
    Selector, SortedSet, TierPeer, TierPeers, TierPort, TierPorts,
};
use denizen_state::AttachmentId;

/// Policies can tell pods with equal keys apart only by address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    namespace: Arc<str>,
    labels: Labels,
    ports: SortedSet<NamedPort>,
}

/// An address of a pod.
#[derive(Debug)]
pub(super) struct PodAddress {
    pub pod: PodName,
    pub address: IpAddr,
    /// Index of the pod's group in [`ImpactInputs::groups`].
    pub group: usize,
}

#[derive(Debug)]
pub(super) struct ImpactInputs {
    events: Vec<Event>,
    /// One recorded pod for each group.
    records: PodSet,
    /// The record of each group.
    pub groups: Vec<AttachmentId>,
    /// Sorted by pod.
    pub addresses: Vec<PodAddress>,
    pub without_address: Vec<PodName>,
    /// The names of nodes, by address.
    pub nodes: BTreeMap<IpAddr, Arc<str>>,
    /// The ranges that nodes give their pods addresses from.
    pub pod_ranges: BTreeSet<IpNetwork>,
}

impl ImpactInputs {
    pub fn new(events: Vec<Event>, change: &[Event]) -> Self {
        let mut selector_keys = SelectorKeys::default();
        events.iter().chain(change).for_each(|event| selector_keys.add(event));
        let mut facts = Self {
            events: Vec::with_capacity(events.len()),
            records: PodSet::default(),
            groups: Vec::new(),
            addresses: Vec::new(),
            without_address: Vec::new(),
            nodes: BTreeMap::new(),
            pod_ranges: BTreeSet::new(),
        };
        let mut pods = BTreeMap::new();
        for event in events {
            if let Event::OtherNode(name, Some(node)) = &event {
                let addresses = node.internal.iter().chain(&node.external);
                facts.nodes.extend(addresses.map(|address| (*address, name.clone())));
                facts.pod_ranges.extend(&node.pod_cidrs);
            }
            if let Event::ClusterPod(name, Some(pod)) = &event
                && !pod.host_network
            {
                pods.insert(name.clone(), selector_keys.reduced((**pod).clone()));
            } else {
                facts.events.push(event);
            }
        }
        facts.group(&mut pods);
        let pods = pods.into_iter();
        facts.events.extend(pods.map(|(name, pod)| Event::ClusterPod(name, Some(pod.into()))));
        facts.events.extend(Listing::FIREWALL.map(Event::Listed));
        facts
    }

    /// Records the first pod of each group that has an address.
    fn group(&mut self, pods: &mut BTreeMap<PodName, ClusterPod>) {
        // Of two pods that claim an address, the younger one has it.
        let mut owners: HashMap<IpAddr, (i64, PodName)> = HashMap::new();
        for (name, pod) in pods.iter() {
            for ip in &pod.ips {
                let claim = (pod.created, name.clone());
                let owner = owners.entry(*ip).or_insert_with(|| claim.clone());
                *owner = claim.max(owner.clone());
            }
        }
        let mut ids: HashMap<GroupKey, usize> = HashMap::new();
        for (name, pod) in pods {
            let is_its = |ip: &IpAddr| owners.get(ip).is_some_and(|(_, owner)| owner == name);
            let own: Vec<IpAddr> = pod.ips.iter().copied().filter(is_its).collect();
            if own.is_empty() {
                self.without_address.push(name.clone());
                continue;
            }
            let key = GroupKey {
                namespace: name.namespace.clone(),
                labels: pod.labels.clone(),
                ports: pod.ports.clone(),
            };
            let group = *ids.entry(key).or_insert_with(|| {
                let uid: Arc<str> = "recorded".into();
                pod.here = Some(OwnPodFacts::new(uid.clone()).into());
                let record = record(self.groups.len(), name, uid, own.clone());
                self.groups.push(record.id.clone());
                self.records.pods.push(record);
                self.groups.len() - 1
            });
            let address = |address| PodAddress { pod: name.clone(), address, group };
            self.addresses.extend(own.into_iter().map(address));
        }
    }

    /// The plan of these facts, after these changes.
    pub fn plan(&self, changes: &[Event]) -> FirewallPlan {
        let (mut model, mut change) = (Model::default(), ModelChange::default());
        for event in self.events.iter().chain(changes) {
            model.apply(event.clone(), &mut change);
        }
        change.pods = true;
        let mut plan = FirewallPlan::new(FirewallSettings::default(), &[]);
        plan.update(&model, Some(&self.records), &change);
        plan
    }
}

/// A record whose id sorts by `number`: records are sorted by id.
fn record(number: usize, name: &PodName, uid: Arc<str>, ips: Vec<IpAddr>) -> LocalPod {
    LocalPod {
        id: AttachmentId(format!("{number:08}")),
        pod: Some(name.clone()),
        uid: Some(uid),
        interface: "pod".into(),
        port: None,
        vlan_port: None,
        bridge: None,
        ips,
        mac: None,
        host_ports: Vec::new(),
        added_at: "".into(),
        adopted: false,
        redirect: None,
    }
}

/// The label keys and port names that policies use. Pods that differ only in others are equal to
/// policies: for example, the pods of a StatefulSet, whose labels number them.
#[derive(Debug, Default)]
struct SelectorKeys {
    keys: BTreeSet<Arc<str>>,
    names: BTreeSet<Arc<str>>,
}

impl SelectorKeys {
    fn add(&mut self, event: &Event) {
        if let Event::NetworkPolicy(_, Some(policy)) = event {
            self.add_policy(policy);
        }
        if let Event::ClusterNetworkPolicy(_, Some(policy)) = event {
            self.add_tier(policy);
        }
    }

    fn add_policy(&mut self, policy: &NetworkPolicy) {
        self.add_keys(&policy.pods);
        for rule in policy.ingress.iter().chain(&policy.egress).flatten() {
            if let Peers::These(peers) = &rule.peers {
                for peer in peers {
                    if let PolicyPeer::Pods { pods, .. } = peer {
                        self.add_keys(pods);
                    }
                }
            }
            if let Ports::These(ports) = &rule.ports {
                for port in ports {
                    if let PortMatch::Named(name) = &port.port {
                        self.names.insert(name.clone());
                    }
                }
            }
        }
    }

    fn add_tier(&mut self, policy: &ClusterNetworkPolicy) {
        self.add_keys(&policy.pods);
        for rule in policy.ingress.iter().chain(&policy.egress) {
            if let TierPeers::These(peers) = &rule.peers {
                for peer in peers {
                    if let TierPeer::Pods { pods, .. } = peer {
                        self.add_keys(pods);
                    }
                }
            }
            if let TierPorts::These(ports) = &rule.ports {
                for port in ports {
                    if let TierPort::Named(name) = port {
                        self.names.insert(name.clone());
                    }
                }
            }
        }
    }

    fn add_keys(&mut self, selector: &Selector) {
        let keys = selector.requirements.iter().map(|requirement| requirement.key.clone());
        self.keys.extend(keys);
    }

    /// The pod with only these labels and ports, as if it were on another node.
    fn reduced(&self, pod: ClusterPod) -> ClusterPod {
        let labels = pod.labels.iter().filter(|(key, _)| self.keys.contains(*key));
        let ports = pod.ports.iter().filter(|port| self.names.contains(&port.name));
        ClusterPod { labels: labels.collect(), ports: ports.cloned().collect(), here: None, ..pod }
    }
}
