//! YAML documents.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Options, budget, options};

use super::{
    DecodeError, DocumentKind, ITEMS_NOT_A_LIST, ListKind, NOT_AN_OBJECT, ObjectPosition, Sink,
};
use crate::RawObject;

pub(super) fn document(place: ObjectPosition, text: &str, sink: &mut Sink<'_>) {
    // A list is decoded item by item. Its kind may come after its items, so look for it first. If
    // it is not found (in `{flow: style}`), the whole document is read at once.
    let known = top_level(text, "kind").zip(top_level(text, "apiVersion"));
    if let Some((kind, api_version)) = known
        && let Ok(DocumentKind::List(list)) = DocumentKind::of(Some(api_version), Some(kind), None)
    {
        let mut item = |index, tree| {
            object(ObjectPosition { item: Some(index), ..place }, tree, Some(&list), sink)
        };
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, limits(), |yaml| {
            ListSeed { item: &mut item }.deserialize(yaml)
        });
        if let Err(error) = read {
            broken(place, &error, sink);
        }
        return;
    }
    match serde_saphyr::from_str_with_options::<Value>(text, limits()) {
        Ok(tree) => object(place, tree, None, sink),
        Err(error) => broken(place, &error, sink),
    }
}

/// No limit on size, since whoever may write to the folder is trusted with it. The limits on depth
/// and aliases stay, since a few lines could otherwise take all the memory.
fn limits() -> Options {
    options! {
        with_snippet: false,
        budget: budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
    }
}

fn broken(place: ObjectPosition, error: &serde_saphyr::Error, sink: &mut Sink<'_>) {
    let within = error.location().and_then(|location| usize::try_from(location.line()).ok());
    let line = place.line.map(|first| first + within.unwrap_or(1).saturating_sub(1));
    let text = error.without_snippet().to_string();
    let text = text.lines().next().unwrap_or_default().to_owned();
    sink(ObjectPosition { line, ..place }, Err(DecodeError::Yaml(text)));
}

/// The plain value of a key at the top level of a document in block style.
fn top_level<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    Some(value.trim_matches(['"', '\'']))
}

/// One object, or a list that was read at once.
fn object(place: ObjectPosition, mut tree: Value, list: Option<&ListKind>, sink: &mut Sink<'_>) {
    let Some(map) = tree.as_object_mut() else {
        return sink(place, Err(NOT_AN_OBJECT));
    };
    let text = |key| map.get(key).and_then(Value::as_str);
    match DocumentKind::of(text("apiVersion"), text("kind"), list) {
        Err(error) => sink(place, Err(error)),
        Ok(DocumentKind::Object(kind)) => {
            if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            sink(place, Ok(RawObject::tree(kind, tree)));
        }
        Ok(DocumentKind::List(kind)) if place.item.is_none() => match map.remove("items") {
            Some(Value::Array(items)) => {
                for (index, item) in items.into_iter().enumerate() {
                    object(ObjectPosition { item: Some(index), ..place }, item, Some(&kind), sink);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => sink(place, Err(ITEMS_NOT_A_LIST)),
        },
        Ok(DocumentKind::List(_) | DocumentKind::Other) => {}
    }
}

/// Reads a list's document, and passes on its items one by one.
struct ListSeed<'i> {
    item: &'i mut dyn FnMut(usize, Value),
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                map.next_value_seed(ItemsSeed { item: &mut *self.item })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Reads `items`.
struct ItemsSeed<'i> {
    item: &'i mut dyn FnMut(usize, Value),
}

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(tree) = items.next_element::<Value>()? {
            (self.item)(index, tree);
            index += 1;
        }
        Ok(())
    }
}
