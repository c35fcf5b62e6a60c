//! What changed in the model since a plan was made.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Family, PodName, PolicyName, ServiceName};

/// What an event touched, so that only that is planned again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelChange {
    /// Services whose own facts or endpoints changed.
    pub services: BTreeSet<ServiceName>,
    /// The Node object changed, which may change the plan of every service.
    pub node: bool,
    pub pods: bool,
    pub addresses: bool,
    pub links: bool,
    /// The addresses of nodes changed: see [`node_addresses`](super::Model::node_addresses).
    pub node_addresses: bool,
    pub service_ranges: bool,
    pub egress: bool,
    /// For each new slice of these services: its family, and when the change happened that led to
    /// it.
    pub triggers: Vec<(Family, Timestamp)>,
    pub namespaces: BTreeSet<Arc<str>>,
    pub cluster_pods: BTreeSet<PodName>,
    pub network_policies: BTreeSet<PolicyName>,
    /// ClusterNetworkPolicies that changed.
    pub cluster_network_policies: BTreeSet<Arc<str>>,
    /// A Node object changed, or whether all pods of the cluster are known.
    pub node_facts: bool,
    /// The API now refuses a further kind of object.
    pub refused: bool,
    /// The set of completely known pods changed.
    pub pod_coverage: bool,
}

impl ModelChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Clears the changes that the pod firewall alone depends on, once it has been updated.
    pub fn clear_firewall_inputs(&mut self) {
        self.namespaces.clear();
        self.cluster_pods.clear();
        self.network_policies.clear();
        self.cluster_network_policies.clear();
        self.node_facts = false;
        self.refused = false;
        self.pod_coverage = false;
        self.links = false;
        self.node_addresses = false;
    }

    /// Whether policies may select other recorded pods, besides those whose own objects changed.
    pub fn may_change_selection(&self) -> bool {
        let by_tiers = !self.cluster_network_policies.is_empty() || !self.namespaces.is_empty();
        self.pods || !self.network_policies.is_empty() || by_tiers
    }

    /// Whether anything about this node changed.
    pub fn is_about_node(&self) -> bool {
        self.node || self.pods || self.addresses || self.service_ranges || self.egress
    }
}
