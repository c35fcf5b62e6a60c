//! Answers to reads of single objects, which may be newer or older than the watch of their kind.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use tokio::sync::oneshot;

use super::envelope::{Encoding, Object, ObjectMetadata, objects};

#[derive(Debug)]
pub(super) struct ObjectAnswer {
    pub(super) encoding: Encoding,
    /// An object, or a list of them.
    pub(super) body: Vec<u8>,
    /// Dropped once its objects are sent.
    pub(super) _untaken: Option<oneshot::Sender<()>>,
}

/// The versions of the objects that answers have brought before the watch did.
///
/// Until the watch reaches that version, what a list or the watch brings about the object is older:
/// a deletion may be that of an earlier object of this name, and a list may be of a time before the
/// answer.
#[derive(Debug, Default)]
pub(super) struct AnsweredVersions {
    ahead: HashMap<(String, String), u64>,
    /// The versions of the objects in the list that is arriving: such a version may be newer than
    /// an answer that was on its way. The key is a hash of namespace and name, since a list may
    /// have very many objects.
    listed: HashMap<u64, u64>,
    hasher: RandomState,
}

/// What an answer says of an object.
#[derive(Debug)]
pub(super) enum Answered<'a> {
    /// The newest known state.
    News(Object<'a>),
    /// A state that is not newer than what the list has brought.
    Listed(ObjectMetadata<'a>),
}

impl AnsweredVersions {
    /// The objects in an answer that a watch which is at version `watched` has not brought yet. If
    /// the watch has passed an object's version, it has brought the object, or its deletion.
    pub(super) fn objects<'a>(
        &mut self,
        answer: &'a ObjectAnswer,
        watched: Option<&str>,
    ) -> Vec<Answered<'a>> {
        let watched = watched.and_then(number);
        let mut news = Vec::new();
        for object in objects(answer.encoding, &answer.body).unwrap_or_default() {
            let Some(metadata) = object.metadata() else { continue };
            let version = number(&metadata.resource_version);
            if version <= watched {
                continue;
            }
            let listed = self.listed.get(&self.listed_key(&metadata)).copied();
            if version <= listed {
                news.push(Answered::Listed(metadata));
                continue;
            }
            if let Some(version) = version {
                self.ahead.insert(name(&metadata), version);
            }
            news.push(Answered::News(object));
        }
        news
    }

    /// A list begins.
    pub(super) fn forget_list(&mut self) {
        self.listed = HashMap::new();
    }

    /// Notes the version of an object in a list, in case an answer about it is on its way.
    pub(super) fn note_listed(&mut self, object: Object<'_>) {
        if let Some(metadata) = object.metadata()
            && let Some(version) = number(&metadata.resource_version)
        {
            self.listed.insert(self.listed_key(&metadata), version);
        }
    }

    fn listed_key(&self, object: &ObjectMetadata<'_>) -> u64 {
        self.hasher.hash_one((&*object.namespace, &*object.name))
    }

    /// Whether an answer has brought what the watch brings now, or something newer.
    pub(super) fn has(&mut self, object: &ObjectMetadata<'_>) -> bool {
        let name = name(object);
        let Some(ahead) = self.ahead.get(&name).copied() else { return false };
        let version = number(&object.resource_version);
        if version >= Some(ahead) {
            self.ahead.remove(&name);
        }
        version <= Some(ahead)
    }

    /// The name of an object in a list, if an answer has brought something newer.
    pub(super) fn newer<'a>(&self, object: Object<'a>) -> Option<ObjectMetadata<'a>> {
        if self.ahead.is_empty() {
            return None;
        }
        let metadata = object.metadata()?;
        let ahead = self.ahead.get(&name(&metadata)).copied();
        (ahead > number(&metadata.resource_version)).then_some(metadata)
    }

    /// A list of this version is complete. Returns the names of the objects of which answers have
    /// brought newer states, and forgets all other objects.
    pub(super) fn newer_than(&mut self, version: &str) -> impl Iterator<Item = &(String, String)> {
        self.forget_list();
        let listed = number(version);
        self.ahead.retain(|_, ahead| Some(*ahead) > listed);
        self.ahead.keys()
    }
}

/// Whether a list has an object that a watch which is at version `watched` has not brought yet.
pub(super) fn has_newer(encoding: Encoding, list: &[u8], watched: Option<&str>) -> bool {
    let watched = watched.and_then(number);
    let objects = objects(encoding, list).unwrap_or_default();
    objects.iter().any(|object| {
        let metadata = object.metadata();
        metadata.and_then(|metadata| number(&metadata.resource_version)) > watched
    })
}

fn name(metadata: &ObjectMetadata<'_>) -> (String, String) {
    (metadata.namespace.to_string(), metadata.name.to_string())
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

    fn answer(object: &Value) -> ObjectAnswer {
        let body = object.to_string().into();
        ObjectAnswer { encoding: Encoding::Json, body, _untaken: None }
    }

    fn has(ahead: &mut AnsweredVersions, name: &str, version: &str) -> bool {
        let object = policy(name, version).to_string();
        ahead.has(&Object::Json(&object).metadata().unwrap())
    }

    #[test]
    fn of_a_list_only_what_the_watch_has_not_brought_counts() {
        let mut ahead = AnsweredVersions::default();
        let items = [policy("known", "90"), policy("new", "101")];
        let list = answer(&json!({ "metadata": { "resourceVersion": "200" }, "items": items }));
        let objects = ahead.objects(&list, Some("100"));
        let [Answered::News(object)] = &objects[..] else { panic!("{objects:?}") };
        assert_eq!(&*object.metadata().unwrap().name, "new");
        assert_eq!(ahead.objects(&answer(&json!("no object")), Some("100")).len(), 0);
        let is_new =
            [None, Some("100"), Some("101")].map(|at| has_newer(list.encoding, &list.body, at));
        assert_eq!(is_new, [true, true, false]);
    }

    #[test]
    fn what_the_watch_brings_late_is_older_until_it_has_caught_up() {
        let mut ahead = AnsweredVersions::default();
        assert_eq!(ahead.objects(&answer(&policy("web", "105")), Some("100")).len(), 1);
        assert!(!has(&mut ahead, "db", "101"), "no answer was about it");
        assert!(has(&mut ahead, "web", "101"), "the end of an earlier one");
        assert!(has(&mut ahead, "web", "105"), "the same");
        assert!(!has(&mut ahead, "web", "106"));
        ahead.objects(&answer(&policy("web", "107")), Some("106"));
        assert!(!has(&mut ahead, "web", "110"), "the watch has passed it");
        assert!(!has(&mut ahead, "web", "107"));
    }

    #[test]
    fn a_list_may_be_older_than_an_answer() {
        let mut ahead = AnsweredVersions::default();
        ahead.objects(&answer(&policy("new", "107")), None);
        ahead.objects(&answer(&policy("old", "99")), None);
        let newer: Vec<_> = ahead.newer_than("100").map(|(_, name)| name.clone()).collect();
        assert_eq!(newer, ["new"]);
        assert!(!has(&mut ahead, "old", "99"));
        assert!(has(&mut ahead, "new", "106"));
    }
}
