//! The parts of an answer that are decoded before its objects.

use serde::Deserialize;
use serde_json::value::RawValue;

/// An object's JSON text, which is not kept: the model has the object.
pub(super) type Json = Box<RawValue>;

/// The annotation of the bookmark that ends a streamed list (KEP-3157).
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

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

/// An object's resource version, and its name.
#[derive(Deserialize)]
pub(super) struct VersionedObject {
    pub(super) metadata: VersionedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionedMetadata {
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
}
