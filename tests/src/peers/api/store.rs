//! Objects and their history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use bytes::Bytes;
use denizen_fixture::protobuf;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::kinds::Resource;
use super::select::Selector;

/// An object at one version. What clients get is encoded only once.
#[derive(Debug)]
pub struct Stored {
    /// The object.
    pub value: Value,
    /// The object as JSON.
    pub json: Bytes,
    /// The object in protobuf, without its envelope; `None` if its kind has no encoding here.
    pub protobuf: Option<Bytes>,
}

/// Names an object: its resource, namespace (empty where there is none) and name.
pub type StoredKey = (Resource, String, String);

/// One change in the history.
#[derive(Debug, Clone)]
struct StoreChange {
    version: u64,
    resource: Resource,
    before: Option<Arc<Stored>>,
    /// For a deleted object its last state, with the version of the deletion.
    after: Arc<Stored>,
    deleted: bool,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: &'static str,
    /// The object.
    pub object: Arc<Stored>,
}

#[derive(Debug, Default)]
struct StoreContent {
    version: u64,
    objects: BTreeMap<StoredKey, Arc<Stored>>,
    history: Vec<StoreChange>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    /// Lists whose further pages may still be asked for.
    snapshots: BTreeMap<(Resource, u64), Vec<Arc<Stored>>>,
}

/// All objects of the server, with their history.
#[derive(Debug)]
pub struct Store {
    content: Mutex<StoreContent>,
    version: watch::Sender<u64>,
}

/// The history does not go back as far as a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl Default for Store {
    fn default() -> Self {
        let content = StoreContent { version: 1, ..StoreContent::default() };
        Self { content: Mutex::new(content), version: watch::Sender::new(1) }
    }
}

impl Store {
    /// Creates or replaces an object, with a new version; returns what is stored.
    pub fn put(&self, value: Value) -> Result<Arc<Stored>> {
        self.put_in(&mut self.content(), value)
    }

    /// Replaces the object with the same UID; `None` if it is gone.
    pub fn update(&self, mut value: Value) -> Result<Option<Arc<Stored>>> {
        let key = key(Resource::of(&value)?, &mut value);
        let mut content = self.content();
        let before = content.objects.get(&key).map(|before| &before.value["metadata"]["uid"]);
        match before == Some(&value["metadata"]["uid"]) {
            true => self.put_in(&mut content, value).map(Some),
            false => Ok(None),
        }
    }

    fn put_in(&self, content: &mut StoreContent, mut value: Value) -> Result<Arc<Stored>> {
        let resource = Resource::of(&value)?;
        content.version += 1;
        let version = content.version;
        let key = key(resource, &mut value);
        let before = content.objects.get(&key).cloned();
        let metadata = &mut value["metadata"];
        metadata["resourceVersion"] = version.to_string().into();
        let inherited =
            |field: &str| before.as_ref().map(|before| before.value["metadata"][field].clone());
        if metadata["uid"].is_null() {
            metadata["uid"] = inherited("uid")
                .unwrap_or_else(|| format!("00000000-0000-0000-0000-{version:012}").into());
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] =
                inherited("creationTimestamp").unwrap_or_else(|| "2026-01-01T00:00:00Z".into());
        }
        // As with a real server: only a deletion sets the timestamp, and nothing removes it.
        if metadata["deletionTimestamp"].is_null()
            && let Some(before) = before.as_ref().map(|before| &before.value["metadata"])
            && !before["deletionTimestamp"].is_null()
        {
            metadata["deletionTimestamp"] = before["deletionTimestamp"].clone();
        }
        let after = Arc::new(Stored::new(value));
        content.objects.insert(key, after.clone());
        content.history.push(StoreChange {
            version,
            resource,
            before,
            after: after.clone(),
            deleted: false,
        });
        self.version.send_replace(version);
        Ok(after)
    }

    /// Deletes an object; returns its last state.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let mut content = self.content();
        let before = content.objects.remove(&(resource, namespace.to_owned(), name.to_owned()))?;
        content.version += 1;
        let version = content.version;
        let mut value = before.value.clone();
        value["metadata"]["resourceVersion"] = version.to_string().into();
        let after = Arc::new(Stored::new(value));
        content.history.push(StoreChange {
            version,
            resource,
            before: Some(before),
            after: after.clone(),
            deleted: true,
        });
        self.version.send_replace(version);
        Some(after)
    }

    /// Deletes all objects in a namespace.
    pub fn empty(&self, namespace: &str) {
        let within: Vec<StoredKey> =
            self.content().objects.keys().filter(|key| key.1 == namespace).cloned().collect();
        within.into_iter().for_each(|(resource, namespace, name)| {
            self.delete(resource, &namespace, &name);
        });
    }

    /// One object.
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let key = (resource, namespace.to_owned(), name.to_owned());
        self.content().objects.get(&key).cloned()
    }

    /// Every object of one resource.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let content = self.content();
        let of_resource = content.objects.iter().filter(|(key, _)| key.0.plural == plural);
        of_resource.map(|(_, object)| object.value.clone()).collect()
    }

    /// All selected objects, and the version of this list.
    pub fn list(&self, resource: Resource, selector: &Selector) -> (Vec<Arc<Stored>>, u64) {
        let content = self.content();
        let of_resource = content.objects.iter().filter(|(key, _)| key.0 == resource);
        let objects = of_resource.map(|(_, object)| object);
        let selected = objects.filter(|object| selector.selects(&object.value));
        (selected.cloned().collect(), content.version)
    }

    /// Keeps a list for its further pages.
    pub fn keep(&self, resource: Resource, version: u64, list: Vec<Arc<Stored>>) {
        self.content().snapshots.insert((resource, version), list);
    }

    /// A list that was kept.
    pub fn kept(&self, resource: Resource, version: u64) -> Option<Vec<Arc<Stored>>> {
        self.content().snapshots.get(&(resource, version)).cloned()
    }

    /// The events after version `since` for selected objects, and the version that they lead to.
    pub fn events(
        &self,
        resource: Resource,
        selector: &Selector,
        since: u64,
    ) -> Result<(Vec<WatchEvent>, u64), Gone> {
        let content = self.content();
        if since < content.forgotten {
            return Err(Gone);
        }
        let from = content.history.partition_point(|change| change.version <= since);
        let changes = content.history[from..].iter();
        let events = changes.filter(|change| change.resource == resource).filter_map(|change| {
            let was = change.before.as_ref().is_some_and(|before| selector.selects(&before.value));
            let is = !change.deleted && selector.selects(&change.after.value);
            let kind = match (was, is) {
                (false, false) => return None,
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
            };
            let object = change.after.clone();
            Some(WatchEvent { kind, object })
        });
        Ok((events.collect(), content.version))
    }

    /// Forgets all history, and the lists that were kept for further pages: as etcd's compaction.
    pub fn compact(&self) {
        let mut content = self.content();
        content.forgotten = content.version;
        content.history.clear();
        content.snapshots.clear();
    }

    /// Notifies of changes by the newest version.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn content(&self) -> MutexGuard<'_, StoreContent> {
        self.content.lock().expect("nobody panics with it")
    }
}

impl Stored {
    fn new(value: Value) -> Self {
        let json = value.to_string().into();
        let kind = value["kind"].as_str().filter(|kind| protobuf::has(kind));
        let protobuf = kind.map(|kind| protobuf::object(kind, &value).into());
        Self { value, json, protobuf }
    }

    /// The object as it appears in a list of metadata.
    pub fn metadata_alone(&self) -> Self {
        Self::new(json!({ "kind": self.value["kind"], "metadata": self.value["metadata"] }))
    }
}

/// The key of an object. Writes the default namespace into an object that needs one and lacks it.
fn key(resource: Resource, value: &mut Value) -> StoredKey {
    let metadata = &mut value["metadata"];
    if resource.namespaced && metadata["namespace"].is_null() {
        metadata["namespace"] = json!("default");
    }
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    (resource, text("namespace"), text("name"))
}
