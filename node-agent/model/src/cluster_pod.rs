//! Pods and Namespaces of the cluster, as far as NetworkPolicies can tell them apart.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::labels::Labels;
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
    /// The container ports that have a name, of sidecars too. Sorted, without duplicates.
    pub ports: Arc<[NamedPort]>,
    /// `metadata.creationTimestamp`, seconds since 1970. Of two pods that claim one address, the
    /// younger one has it.
    pub created: i64,
    /// When it must have ended at the latest, seconds since 1970: `metadata.deletionTimestamp`,
    /// which has the grace period in it. `None` if it is not being deleted, or nobody asks.
    pub ends: Option<i64>,
    /// It uses its node's network. Then it has neither labels nor addresses here.
    pub host_network: bool,
    /// `status.hostIPs`: addresses of its node.
    pub host_ips: Arc<[IpAddr]>,
    /// The annotation `denizen.io/additional-addresses` of a pod of this node: further addresses
    /// that it may send from.
    pub additional: Arc<[IpAddr]>,
    /// The UIDs that its sandbox may be recorded with; `None` for pods of other nodes.
    pub here: Option<SandboxUids>,
}

/// What links the record of a sandbox to its pod in the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxUids {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// The annotation `kubernetes.io/config.hash` of a static pod. The kubelet gives a static
    /// pod's sandbox this as its UID; the API's object has another.
    pub config_hash: Option<Arc<str>>,
}

impl SandboxUids {
    /// Whether a sandbox with this UID belongs to the pod. Older runtimes do not pass a UID.
    pub fn covers(&self, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| *self.uid == *uid || self.config_hash.as_deref() == Some(uid))
    }
}

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
