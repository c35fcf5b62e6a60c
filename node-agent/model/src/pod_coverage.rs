//! Which pods of the cluster are known.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Which pods of the cluster the sources show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodCoverage {
    /// All.
    #[default]
    All,
    /// This node's, and those of some namespaces.
    Some(CoveredNamespaces),
}

/// The namespaces whose pods are requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoveredNamespaces {
    /// Their pods are all known.
    pub complete: BTreeSet<Arc<str>>,
    /// Their pods were asked for in vain, and no list of them is known. What is permitted to such
    /// pods is dropped.
    pub failed: BTreeSet<Arc<str>>,
}

impl PodCoverage {
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}
