//! A policy's `spec` in protobuf, as the JSON tree that the API server would write of it.
//!
//! So one decoder decides for both encodings what is understood. Unlike in other objects, nothing
//! is skipped here: a field that this version does not know is in the tree by its number, where the
//! decoder sees it. What cannot be read becomes a value that no field may have.

use serde_json::{Map, Value};

use crate::protobuf::{Field, FieldValue, Fields, MapEntry};

/// The fields of a message: number, name in JSON, and content.
type Message = [(u32, &'static str, Content)];

/// The content of a field.
#[derive(Clone, Copy)]
enum Content {
    Text,
    Number,
    One(&'static Message),
    /// May be a number or a text.
    IntOrString,
    TextList,
    Several(&'static Message),
    /// A map of texts.
    TextMap,
}

use Content::{IntOrString, Number, One, Several, Text, TextList, TextMap};

const SPEC: &Message = &[
    (1, "podSelector", One(SELECTOR)),
    (2, "ingress", Several(INGRESS)),
    (3, "egress", Several(EGRESS)),
    (4, "policyTypes", TextList),
];
const SELECTOR: &Message =
    &[(1, "matchLabels", TextMap), (2, "matchExpressions", Several(REQUIREMENT))];
const REQUIREMENT: &Message = &[(1, "key", Text), (2, "operator", Text), (3, "values", TextList)];
const INGRESS: &Message = &[(1, "ports", Several(PORT)), (2, "from", Several(PEER))];
const EGRESS: &Message = &[(1, "ports", Several(PORT)), (2, "to", Several(PEER))];
const PORT: &Message = &[(1, "protocol", Text), (2, "port", IntOrString), (3, "endPort", Number)];
const PEER: &Message = &[
    (1, "podSelector", One(SELECTOR)),
    (2, "namespaceSelector", One(SELECTOR)),
    (3, "ipBlock", One(BLOCK)),
];
const BLOCK: &Message = &[(1, "cidr", Text), (2, "except", TextList)];

/// The tree of the field that has the `spec`.
pub(super) fn spec(field: &Field<'_>) -> Value {
    single(field, One(SPEC))
}

/// The tree of a message; a text if it cannot be read to its end.
fn message(bytes: &[u8], known: &Message) -> Value {
    let mut tree = Map::new();
    for field in Fields::of(bytes) {
        let field = match field {
            Ok(field) => field,
            Err(error) => return error.to_string().into(),
        };
        let content = known.iter().find(|(number, _, _)| *number == field.number);
        let Some((_, name, content)) = content else {
            tree.insert(unknown(field.number), raw(&field));
            continue;
        };
        match (*content, tree.get_mut(*name)) {
            (TextList | Several(_), before) => {
                let element = match *content {
                    Several(message) => single(&field, One(message)),
                    Text | Number | One(_) | IntOrString | TextList | TextMap => {
                        single(&field, Text)
                    }
                };
                match before {
                    Some(Value::Array(list)) => list.push(element),
                    _ => drop(tree.insert((*name).to_owned(), vec![element].into())),
                }
            }
            (TextMap, before) => {
                let (key, value) = entry(&field);
                match before {
                    Some(Value::Object(map)) => drop(map.insert(key, value)),
                    _ => {
                        let map = Map::from_iter([(key, value)]);
                        tree.insert((*name).to_owned(), map.into());
                    }
                }
            }
            // A second value, which protobuf would merge with the first: nobody writes one, so it
            // counts as unknown.
            (Text | Number | IntOrString | One(_), Some(_)) => {
                tree.insert(unknown(field.number), raw(&field));
            }
            (content, None) => drop(tree.insert((*name).to_owned(), single(&field, content))),
        }
    }
    tree.into()
}

/// A value that is no list and no map. A value of a wrong type becomes an object with an unknown
/// field, so that it is not understood.
fn single(field: &Field<'_>, content: Content) -> Value {
    match (content, field.value) {
        (Text, FieldValue::Bytes(text)) => String::from_utf8_lossy(text).into(),
        (Number, FieldValue::Number(number)) => number.cast_signed().into(),
        (One(known), FieldValue::Bytes(bytes)) => message(bytes, known),
        (IntOrString, FieldValue::Bytes(bytes)) => int_or_string(bytes),
        (
            Text | Number | One(_) | IntOrString | TextList | Several(_) | TextMap,
            FieldValue::Number(_) | FieldValue::Bytes(_) | FieldValue::Fixed(_),
        ) => Map::from_iter([(unknown(field.number), raw(field))]).into(),
    }
}

/// An `IntOrString`. Both of its values are always written, and `type` says which of them counts.
fn int_or_string(bytes: &[u8]) -> Value {
    const FIELDS: &Message = &[(1, "type", Number), (2, "number", Number), (3, "text", Text)];
    let tree = message(bytes, FIELDS);
    let is_known = tree.as_object().is_some_and(|fields| {
        fields.keys().all(|name| FIELDS.iter().any(|(_, known, _)| name == known))
    });
    match tree["type"].as_i64().unwrap_or_default() {
        0 if is_known => tree.get("number").cloned().unwrap_or_else(|| 0.into()),
        1 if is_known => tree.get("text").cloned().unwrap_or_else(|| "".into()),
        _ => tree,
    }
}

/// An entry of a map of texts. If it cannot be read, its value is not a text.
fn entry(field: &Field<'_>) -> (String, Value) {
    let has_others = |bytes| {
        Fields::of(bytes).any(|field| field.is_ok_and(|field| !matches!(field.number, 1 | 2)))
    };
    match field.message::<MapEntry<'_>>() {
        Ok(MapEntry { key, value }) if !field.bytes().is_ok_and(has_others) => {
            (key.to_string(), (*value).into())
        }
        Ok(MapEntry { key, .. }) => (key.to_string(), Map::new().into()),
        Err(error) => (error.to_string(), Map::new().into()),
    }
}

/// The name of an unknown field in the tree.
fn unknown(number: u32) -> String {
    format!("#{number}")
}

fn raw(field: &Field<'_>) -> Value {
    match field.value {
        FieldValue::Number(number) => number.into(),
        FieldValue::Bytes(bytes) | FieldValue::Fixed(bytes) => {
            String::from_utf8_lossy(bytes).into()
        }
    }
}
