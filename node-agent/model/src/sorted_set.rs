//! A set as a sorted slice.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

/// A set that does not change, as its elements in order. Cheap to clone.
///
/// A cluster has tens of thousands of sets with one element; a tree would allocate room for eleven.
/// Each of 150,000 pods refers to two sets, with one word each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SortedSet<T>(Arc<Box<[T]>>);

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements: Vec<T> = elements.into_iter().collect();
        elements.sort();
        elements.dedup();
        Self(Arc::new(elements.into()))
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T> Deref for SortedSet<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> SortedSet<T> {
    pub fn contains<Q: ?Sized + Ord>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.binary_search_by(|other| other.borrow().cmp(element)).is_ok()
    }

    /// Whether other clones of this set exist.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
