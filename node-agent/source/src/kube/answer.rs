//! Answers about single objects, beside the watch of their kind.

use std::collections::HashMap;

use tokio::sync::oneshot;

use super::wire::{Json, Page, VersionedMetadata, VersionedObject};

pub(super) struct ObjectAnswer {
    /// An object, or a list of them.
    pub(super) text: String,
    /// Dropped once its objects are sent.
    pub(super) _untaken: Option<oneshot::Sender<()>>,
}

/// Which objects answers have brought, at which version, before the watch does.
///
/// What the watch brings about them until then is older: a deletion may be that of an earlier
/// object of this name.
#[derive(Debug, Default)]
pub(super) struct Ahead(HashMap<(String, String), u64>);

impl Ahead {
    /// The objects in an answer that a watch which is at version `watched` has not brought yet. If
    /// the watch has passed an object's version, it has brought the object, or its deletion.
    pub(super) fn objects(&mut self, answer: &str, watched: Option<&str>) -> Vec<Json> {
        let watched = watched.and_then(number);
        let page: Option<Page> = serde_json::from_str(answer).ok();
        let mut objects = match page.and_then(|page| page.items) {
            Some(items) => items,
            None => serde_json::from_str(answer).into_iter().collect(),
        };
        objects.retain(|object| {
            let Ok(VersionedObject { metadata }) = serde_json::from_str(object.get()) else {
                return false;
            };
            let version = number(&metadata.resource_version);
            let is_news = version > watched;
            if let Some(version) = version.filter(|_| is_news) {
                self.0.insert((metadata.namespace, metadata.name), version);
            }
            is_news
        });
        objects
    }

    /// Whether an answer has brought what the watch brings now, or something newer.
    pub(super) fn has(&mut self, object: &VersionedMetadata) -> bool {
        let name = (object.namespace.clone(), object.name.clone());
        let Some(ahead) = self.0.get(&name).copied() else { return false };
        let version = number(&object.resource_version);
        if version >= Some(ahead) {
            self.0.remove(&name);
        }
        version <= Some(ahead)
    }
}

/// Versions are opaque by contract, and numbers of one sequence in practice.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, version: &str) -> Value {
        json!({ "metadata": { "namespace": "shop", "name": name, "resourceVersion": version } })
    }

    fn metadata(name: &str, version: &str) -> VersionedMetadata {
        let versioned: VersionedObject = serde_json::from_value(policy(name, version)).unwrap();
        versioned.metadata
    }

    #[test]
    fn of_a_list_only_what_the_watch_has_not_brought_counts() {
        let mut ahead = Ahead::default();
        let items = [policy("known", "90"), policy("new", "101")];
        let list = json!({ "metadata": { "resourceVersion": "200" }, "items": items });
        let objects = ahead.objects(&list.to_string(), Some("100"));
        assert_eq!(objects.len(), 1);
        assert!(objects[0].get().contains("new"));
        assert_eq!(ahead.objects("no JSON", Some("100")).len(), 0);
    }

    #[test]
    fn what_the_watch_brings_late_is_older_until_it_has_caught_up() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.objects(&policy("web", "105").to_string(), Some("100")).len(), 1);
        assert!(!ahead.has(&metadata("db", "101")), "no answer was about it");
        assert!(ahead.has(&metadata("web", "101")), "the end of an earlier one");
        assert!(ahead.has(&metadata("web", "105")), "the same");
        assert!(!ahead.has(&metadata("web", "106")));
        ahead.objects(&policy("web", "107").to_string(), Some("106"));
        assert!(!ahead.has(&metadata("web", "110")), "the watch has passed it");
        assert!(!ahead.has(&metadata("web", "107")));
    }
}
