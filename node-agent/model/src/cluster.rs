//! The facts that policies need: Namespaces, pods of the cluster, nodes, NetworkPolicies,
//! ClusterNetworkPolicies.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::{
    ClusterNetworkPolicy, ClusterPod, Labels, LocalPod, Model, Namespace, NetworkPolicy, PodByName,
    PodName, PolicyName,
};

/// The complete facts that policies need.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFacts<'a> {
    pub(super) model: &'a Model,
}

impl<'a> ClusterFacts<'a> {
    /// The labels of a namespace; `kubernetes.io/metadata.name` is always among them.
    pub fn namespace_labels(&self, name: &str) -> Labels {
        let known = self.model.namespaces.get(name);
        known.map_or_else(|| Namespace::labels_without_object(name), |known| known.labels.clone())
    }

    /// The names of all Namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        self.model.namespaces.keys()
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        self.model.namespaces.contains_key(name)
    }

    pub fn pod(&self, name: &PodName) -> Option<&'a Arc<ClusterPod>> {
        let PodByName(pod) = self.model.cluster_pods.get(name)?;
        (!pod.host_network).then_some(pod)
    }

    /// The object of a recorded pod, unless it belongs to another pod with the same name (another
    /// UID).
    pub fn pod_of(&self, recorded: &LocalPod) -> Option<&'a Arc<ClusterPod>> {
        let object = self.pod(recorded.pod.as_ref()?)?;
        object.here.as_ref()?.covers(recorded.uid.as_deref()).then_some(object)
    }

    /// Every pod except host-network pods, sorted by name.
    pub fn pods(&self) -> impl Iterator<Item = &'a Arc<ClusterPod>> + use<'a> {
        self.model.cluster_pods.iter().map(|PodByName(pod)| pod).filter(|pod| !pod.host_network)
    }

    pub fn policy(&self, name: &PolicyName) -> Option<&'a NetworkPolicy> {
        self.model.network_policies.get(name)
    }

    /// The NetworkPolicies of one namespace, by name.
    pub fn policies_of(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &'a NetworkPolicy> + use<'a> {
        let first = PolicyName { namespace: namespace.clone(), name: "".into() };
        let namespace = namespace.clone();
        let from = self.model.network_policies.range(first..);
        from.map(|(_, policy)| policy).take_while(move |policy| policy.name.namespace == namespace)
    }

    /// Every NetworkPolicy, by namespace and name.
    pub fn policies(&self) -> impl Iterator<Item = &'a NetworkPolicy> + use<'a> {
        self.model.network_policies.values()
    }

    /// Every ClusterNetworkPolicy, in order of evaluation.
    pub fn tiers(&self) -> Vec<&'a ClusterNetworkPolicy> {
        let mut all: Vec<_> = self.model.cluster_network_policies.values().collect();
        all.sort_by_key(|policy| policy.order());
        all
    }

    pub fn tier_policy(&self, name: &str) -> Option<&'a ClusterNetworkPolicy> {
        self.model.cluster_network_policies.get(name)
    }

    /// Whether the sources show all pods of the cluster, not only this node's and those of some
    /// namespaces.
    pub fn knows_all_pods(&self) -> bool {
        self.model.pod_coverage.is_all()
    }

    /// Whether there is any ClusterNetworkPolicy.
    pub fn has_tiers(&self) -> bool {
        !self.model.cluster_network_policies.is_empty()
    }

    /// Whether there is a ClusterNetworkPolicy that a pod may [evade] by another address.
    ///
    /// [evade]: ClusterNetworkPolicy::is_evadable
    pub fn has_evadable_tiers(&self) -> bool {
        self.model.cluster_network_policies.values().any(ClusterNetworkPolicy::is_evadable)
    }

    /// The addresses of each node that has an object, and its labels.
    pub fn nodes(&self) -> impl Iterator<Item = (Vec<IpAddr>, &'a Labels)> + use<'a> {
        let own = self.model.node.iter().map(|node| (node.addresses.clone(), &node.labels));
        let others = self.model.other_nodes.values().map(|node| {
            (node.internal.iter().chain(&node.external).copied().collect(), &node.labels)
        });
        own.chain(others)
    }

    /// The podCIDRs of all nodes.
    pub fn pod_ranges(&self) -> impl Iterator<Item = IpNetwork> + use<'a> {
        self.model.pod_ranges()
    }
}
