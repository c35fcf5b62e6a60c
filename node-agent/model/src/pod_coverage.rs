//! Which pods of the cluster are known.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Which pods of the cluster the sources show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodCoverage {
    #[default]
    All,
    /// This node's, and those of some namespaces.
    Some(CoveredNamespaces),
}

/// The namespaces whose pods are requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoveredNamespaces {
    /// Namespaces all of whose pods are known.
    pub complete: BTreeSet<Arc<str>>,
    /// Namespaces whose pods could not be listed, and of which no earlier list is known.
    /// Connections that policies permit to or from these pods are dropped.
    pub failed: BTreeSet<Arc<str>>,
}

impl PodCoverage {
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}
