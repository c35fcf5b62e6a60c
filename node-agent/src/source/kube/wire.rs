//! What is read of an answer before its objects are.

use serde::Deserialize;
use serde_json::value::RawValue;

/// An object, as it was served. The model's own copy is the only one that is kept.
pub(super) type Json = Box<RawValue>;

/// The annotation of the bookmark that ends a list as a stream (KEP-3157).
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) metadata: PageMetadata,
    pub(super) items: Option<Vec<Json>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// Of an object, where in the history it stands.
#[derive(Deserialize)]
pub(super) struct Versioned {
    pub(super) metadata: VersionedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionedMetadata {
    pub(super) resource_version: String,
}
