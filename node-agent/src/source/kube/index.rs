//! What was told of which object of one kind, and what a list or a change adds to that. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use tracing::warn;

use crate::describe::describe;
use crate::model::Event;
use crate::source::object::{Found, Key, Kind, Said};

/// The most problems of one object that are named: a person reads them.
const MAX_NAMED: usize = 10;

/// The objects that were told.
///
/// They are not kept, only a number that tells whether one was written differently: the model has
/// them. It is made from all of the object and not from its resource version, which a restored etcd
/// gives out a second time.
#[derive(Debug)]
pub(super) struct Index {
    kind: Kind,
    node_name: Arc<str>,
    since: Timestamp,
    told: HashMap<Key, u64>,
    problems: Problems,
}

/// What is wrong with which object; `None` for those whose name cannot be read.
type Problems = BTreeMap<Option<Key>, Vec<String>>;

/// A list that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct List {
    seen: HashSet<Key>,
    fresh: HashMap<Key, Said>,
    problems: Problems,
}

/// What was read of one object.
#[derive(Default)]
struct Reading {
    key: Option<Key>,
    said: Option<Said>,
    problems: Vec<String>,
}

impl Index {
    /// Nothing was told yet.
    pub(super) fn new(kind: Kind, node_name: Arc<str>, since: Timestamp) -> Self {
        Self { kind, node_name, since, told: HashMap::new(), problems: Problems::new() }
    }

    /// Takes an object into a list.
    pub(super) fn list(&self, list: &mut List, json: &str) {
        let Reading { key, said, problems } = self.read(json);
        if let Some(key) = &key {
            list.seen.insert(key.clone());
        }
        if let Some(said) = said {
            if self.told.get(&said.key) == Some(&said.digest) {
                list.fresh.remove(&said.key);
            } else {
                list.fresh.insert(said.key.clone(), said);
            }
        }
        note(&mut list.problems, key, problems);
    }

    /// Takes out of a list what was deleted while it was read.
    pub(super) fn unlist(&self, list: &mut List, json: &str) {
        if let Some(key) = Found::json(self.kind, json).key() {
            list.seen.remove(&key);
            list.fresh.remove(&key);
            list.problems.remove(&Some(key));
        }
    }

    /// The list is complete: what is different now, as one change. What was told and is not in it
    /// is gone.
    pub(super) fn complete(&mut self, list: List) -> Vec<Event> {
        let List { seen, fresh, problems } = list;
        let mut events = Vec::with_capacity(fresh.len());
        self.told.retain(|key, _| {
            let stays = seen.contains(key);
            if !stays {
                events.push(key.gone());
            }
            stays
        });
        for (_, said) in fresh {
            self.tell(said, &mut events);
        }
        for (key, lines) in &problems {
            trace_new(lines, self.problems.get(key));
        }
        self.problems = problems;
        events
    }

    /// An object is there, or is different.
    pub(super) fn changed(&mut self, json: &str) -> Vec<Event> {
        let Reading { key, said, problems } = self.read(json);
        trace_new(&problems, self.problems.get(&key));
        note(&mut self.problems, key, problems);
        let mut events = Vec::new();
        if let Some(said) = said
            && self.told.get(&said.key) != Some(&said.digest)
        {
            self.tell(said, &mut events);
        }
        events
    }

    /// An object is gone.
    pub(super) fn deleted(&mut self, json: &str) -> Vec<Event> {
        let Some(key) = Found::json(self.kind, json).key() else {
            return Vec::new();
        };
        let told = self.told.remove(&key).map(|_| key.gone());
        self.problems.remove(&Some(key));
        told.into_iter().collect()
    }

    /// Whether nothing is there.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// What cannot be used, a line each.
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problems.values().flatten()
    }

    fn read(&self, json: &str) -> Reading {
        let found = Found::json(self.kind, json);
        let mut warnings = Vec::new();
        let (key, said, error) = match found.said(&self.node_name, &mut warnings) {
            Ok(Some(said)) => (Some(said.key.clone()), Some(said), None),
            Ok(None) => return Reading::default(),
            Err(error) => (found.key(), None, Some(describe(&error))),
        };
        let skipped =
            error.map(|error| format!("{error}: the object is left as it was known before"));
        let mut problems: Vec<String> =
            warnings.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        if let Some(more) = warnings.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            problems.push(format!("{}: and {more} more", warnings[0].object));
        }
        problems.extend(skipped);
        Reading { key, said, problems }
    }

    fn tell(&mut self, said: Said, events: &mut Vec<Event>) {
        let Said { key, digest, event, triggered } = said;
        events.push(event);
        if let (Key::Slice(name), Some(at)) = (&key, triggered)
            && at > self.since
        {
            events.push(Event::Triggered(name.clone(), at));
        }
        self.told.insert(key, digest);
    }
}

fn note(problems: &mut Problems, key: Option<Key>, lines: Vec<String>) {
    if lines.is_empty() {
        problems.remove(&key);
    } else {
        problems.insert(key, lines);
    }
}

fn trace_new(lines: &[String], before: Option<&Vec<String>>) {
    for line in lines {
        if !before.is_some_and(|before| before.contains(line)) {
            warn!(error = line, "part of an object is not used");
        }
    }
}
