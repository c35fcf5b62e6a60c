//! Which objects of one kind were sent, and what a list or a change adds. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use tracing::warn;

use super::WrongPolicy;
use crate::object::{Decoder, Found, Key, Kind, Said};
use denizen_model::Event;
use denizen_text::describe;

/// Maximum number of problems that are named for one object, since a person reads them.
const MAX_NAMED: usize = 10;

/// Flush a partial list after this many decoded objects. They take 0.1 MB, and a source's queue has
/// room for 64 such batches.
const PART: usize = 256;

/// The objects that were sent.
///
/// Only a hash of each is kept, to notice a difference: the model has the objects. The hash covers
/// the whole object. A resource version would not do: a restored etcd gives it out a second time.
#[derive(Debug)]
pub(super) struct Index {
    kind: Kind,
    decoder: Decoder,
    since: Timestamp,
    sent: HashMap<Key, u64>,
    problems: Problems,
    wrong_policies: Vec<WrongPolicy>,
}

/// The problems of each object; `None` for objects without a readable name.
type Problems = BTreeMap<Option<Key>, Vec<String>>;

/// A list that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct List {
    seen: HashSet<Key>,
    fresh: HashMap<Key, Said>,
    problems: Problems,
}

impl List {
    /// Whether it should be flushed.
    pub(super) fn is_large(&self) -> bool {
        self.fresh.len() >= PART
    }
}

/// One object after decoding.
#[derive(Default)]
struct Reading {
    key: Option<Key>,
    said: Option<Said>,
    problems: Vec<String>,
}

impl Index {
    /// An index of no objects.
    pub(super) fn new(kind: Kind, decoder: Decoder, since: Timestamp) -> Self {
        Self {
            kind,
            decoder,
            since,
            sent: HashMap::new(),
            problems: Problems::new(),
            wrong_policies: Vec::new(),
        }
    }

    /// Adds an object to a list.
    pub(super) fn list(&mut self, list: &mut List, json: &str) {
        let Reading { key, said, problems } = self.read(json);
        if let Some(key) = &key {
            list.seen.insert(key.clone());
        }
        if let Some(said) = said {
            if self.sent.get(&said.key) == Some(&said.digest) {
                list.fresh.remove(&said.key);
            } else {
                list.fresh.insert(said.key.clone(), said);
            }
        }
        note(&mut list.problems, key, problems);
    }

    /// Removes from a list an object that was deleted while the list was read.
    pub(super) fn unlist(&self, list: &mut List, json: &str) {
        if let Some(key) = Found::json(self.kind, json).key(&self.decoder) {
            list.seen.remove(&key);
            list.fresh.remove(&key);
            list.problems.remove(&Some(key));
        }
    }

    /// Takes the changes so far out of an incomplete list. What the list does not have yet may
    /// still come, so nothing counts as gone.
    pub(super) fn part(&mut self, list: &mut List) -> Vec<Event> {
        let mut events = Vec::with_capacity(list.fresh.len());
        let fresh = list.fresh.drain();
        fresh.for_each(|(_, said)| self.push_events(said, &mut events));
        events
    }

    /// The list is complete. Returns what changed, as one batch. Objects that were sent and are not
    /// in the list are gone.
    pub(super) fn complete(&mut self, list: List) -> Vec<Event> {
        let List { seen, fresh, problems } = list;
        let mut events = Vec::with_capacity(fresh.len());
        self.sent.retain(|key, _| {
            let stays = seen.contains(key);
            if !stays {
                events.push(key.gone());
            }
            stays
        });
        for (_, said) in fresh {
            self.push_events(said, &mut events);
        }
        for (key, lines) in &problems {
            self.note_new(key.as_ref(), lines);
        }
        self.problems = problems;
        events
    }

    /// An object was added or modified.
    pub(super) fn changed(&mut self, json: &str) -> Vec<Event> {
        let Reading { key, said, problems } = self.read(json);
        self.note_new(key.as_ref(), &problems);
        note(&mut self.problems, key, problems);
        let mut events = Vec::new();
        if let Some(said) = said
            && self.sent.get(&said.key) != Some(&said.digest)
        {
            self.push_events(said, &mut events);
        }
        events
    }

    pub(super) fn deleted(&mut self, json: &str) -> Vec<Event> {
        let Some(key) = Found::json(self.kind, json).key(&self.decoder) else {
            return Vec::new();
        };
        let gone = self.sent.remove(&key).map(|_| key.gone());
        self.problems.remove(&Some(key));
        gone.into_iter().collect()
    }

    /// Whether this node's Node is known.
    pub(super) fn has_own_node(&self) -> bool {
        self.sent.contains_key(&Key::Node)
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
    fn note_new(&mut self, key: Option<&Key>, lines: &[String]) {
        let before = self.problems.get(&key.cloned()).map_or(&[][..], Vec::as_slice);
        for line in lines.iter().filter(|line| !before.contains(line)) {
            warn!(error = line, "part of an object is not used");
        }
        if let Some(Key::NetworkPolicy(policy)) = key
            && !lines.is_empty()
            && before != lines
        {
            let text = lines.join("\n");
            self.wrong_policies.push(WrongPolicy { policy: policy.clone(), text });
        }
    }

    fn read(&mut self, json: &str) -> Reading {
        let found = Found::json(self.kind, json);
        let mut warnings = Vec::new();
        let (key, said, error) = match found.said(&mut self.decoder, &mut warnings) {
            Ok(Some(said)) => (Some(said.key.clone()), Some(said), None),
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
        Reading { key, said, problems }
    }

    fn push_events(&mut self, said: Said, events: &mut Vec<Event>) {
        let Said { key, digest, event, triggered } = said;
        events.push(event);
        if let (Key::Slice(name), Some(at)) = (&key, triggered)
            && at > self.since
        {
            events.push(Event::Triggered(name.clone(), at));
        }
        self.sent.insert(key, digest);
    }
}

fn note(problems: &mut Problems, key: Option<Key>, lines: Vec<String>) {
    if lines.is_empty() {
        problems.remove(&key);
    } else {
        problems.insert(key, lines);
    }
}
