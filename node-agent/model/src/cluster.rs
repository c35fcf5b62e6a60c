//! The facts that NetworkPolicies need: Namespaces, pods of the cluster, NetworkPolicies.

use std::sync::Arc;

use super::{
    ClusterPod, Labels, Listing, LocalPod, Model, ModelChange, NetworkPolicy, PodName, PolicyName,
    set,
};

impl Model {
    /// When a namespace is deleted, its policies go before its pods have ended. They stay in force
    /// until the namespace is gone.
    pub(super) fn apply_network_policy(
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
    pub(super) fn end_policies(&mut self, namespace: &Arc<str>, change: &mut ModelChange) {
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

    /// The Namespaces, the pods of the cluster and the NetworkPolicies; `None` while one of their
    /// first full lists is missing: half a list of policies leaves open what is forbidden.
    pub fn cluster(&self) -> Option<ClusterFacts<'_>> {
        self.owed(Listing::FIREWALL).next().is_none().then_some(ClusterFacts { model: self })
    }
}

/// The complete facts that NetworkPolicies need.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFacts<'a> {
    model: &'a Model,
}

impl<'a> ClusterFacts<'a> {
    /// The labels of a namespace. The API server sets one on every Namespace; it is there without
    /// any object too, as for hand written manifests.
    pub fn namespace_labels(&self, name: &str) -> Labels {
        const NAME_LABEL: &str = "kubernetes.io/metadata.name";
        let known = self.model.namespaces.get(name);
        match known.filter(|known| known.labels.get(NAME_LABEL) == Some(name)) {
            Some(namespace) => namespace.labels.clone(),
            None => {
                let labels = known.iter().flat_map(|known| known.labels.iter());
                labels.chain([(NAME_LABEL, name)]).collect()
            }
        }
    }

    pub fn pod(&self, name: &PodName) -> Option<&'a ClusterPod> {
        self.model.cluster_pods.get(name).filter(|pod| !pod.host_network)
    }

    /// The object of a recorded pod, if it is this very pod's and not that of one of the same name.
    pub fn pod_of(&self, recorded: &LocalPod) -> Option<&'a ClusterPod> {
        let object = self.pod(recorded.pod.as_ref()?)?;
        object.here.as_ref()?.covers(recorded.uid.as_deref()).then_some(object)
    }

    /// Every pod, by name.
    pub fn pods(&self) -> impl Iterator<Item = &'a ClusterPod> + use<'a> {
        self.model.cluster_pods.values().filter(|pod| !pod.host_network)
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
}
