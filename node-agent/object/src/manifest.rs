//! Manifests: converts a file's text to the objects in it, one at a time. Pure.
//!
//! A YAML object becomes the JSON tree that kubectl would send. A list is decoded item by item, so
//! that only one of a list's 50,000 objects is in memory at a time.

mod text;
mod yaml;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::{ObjectKind, RawObject};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON documents, one after the other.
    Json,
    /// YAML documents, of which any may be JSON.
    Yaml,
}

/// The position of an object in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectPosition {
    /// The document, from 1; empty ones are not counted.
    pub document: usize,
    /// The item, from 0, if the document is a list.
    pub item: Option<usize>,
    /// The first line of the document, or the broken line, if it is known.
    pub line: Option<usize>,
}

/// Why a document or item of a list could not be used.
#[derive(Debug, Error)]
pub enum DecodeError {
    #[error("not YAML: {0}")]
    Yaml(String),
    /// The document is not JSON. The rest of the file cannot be separated from it.
    #[error("not JSON, and nothing after it is used: {0}")]
    Json(serde_json::Error),
    /// The document is not an object of the Kubernetes API.
    #[error("not an object of the Kubernetes API: {0}")]
    NotAnObject(&'static str),
}

/// Receives the objects of a file. Called once for every object, in the order of the file.
pub type Sink<'s> = dyn FnMut(ObjectPosition, Result<RawObject<'_>, DecodeError>) + 's;

/// The fields that say an object's kind, and a list's items.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestHead<'a> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

pub fn objects(format: Format, text: &str, sink: &mut Sink<'_>) {
    match format {
        Format::Json => json_documents(text, sink),
        Format::Yaml => {
            for document in text::documents(text) {
                let place = ObjectPosition {
                    document: document.number,
                    item: None,
                    line: Some(document.line),
                };
                // JSON is valid YAML, but the JSON parser is ten times faster.
                let json = document.text.strip_prefix("---").unwrap_or(document.text).trim();
                match json.starts_with('{').then(|| serde_json::from_str::<&RawValue>(json)) {
                    Some(Ok(raw)) => json_object(place, raw.get(), None, sink),
                    Some(Err(_)) | None => yaml::document(place, document.text, sink),
                }
            }
        }
    }
}

fn json_documents(text: &str, sink: &mut Sink<'_>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    for (index, document) in documents.enumerate() {
        let place = ObjectPosition { document: index + 1, item: None, line: None };
        match document {
            Ok(raw) => json_object(place, raw.get(), None, sink),
            // The iterator ends after an error.
            Err(error) => {
                let line = Some(error.line()).filter(|line| *line > 0);
                sink(ObjectPosition { line, ..place }, Err(DecodeError::Json(error)));
            }
        }
    }
}

/// One object, or a list of them. `list` is the kind of list that it was found in.
fn json_object(place: ObjectPosition, json: &str, list: Option<&ListKind>, sink: &mut Sink<'_>) {
    let Ok(head) = serde_json::from_str::<ManifestHead<'_>>(json) else {
        return sink(place, Err(NOT_AN_OBJECT));
    };
    let kinds = (head.api_version.as_deref(), head.kind.as_deref());
    match (DocumentKind::of(kinds.0, kinds.1, list), head.items) {
        (Err(error), _) => sink(place, Err(error)),
        (Ok(DocumentKind::Object(kind)), _) => sink(place, Ok(RawObject::json(kind, json))),
        (Ok(DocumentKind::List(kind)), Some(items)) if place.item.is_none() => {
            let Ok(items) = serde_json::from_str::<Option<Vec<&RawValue>>>(items.get()) else {
                return sink(place, Err(ITEMS_NOT_A_LIST));
            };
            for (index, item) in items.unwrap_or_default().into_iter().enumerate() {
                let place = ObjectPosition { item: Some(index), ..place };
                json_object(place, item.get(), Some(&kind), sink);
            }
        }
        (Ok(DocumentKind::List(_) | DocumentKind::Other), _) => {}
    }
}

const NOT_AN_OBJECT: DecodeError =
    DecodeError::NotAnObject("expected a mapping with apiVersion and kind");
const ITEMS_NOT_A_LIST: DecodeError =
    DecodeError::NotAnObject("the items of a list are not a list");

/// What an object is, by its `apiVersion` and `kind`.
enum DocumentKind {
    Object(ObjectKind),
    List(ListKind),
    /// Another object of the API, which is ignored.
    Other,
}

/// The kind of a list's items if they do not say it themselves. In the API's own lists, such as a
/// `ServiceList`, they do not.
struct ListKind {
    api_version: String,
    item: Option<String>,
}

impl DocumentKind {
    fn of(
        api_version: Option<&str>,
        kind: Option<&str>,
        list: Option<&ListKind>,
    ) -> Result<Self, DecodeError> {
        let item = list.and_then(|list| Some((list.api_version.as_str(), list.item.as_deref()?)));
        let (api_version, kind) = match (api_version, kind, item) {
            (Some(api_version), Some(kind), _) => (api_version, kind),
            (None, None, Some(item)) => item,
            (_, _, _) => return Err(NOT_AN_OBJECT),
        };
        match (ObjectKind::of(api_version, kind), kind.strip_suffix("List")) {
            (Some(kind), _) => Ok(Self::Object(kind)),
            (None, Some(item))
                if item.is_empty() || ObjectKind::of(api_version, item).is_some() =>
            {
                let item = (!item.is_empty()).then(|| item.to_owned());
                Ok(Self::List(ListKind { api_version: api_version.to_owned(), item }))
            }
            (None, _) => {
                tracing::debug!(api_version, kind, "object of another kind ignored");
                Ok(Self::Other)
            }
        }
    }
}
