//! Labels, and selectors of them (`metav1.LabelSelector`).

use std::sync::Arc;

use super::sorted_set::SortedSet;

/// The labels of an object, sorted by key. Cheap to clone, and one word: a cluster has 150,000
/// pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<Box<[Label]>>);

type Label = (Arc<str>, Arc<str>);

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    /// Of two labels with one key, the last counts.
    fn from_iter<T: IntoIterator<Item = (K, V)>>(labels: T) -> Self {
        let labels = labels.into_iter().map(|(key, value)| (key.into(), value.into()));
        let sorted: std::collections::BTreeMap<Arc<str>, Arc<str>> = labels.collect();
        Self(Arc::new(sorted.into_iter().collect()))
    }
}

impl Labels {
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether other clones of these labels exist.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// A label selector. Without requirements it selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Selector {
    /// All of them must hold. Selectors that say the same are equal.
    pub requirements: SortedSet<Requirement>,
}

/// What a selector requires of one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub key: Arc<str>,
    pub operator: Operator,
}

/// `matchExpressions[].operator`, with its values. A `matchLabels` entry is `In` with one value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is there and has one of these values.
    In(SortedSet<Arc<str>>),
    /// The label has none of these values, or is not there.
    NotIn(SortedSet<Arc<str>>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn selects(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(values: &[&str]) -> SortedSet<Arc<str>> {
        values.iter().map(|value| (*value).into()).collect()
    }

    #[test]
    fn selectors_by_operator() {
        let cases = [
            (Operator::In(values(&["a", "b"])), [true, false, false]),
            (Operator::NotIn(values(&["a", "b"])), [false, true, true]),
            (Operator::Exists, [true, true, false]),
            (Operator::DoesNotExist, [false, false, true]),
        ];
        let labels = [vec![("app", "a")], vec![("app", "c")], vec![("other", "a")]];
        for (operator, expected) in cases {
            let requirement = Requirement { key: "app".into(), operator };
            let selector = Selector { requirements: [requirement].into() };
            let selected =
                labels.clone().map(|labels| selector.selects(&Labels::from_iter(labels)));
            assert_eq!(selected, expected, "{selector:?}");
        }
    }

    #[test]
    fn every_requirement_must_hold_and_none_selects_everything() {
        let is = |key: &str, value| Requirement {
            key: key.into(),
            operator: Operator::In(values(&[value])),
        };
        let both = Selector { requirements: [is("a", "1"), is("b", "2")].into() };
        assert!(both.selects(&Labels::from_iter([("a", "1"), ("b", "2"), ("c", "3")])));
        assert!(!both.selects(&Labels::from_iter([("a", "1"), ("b", "3")])));
        assert!(Selector::default().selects(&Labels::default()));
    }
}
