//! Which objects of one kind were sent, and what a list or a change adds. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use tracing::warn;

use super::{AnyPolicy, WrongPolicy};
use denizen_model::Event;
use denizen_object::{DecodedObject, Decoder, ObjectKey, ObjectKind, RawObject};
use denizen_text::describe;

/// Maximum number of problems that are named for one object, since a person reads them.
const MAX_NAMED: usize = 10;

/// Flush a partial list after this many decoded objects. They take 0.1 MB, and a source's queue has
/// room for 64 such batches.
const FLUSH_AFTER: usize = 256;

/// The objects that were sent.
///
/// Only a hash of each is kept, to notice a difference: the model has the objects. The hash covers
/// the whole object. A resource version would not do: a restored etcd gives it out a second time.
#[derive(Debug)]
pub(super) struct SentObjects {
    kind: ObjectKind,
    decoder: Decoder,
    since: Timestamp,
    sent: HashMap<ObjectKey, u64>,
    problems: ObjectProblems,
    wrong_policies: Vec<WrongPolicy>,
}

/// The problems of each object; `None` for objects without a readable name.
type ObjectProblems = BTreeMap<Option<ObjectKey>, Vec<String>>;

/// A list that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct PartialList {
    seen: HashSet<ObjectKey>,
    fresh: HashMap<ObjectKey, DecodedObject>,
    problems: ObjectProblems,
}

impl PartialList {
    /// Whether it should be flushed.
    pub(super) fn should_flush(&self) -> bool {
        self.fresh.len() >= FLUSH_AFTER
    }
}

#[derive(Default)]
struct Reading {
    key: Option<ObjectKey>,
    decoded: Option<DecodedObject>,
    problems: Vec<String>,
}

impl SentObjects {
    /// An index of no objects.
    pub(super) fn new(kind: ObjectKind, decoder: Decoder, since: Timestamp) -> Self {
        Self {
            kind,
            decoder,
            since,
            sent: HashMap::new(),
            problems: ObjectProblems::new(),
            wrong_policies: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Adds an object to a list.
    pub(super) fn list(&mut self, list: &mut PartialList, found: &RawObject<'_>) {
        let Reading { key, decoded, problems } = self.read(found);
        if let Some(key) = &key {
            list.seen.insert(key.clone());
        }
        if let Some(decoded) = decoded {
            if self.sent.get(&decoded.key) == Some(&decoded.digest) {
                list.fresh.remove(&decoded.key);
            } else {
                list.fresh.insert(decoded.key.clone(), decoded);
            }
        }
        note(&mut list.problems, key, problems);
    }

    /// Keeps an object whatever the list says of it: an answer has brought something newer.
    pub(super) fn keep(&self, list: &mut PartialList, namespace: &str, name: &str) {
        let key = ObjectKey::new(self.kind, namespace, name, self.decoder.node_name());
        list.fresh.remove(&key);
        list.seen.insert(key);
    }

    /// Takes the changes so far out of an incomplete list. What the list does not have yet may
    /// still come, so nothing counts as gone.
    pub(super) fn flush(&mut self, list: &mut PartialList) -> Vec<Event> {
        let mut events = Vec::with_capacity(list.fresh.len());
        let fresh = list.fresh.drain();
        fresh.for_each(|(_, decoded)| self.push_events(decoded, &mut events));
        events
    }

    /// The list is complete. Returns what changed, as one batch. Objects that were sent and are not
    /// in the list are gone.
    pub(super) fn complete(&mut self, list: PartialList) -> Vec<Event> {
        let PartialList { seen, fresh, problems } = list;
        let mut events = Vec::with_capacity(fresh.len());
        self.sent.retain(|key, _| {
            let stays = seen.contains(key);
            if !stays {
                events.push(key.gone());
            }
            stays
        });
        for (_, decoded) in fresh {
            self.push_events(decoded, &mut events);
        }
        for (key, lines) in &problems {
            self.note_new(key.as_ref(), lines);
        }
        self.problems = problems;
        events
    }

    /// An object was added or modified.
    pub(super) fn changed(&mut self, found: &RawObject<'_>) -> Vec<Event> {
        let Reading { key, decoded, problems } = self.read(found);
        self.note_new(key.as_ref(), &problems);
        note(&mut self.problems, key, problems);
        let mut events = Vec::new();
        if let Some(decoded) = decoded
            && self.sent.get(&decoded.key) != Some(&decoded.digest)
        {
            self.push_events(decoded, &mut events);
        }
        events
    }

    pub(super) fn deleted(&mut self, found: &RawObject<'_>) -> Vec<Event> {
        let Some(key) = found.key(&self.decoder) else {
            return Vec::new();
        };
        let gone = self.sent.remove(&key).map(|_| key.gone());
        self.problems.remove(&Some(key));
        gone.into_iter().collect()
    }

    /// That this node's Node is not known, if Nodes are sent.
    pub(super) fn lacks_own_node(&self) -> Option<String> {
        let lacks = self.kind == ObjectKind::Node && !self.sent.contains_key(&ObjectKey::Node);
        lacks.then(|| {
            format!(
                "Node {} does not exist (yet), so its addresses and its zone are unknown; check \
                 --node-name",
                self.decoder.node_name()
            )
        })
    }

    /// What cannot be used, one line each.
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problems.values().flatten()
    }

    /// The policies that became wrong, or wrong in another way, since the last call.
    pub(super) fn take_wrong_policies(&mut self) -> Vec<WrongPolicy> {
        std::mem::take(&mut self.wrong_policies)
    }

    /// Logs the problems of an object that it did not have before.
    fn note_new(&mut self, key: Option<&ObjectKey>, lines: &[String]) {
        let before = self.problems.get(&key.cloned()).map_or(&[][..], Vec::as_slice);
        for line in lines.iter().filter(|line| !before.contains(line)) {
            warn!(error = line, "part of an object is not used");
        }
        let policy = match key {
            Some(ObjectKey::NetworkPolicy(policy)) => AnyPolicy::OfNamespace(policy.clone()),
            Some(ObjectKey::ClusterNetworkPolicy(policy)) => AnyPolicy::OfCluster(policy.clone()),
            _ => return,
        };
        if !lines.is_empty() && before != lines {
            self.wrong_policies.push(WrongPolicy { policy, text: lines.join("\n") });
        }
    }

    fn read(&mut self, found: &RawObject<'_>) -> Reading {
        let mut warnings = Vec::new();
        let (key, decoded, error) = match found.decode(&mut self.decoder, &mut warnings) {
            Ok(Some(decoded)) => (Some(decoded.key.clone()), Some(decoded), None),
            Ok(None) => return Reading::default(),
            Err(error) => (found.key(&self.decoder), None, Some(describe(&error))),
        };
        let skipped = error.map(|error| format!("{error}: the object keeps its last known state"));
        let mut problems: Vec<String> =
            warnings.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        if let Some(more) = warnings.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            problems.push(format!("{}: and {more} more", warnings[0].object));
        }
        problems.extend(skipped);
        Reading { key, decoded, problems }
    }

    fn push_events(&mut self, decoded: DecodedObject, events: &mut Vec<Event>) {
        let DecodedObject { key, digest, event, triggered } = decoded;
        events.push(event);
        if let (ObjectKey::Slice(name), Some(at)) = (&key, triggered)
            && at > self.since
        {
            events.push(Event::Triggered(name.clone(), at));
        }
        self.sent.insert(key, digest);
    }
}

fn note(problems: &mut ObjectProblems, key: Option<ObjectKey>, lines: Vec<String>) {
    if lines.is_empty() {
        problems.remove(&key);
    } else {
        problems.insert(key, lines);
    }
}
