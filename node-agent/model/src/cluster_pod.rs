//! Pods and Namespaces of the cluster, as far as NetworkPolicies can tell them apart.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::labels::Labels;
use super::sorted_set::SortedSet;
use denizen_packet::Protocol;

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod of the cluster, on any node, as the API has it.
///
/// Finished pods (phase Succeeded or Failed) are excluded: another pod may already have their
/// address. A host-network pod counts as its node: [`ClusterFacts`](super::ClusterFacts) excludes
/// it, and only [`Self::host_ips`] are used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterPod {
    pub name: PodName,
    pub labels: Labels,
    /// `status.podIPs`; empty until its node has reported them.
    pub ips: Box<[IpAddr]>,
    /// The container ports that have a name, of sidecars too.
    pub ports: SortedSet<NamedPort>,
    /// `metadata.creationTimestamp`, seconds since 1970. Of two pods that claim one address, the
    /// younger one has it.
    pub created: i64,
    /// When it must have ended at the latest, seconds since 1970: `metadata.deletionTimestamp`,
    /// which has the grace period in it. `None` if it is not being deleted, or if the decoder is
    /// not told to read this.
    pub ends: Option<i64>,
    /// It uses its node's network. Then it has neither labels nor addresses here.
    pub host_network: bool,
    /// `status.hostIPs`: addresses of its node.
    pub host_ips: SortedSet<IpAddr>,
    /// `None` for pods of other nodes.
    pub here: Option<Box<OwnPodFacts>>,
}

impl ClusterPod {
    /// A pod of which only the name is known.
    pub fn named(name: PodName) -> Self {
        Self {
            name,
            labels: Labels::default(),
            ips: Box::default(),
            ports: SortedSet::default(),
            created: 0,
            ends: None,
            host_network: false,
            host_ips: SortedSet::default(),
            here: None,
        }
    }
}

/// Facts that are needed only for pods of this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnPodFacts {
    /// `metadata.uid`. It links the record of a sandbox to its pod in the API.
    pub uid: Arc<str>,
    /// The annotation `kubernetes.io/config.hash` of a static pod. The kubelet gives a static
    /// pod's sandbox this as its UID; the API's object has another.
    pub config_hash: Option<Arc<str>>,
    /// The annotation `denizen.io/additional-addresses`: further addresses that the pod may send
    /// from.
    pub additional: Arc<[IpAddr]>,
}

impl OwnPodFacts {
    /// The facts of an ordinary pod with this UID.
    pub fn new(uid: Arc<str>) -> Self {
        Self { uid, config_hash: None, additional: Arc::default() }
    }

    /// Whether a sandbox with this UID belongs to the pod. Older runtimes do not pass a UID.
    pub fn covers(&self, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| *self.uid == *uid || self.config_hash.as_deref() == Some(uid))
    }
}

/// A pod as an element of a set or as a key, compared by its name alone.
#[derive(Debug, Clone)]
pub struct PodByName(pub Arc<ClusterPod>);

impl Borrow<PodName> for PodByName {
    fn borrow(&self) -> &PodName {
        &self.0.name
    }
}

impl Hash for PodByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl Ord for PodByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for PodByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PodByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for PodByName {}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedPort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: NonZeroU16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    pub labels: Labels,
    /// It is being deleted, with all that is in it.
    pub is_ending: bool,
}

impl Namespace {
    /// The label that the API server sets on every Namespace.
    const NAME_LABEL: &str = "kubernetes.io/metadata.name";

    /// The labels of a namespace that has no object, as in hand-written manifests.
    pub(super) fn labels_without_object(name: &str) -> Labels {
        Labels::from_iter([(Self::NAME_LABEL, name)])
    }

    /// Adds the label of its name if a manifest left it out.
    pub(super) fn with_name_label(self) -> Self {
        if self.labels.get(Self::NAME_LABEL) == Some(&self.name) {
            return self;
        }
        let labels = self.labels.iter().chain([(Self::NAME_LABEL, &*self.name)]).collect();
        Self { labels, ..self }
    }
}
