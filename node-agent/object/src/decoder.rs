//! What decoding an object needs in addition to the object.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use denizen_model::{Labels, NamedPort};

/// Decodes objects for one node. It keeps one copy of the texts, labels and ports that many pods
/// have in common: a cluster has 150,000 pods.
#[derive(Debug)]
pub struct Decoder {
    pub(super) node_name: Arc<str>,
    /// The Nodes of others are decoded too.
    pub(super) other_nodes: bool,
    /// When pods end is decoded.
    pub(super) ends: bool,
    texts: Interner<Arc<str>>,
    labels: Interner<Labels>,
    ports: Interner<Arc<[NamedPort]>>,
    addresses: Interner<Arc<[IpAddr]>>,
}

impl Decoder {
    pub fn new(node_name: Arc<str>) -> Self {
        Self {
            node_name,
            other_nodes: false,
            ends: false,
            texts: Interner::default(),
            labels: Interner::default(),
            ports: Interner::default(),
            addresses: Interner::default(),
        }
    }

    /// Whether to decode the Nodes of others too.
    pub fn with_other_nodes(self, other_nodes: bool) -> Self {
        Self { other_nodes, ..self }
    }

    /// Whether to decode when pods that are deleted end. Then their deletion is a change too.
    pub fn with_ends(self, ends: bool) -> Self {
        Self { ends, ..self }
    }

    /// The node's name.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The shared copy of a text.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.known.get(text) {
            return known.clone();
        }
        self.texts.share(text.into(), |copy| Arc::strong_count(copy) > 1)
    }

    pub(super) fn labels<'t>(
        &mut self,
        labels: impl Iterator<Item = (&'t str, &'t str)>,
    ) -> Labels {
        let labels = labels.map(|(key, value)| (self.text(key), self.text(value))).collect();
        self.labels.share(labels, Labels::is_shared)
    }

    /// The shared copy of a pod's ports.
    pub(super) fn ports(&mut self, ports: &[NamedPort]) -> Arc<[NamedPort]> {
        if let Some(known) = self.ports.known.get(ports) {
            return known.clone();
        }
        self.ports.share(ports.into(), |copy| Arc::strong_count(copy) > 1)
    }

    /// The shared copy of a node's addresses, which all its pods name.
    pub(super) fn addresses(&mut self, addresses: &[IpAddr]) -> Arc<[IpAddr]> {
        if let Some(known) = self.addresses.known.get(addresses) {
            return known.clone();
        }
        self.addresses.share(addresses.into(), |copy| Arc::strong_count(copy) > 1)
    }
}

/// One copy of each value.
#[derive(Debug)]
struct Interner<T> {
    known: HashSet<T>,
    /// With so many values, those that nobody else has are dropped.
    limit: usize,
}

/// Below this many values, none is dropped.
const FEW: usize = 1024;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), limit: FEW }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    /// The copy that equals `value`. Values for which `is_used` is false may be dropped.
    fn share(&mut self, value: T, is_used: impl Fn(&T) -> bool) -> T {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            self.known.retain(is_used);
            self.limit = FEW.max(self.known.len() * 2);
        }
        self.known.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_copy_and_unused_ones_are_dropped() {
        let mut decoder = Decoder::new("n".into());
        let kept = decoder.labels([("app", "web")].into_iter());
        assert!(Arc::ptr_eq(&decoder.text("app"), &decoder.text("app")));
        for number in 0..20 * FEW {
            let value = number.to_string();
            decoder.labels([("app", value.as_str())].into_iter());
        }
        assert!(decoder.texts.known.len() <= 2 * FEW, "{}", decoder.texts.known.len());
        assert!(decoder.labels.known.len() <= 2 * FEW, "{}", decoder.labels.known.len());
        assert_eq!(decoder.labels([("app", "web")].into_iter()), kept);
        assert!(kept.is_shared());
    }
}
