//! Which pods are asked for.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kube::core::Request;

/// The pods of other nodes that are followed. Those of this node always are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodScope {
    All,
    /// Only the pods of these namespaces.
    Namespaces(BTreeSet<Arc<str>>),
}

/// What one stream brings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::kube) enum StreamScope {
    /// Every object of the kind.
    All,
    /// Pods of this node.
    OwnPods,
    /// Pods of one namespace.
    PodsOf(Arc<str>),
}

impl StreamScope {
    /// The path for `request`, which is that of all.
    pub fn request(&self, request: Request) -> Request {
        match self {
            Self::All | Self::OwnPods => request,
            Self::PodsOf(namespace) => Request::new(format!("/api/v1/namespaces/{namespace}/pods")),
        }
    }

    /// A further field selector. No pod stops matching it.
    pub fn fields(&self, node_name: &str) -> Option<String> {
        match self {
            Self::All | Self::PodsOf(_) => None,
            Self::OwnPods => Some(format!("spec.nodeName={node_name}")),
        }
    }
}

/// As text that follows the plural of the kind.
impl fmt::Display for StreamScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::OwnPods => f.write_str(" of this node"),
            Self::PodsOf(namespace) => write!(f, " of namespace {namespace}"),
        }
    }
}

/// The progress of a stream. Versions are opaque by contract, and numbers of one sequence in
/// practice.
#[derive(Debug, Default)]
pub(in crate::kube) struct StreamProgress {
    version: AtomicU64,
    failures: AtomicU32,
}

impl StreamProgress {
    /// Everything up to this version is sent.
    pub fn sent(&self, version: Option<&str>) {
        let number = version.and_then(|version| version.parse().ok()).unwrap_or_default();
        self.version.store(number, Ordering::Release);
    }

    /// 0 before the first list, or if versions are no numbers.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn listed(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Failures since the last list.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}
