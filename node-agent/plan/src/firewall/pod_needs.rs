//! Which namespaces' pods must be known to decide about this node's pods. Pure.
//!
//! A NetworkPolicy only ever permits, so a pod that is not known is permitted less, never more. A
//! ClusterNetworkPolicy may deny by labels, so with one every pod must be known.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use denizen_model::{
    ClusterFacts, LocalPod, Model, ModelChange, Namespaces, NetworkPolicy, Peers, PodCoverage,
    PolicyName, PolicyPeer, PolicyRule, PortMatch, Ports, Selector,
};

/// Which pods of other nodes must be known, so that decisions are the same as if all were.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodNeeds {
    /// Not known yet, or not tracked.
    #[default]
    Unknown,
    All(AllPodsReason),
    /// The pods of these namespaces.
    Namespaces(BTreeSet<Arc<str>>),
}

/// Why pods of every namespace must be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllPodsReason {
    /// There is a ClusterNetworkPolicy.
    ClusterNetworkPolicies,
    /// This policy permits pods of every namespace.
    EveryNamespace(PolicyName),
    /// This policy permits named ports of any address.
    NamedPorts(PolicyName),
}

impl fmt::Display for AllPodsReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterNetworkPolicies => f.write_str("there is a ClusterNetworkPolicy"),
            Self::EveryNamespace(policy) => {
                write!(f, "NetworkPolicy {policy} has an empty namespaceSelector")
            }
            Self::NamedPorts(policy) => {
                write!(f, "NetworkPolicy {policy} permits named ports of any address")
            }
        }
    }
}

impl PodNeeds {
    /// Whether all of these pods are known, or cannot be read.
    pub fn are_covered(&self, coverage: &PodCoverage) -> bool {
        match (self, coverage) {
            (_, PodCoverage::All) => true,
            (Self::Unknown | Self::All(_), PodCoverage::Some(_)) => false,
            (Self::Namespaces(needed), PodCoverage::Some(covered)) => {
                let is_covered = |name: &Arc<str>| {
                    covered.complete.contains(name) || covered.failed.contains(name)
                };
                needed.iter().all(is_covered)
            }
        }
    }
}

/// The current needs, updated with each change of the facts.
#[derive(Debug, Default)]
pub(super) struct NeedsTracker {
    /// Whether ranges are configured that stand for every pod.
    has_pod_ranges: bool,
    referred: ReferredNamespaces,
    needs: PodNeeds,
}

/// The namespaces that the peers of this node's policies refer to.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReferredNamespaces {
    all: Option<AllPodsReason>,
    /// The own namespaces of policies with peers that have no `namespaceSelector`.
    own: BTreeSet<Arc<str>>,
    of_namespaces: BTreeSet<Selector>,
    has_pod_ranges: bool,
}

impl NeedsTracker {
    pub fn new(pod_ranges: &[IpNetwork]) -> Self {
        Self { has_pod_ranges: !pod_ranges.is_empty(), ..Self::default() }
    }

    pub fn needs(&self) -> &PodNeeds {
        &self.needs
    }

    /// Decides again if `change` concerns the needs.
    pub fn update(&mut self, model: &Model, recorded: &[LocalPod], change: &ModelChange) {
        let Some(cluster) = model.cluster_but_pods() else { return };
        let is_first = self.needs == PodNeeds::Unknown;
        let is_named = |pod: &LocalPod| {
            pod.pod.as_ref().is_some_and(|name| change.cluster_pods.contains(name))
        };
        let may_differ = change.pods
            || !change.network_policies.is_empty()
            || !change.cluster_network_policies.is_empty()
            || recorded.iter().any(is_named);
        if may_differ || is_first {
            let referred = ReferredNamespaces::by(cluster, recorded, self.has_pod_ranges);
            if referred != self.referred || is_first {
                self.needs = referred.needs(cluster);
                self.referred = referred;
                return;
            }
        }
        let PodNeeds::Namespaces(needed) = &mut self.needs else { return };
        for name in &change.namespaces {
            match self.referred.includes(name, cluster) {
                true => needed.insert(name.clone()),
                false => needed.remove(name),
            };
        }
    }
}

impl ReferredNamespaces {
    fn by(cluster: ClusterFacts<'_>, recorded: &[LocalPod], has_pod_ranges: bool) -> Self {
        let mut referred = Self { has_pod_ranges, ..Self::default() };
        if cluster.has_tiers() {
            referred.all = Some(AllPodsReason::ClusterNetworkPolicies);
            return referred;
        }
        let namespaces = recorded.iter().filter_map(|pod| Some(&pod.pod.as_ref()?.namespace));
        let namespaces: BTreeSet<&Arc<str>> = namespaces.collect();
        for namespace in namespaces {
            let of_namespace =
                |pod: &&LocalPod| pod.pod.as_ref().is_some_and(|name| name.namespace == *namespace);
            let pods: Vec<&LocalPod> = recorded.iter().filter(of_namespace).collect();
            for policy in cluster.policies_of(namespace) {
                // A pod whose labels are not known may be selected.
                let may_select = |pod: &&LocalPod| {
                    cluster.pod_of(pod).is_none_or(|pod| policy.pods.selects(&pod.labels))
                };
                if pods.iter().any(may_select) {
                    referred.add(policy);
                }
            }
        }
        referred
    }

    fn add(&mut self, policy: &NetworkPolicy) {
        for rule in policy.ingress.iter().flatten() {
            // Named ports of ingress rules are defined by this node's pod.
            self.add_rule(policy, rule, false);
        }
        for rule in policy.egress.iter().flatten() {
            self.add_rule(policy, rule, names_ports(&rule.ports));
        }
    }

    /// `by_name`: the rule has named ports, which the destination pod defines.
    fn add_rule(&mut self, policy: &NetworkPolicy, rule: &PolicyRule, by_name: bool) {
        let mut needs_all = |why: fn(PolicyName) -> AllPodsReason| {
            self.all.get_or_insert_with(|| why(policy.name.clone()));
        };
        let peers = match &rule.peers {
            Peers::All => {
                if by_name {
                    needs_all(AllPodsReason::NamedPorts);
                }
                return;
            }
            Peers::These(peers) => peers,
        };
        for peer in peers {
            match peer {
                PolicyPeer::Block(_) if by_name => needs_all(AllPodsReason::NamedPorts),
                PolicyPeer::Block(_) => {}
                PolicyPeer::Pods { namespaces: Namespaces::Own, .. } => {
                    self.own.insert(policy.name.namespace.clone());
                }
                PolicyPeer::Pods { namespaces: Namespaces::Selected(selector), pods } => {
                    if !selector.is_empty() {
                        self.of_namespaces.insert(selector.clone());
                    } else if by_name || !pods.is_empty() || !self.has_pod_ranges {
                        needs_all(AllPodsReason::EveryNamespace);
                    }
                }
            }
        }
    }

    fn needs(&self, cluster: ClusterFacts<'_>) -> PodNeeds {
        if let Some(why) = &self.all {
            return PodNeeds::All(why.clone());
        }
        let selected = cluster.namespaces().filter(|name| self.includes(name, cluster));
        PodNeeds::Namespaces(selected.chain(&self.own).cloned().collect())
    }

    fn includes(&self, namespace: &Arc<str>, cluster: ClusterFacts<'_>) -> bool {
        if self.own.contains(namespace) {
            return true;
        }
        // A namespace without an object has no pods.
        if self.of_namespaces.is_empty() || !cluster.has_namespace(namespace) {
            return false;
        }
        let labels = cluster.namespace_labels(namespace);
        self.of_namespaces.iter().any(|selector| selector.selects(&labels))
    }
}

fn names_ports(ports: &Ports) -> bool {
    match ports {
        Ports::All => false,
        Ports::These(ports) => ports.iter().any(|port| matches!(port.port, PortMatch::Named(_))),
    }
}
