//! Maps of texts, such as labels.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::BorrowedText;
use crate::protobuf::{Field, MapEntry, ProtobufError};

/// A map of texts, sorted by key. Of two entries with one key, the last counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TextMap<'a>(Vec<(BorrowedText<'a>, BorrowedText<'a>)>);

impl<'a> TextMap<'a> {
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The API server writes entries sorted by key, so a new entry usually belongs at the end.
    fn insert(&mut self, key: BorrowedText<'a>, value: BorrowedText<'a>) {
        if self.0.last().is_none_or(|(last, _)| *last < key) {
            return self.0.push((key, value));
        }
        match self.0.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Adds the entry in a field.
    pub(super) fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        let MapEntry { key, value } = field.message()?;
        self.insert(key, value);
        Ok(())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for TextMap<'a> {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(entries: T) -> Self {
        let mut map = Self::default();
        entries.into_iter().for_each(|(key, value)| map.insert(key.into(), value.into()));
        map
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for TextMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = TextMap<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut map = TextMap::default();
                while let Some((key, value)) = entries.next_entry()? {
                    map.insert(key, value);
                }
                Ok(map)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_the_last_of_a_key_counts() {
        let json = r#"{ "b": "1", "a": "2", "c": "3", "a": "4", "c": "5" }"#;
        let map: TextMap<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", "4"), ("b", "1"), ("c", "5")]);
        assert_eq!((map.get("b"), map.get("d")), (Some("1"), None));
        assert_eq!(map, [("c", "5"), ("b", "1"), ("a", "4")].into_iter().collect());
        let error = serde_json::from_str::<TextMap<'_>>("[]").unwrap_err().to_string();
        assert!(error.contains("expected a map"), "{error}");
    }
}
