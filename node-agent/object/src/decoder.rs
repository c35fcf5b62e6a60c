//! What decoding an object needs in addition to the object.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::Arc;

use denizen_model::{Labels, NamedPort, Requirement, Selector, SortedSet};
use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::TextMap;

/// Decodes objects for one node. It keeps one copy of the texts, labels and ports that many pods
/// have in common: a cluster has 150,000 pods.
#[derive(Debug)]
pub struct Decoder {
    pub(super) node_name: Arc<str>,
    /// Whether the Nodes of other nodes are decoded too.
    pub(super) other_nodes: bool,
    /// Whether the time at which deleted pods end is decoded.
    pub(super) ends: bool,
    /// The random key of the objects' digests: nobody can choose two objects that have the same
    /// digest.
    pub(super) digests: RandomState,
    texts: Interner<Arc<str>>,
    labels: Interner<Labels>,
    ports: Interner<SortedSet<NamedPort>>,
    addresses: Interner<SortedSet<IpAddr>>,
    requirements: Interner<SortedSet<Requirement>>,
}

impl Decoder {
    pub fn new(node_name: Arc<str>) -> Self {
        Self {
            node_name,
            other_nodes: false,
            ends: false,
            digests: RandomState::default(),
            texts: Interner::default(),
            labels: Interner::default(),
            ports: Interner::default(),
            addresses: Interner::default(),
            requirements: Interner::default(),
        }
    }

    /// Whether to decode the Nodes of other nodes too.
    pub fn with_other_nodes(self, other_nodes: bool) -> Self {
        Self { other_nodes, ..self }
    }

    /// Whether to decode the time at which deleted pods end. If so, their deletion is a change too.
    pub fn with_ends(self, ends: bool) -> Self {
        Self { ends, ..self }
    }

    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The shared copy of a text.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.share(text, |copy| **copy == *text, || text.into())
    }

    /// The shared copy of these labels. All pods of one Deployment have the same.
    pub(super) fn labels(&mut self, written: Option<&TextMap<'_>>) -> Labels {
        let Some(written) = written else { return Labels::default() };
        let Self { texts, labels, .. } = self;
        let is_same = |copy: &Labels| copy.iter().eq(written.iter());
        labels.share(written, is_same, || {
            let mut shared = |text: &str| texts.share(text, |copy| **copy == *text, || text.into());
            written.iter().map(|(key, value)| (shared(key), shared(value))).collect()
        })
    }

    /// The shared copy of a pod's ports.
    pub(super) fn ports(&mut self, ports: Vec<NamedPort>) -> SortedSet<NamedPort> {
        self.ports.share_set(ports)
    }

    /// The shared copy of a node's addresses, which all its pods name.
    pub(super) fn addresses(&mut self, addresses: Vec<IpAddr>) -> SortedSet<IpAddr> {
        self.addresses.share_set(addresses)
    }

    /// Replaces the requirements of a selector by the shared copy.
    pub(super) fn share_selector(&mut self, selector: &mut Selector) {
        let requirements = &selector.requirements;
        let shared = self.requirements.share(
            requirements,
            |copy| copy == requirements,
            || requirements.clone(),
        );
        selector.requirements = shared;
    }
}

/// A value whose clones share one copy in memory.
trait Shared: Clone + Hash {
    fn has_copies(&self) -> bool;
}

impl<T: ?Sized + Hash> Shared for Arc<T> {
    fn has_copies(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl<T: Clone + Hash> Shared for SortedSet<T> {
    fn has_copies(&self) -> bool {
        self.is_shared()
    }
}

impl Shared for Labels {
    fn has_copies(&self) -> bool {
        self.is_shared()
    }
}

/// One copy of each value.
#[derive(Debug)]
struct Interner<T> {
    hasher: RandomState,
    known: HashTable<T>,
    /// At this many values, those that nobody outside the interner has are dropped.
    limit: usize,
}

/// Below this many values, none is dropped.
const FEW: usize = 1024;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), known: HashTable::new(), limit: FEW }
    }
}

impl<T: Clone + Ord + Hash> Interner<SortedSet<T>> {
    /// The shared copy of the set of these elements.
    fn share_set(&mut self, mut elements: Vec<T>) -> SortedSet<T> {
        elements.sort();
        elements.dedup();
        let is_same = |copy: &SortedSet<T>| **copy == *elements;
        match self.find(&*elements, is_same) {
            Some(copy) => copy,
            None => self.insert(elements.into_iter().collect()),
        }
    }
}

impl<T: Shared> Interner<T> {
    /// The shared copy of the value that is `written`; a new copy if no known value `is_same`. A
    /// value and its written form have the same hash.
    fn share<W: ?Sized + Hash>(
        &mut self,
        written: &W,
        is_same: impl Fn(&T) -> bool,
        copied: impl FnOnce() -> T,
    ) -> T {
        self.find(written, is_same).unwrap_or_else(|| self.insert(copied()))
    }

    fn find<W: ?Sized + Hash>(&self, written: &W, is_same: impl Fn(&T) -> bool) -> Option<T> {
        self.known.find(self.hasher.hash_one(written), is_same).cloned()
    }

    fn insert(&mut self, copy: T) -> T {
        if self.known.len() >= self.limit {
            self.known.retain(|copy| copy.has_copies());
            self.limit = FEW.max(self.known.len() * 2);
        }
        let hash = self.hasher.hash_one(&copy);
        self.known.insert_unique(hash, copy.clone(), |copy| self.hasher.hash_one(copy));
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(value: &str) -> TextMap<'_> {
        TextMap::from_iter([("app", value)])
    }

    #[test]
    fn equal_values_are_one_copy_and_unused_ones_are_dropped() {
        let mut decoder = Decoder::new("n".into());
        let kept = decoder.labels(Some(&app("web")));
        assert!(Arc::ptr_eq(&decoder.text("app"), &decoder.text("app")));
        for number in 0..20 * FEW {
            let value = number.to_string();
            decoder.labels(Some(&app(&value)));
        }
        assert!(decoder.texts.known.len() <= 2 * FEW, "{}", decoder.texts.known.len());
        assert!(decoder.labels.known.len() <= 2 * FEW, "{}", decoder.labels.known.len());
        assert_eq!(decoder.labels(Some(&app("web"))), kept);
        assert!(kept.is_shared());
        let address = || vec![IpAddr::from([10, 0, 0, 1])];
        assert!(decoder.addresses(address()).is_shared());
        assert_eq!(
            decoder.addresses([address(), address()].concat()),
            address().into_iter().collect()
        );
        assert_eq!(decoder.addresses.known.len(), 1);
    }
}
