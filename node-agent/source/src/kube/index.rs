//! Which objects of one kind were sent, and what a list or a change adds. Pure.

use std::collections::BTreeMap;
use std::mem::{replace, take};

use jiff::Timestamp;
use tracing::warn;

use super::sent_table::SentTable;
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
#[derive(Debug)]
pub(super) struct SentObjects {
    kind: ObjectKind,
    decoder: Decoder,
    since: Timestamp,
    sent: SentTable,
    problems: ObjectProblems,
    list: PartialList,
    wrong_policies: Vec<WrongPolicy>,
}

/// The problems of each object; `None` for objects without a readable name.
type ObjectProblems = BTreeMap<Option<ObjectKey>, Vec<String>>;

/// The list that was begun last, as far as it has not been sent.
#[derive(Debug, Default)]
struct PartialList {
    /// Lists are numbered from 1.
    number: u32,
    /// In the order of the list: if it names an object twice, the last counts.
    fresh: Vec<DecodedObject>,
    problems: ObjectProblems,
}

#[derive(Default)]
struct Reading {
    decoded: Option<DecodedObject>,
    /// The name of an object that cannot be decoded.
    unreadable: Option<ObjectKey>,
    problems: Vec<String>,
}

impl Reading {
    fn key(&self) -> Option<&ObjectKey> {
        self.decoded.as_ref().map(|decoded| &decoded.key).or(self.unreadable.as_ref())
    }
}

impl SentObjects {
    /// An index of no objects.
    pub(super) fn new(kind: ObjectKind, decoder: Decoder, since: Timestamp) -> Self {
        Self {
            kind,
            decoder,
            since,
            sent: SentTable::default(),
            problems: ObjectProblems::new(),
            list: PartialList::default(),
            wrong_policies: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Begins a list. Objects of an incomplete list before it that were not sent are forgotten.
    pub(super) fn begin_list(&mut self) {
        self.list = PartialList { number: self.list.number + 1, ..PartialList::default() };
    }

    /// Takes an object of the list.
    pub(super) fn list(&mut self, found: &RawObject<'_>) {
        let mut reading = self.read(found);
        let (number, problems) = (self.list.number, take(&mut reading.problems));
        note(&mut self.list.problems, reading.key(), problems);
        let mut is_known = false;
        if let Some(sent) = reading.key().and_then(|key| self.sent.get_mut(key)) {
            // An object that cannot be decoded exists nevertheless.
            let is_first = replace(&mut sent.list, number) != number;
            let is_same = |decoded| sent.is_same(decoded);
            is_known = is_first && reading.decoded.as_ref().is_some_and(is_same);
        }
        self.list.fresh.extend(reading.decoded.filter(|_| !is_known));
    }

    /// Keeps an object whatever the list says of it: an answer has brought something newer.
    pub(super) fn keep(&mut self, namespace: &str, name: &str) {
        let key = self.key(namespace, name);
        self.list.fresh.retain(|decoded| decoded.key != key);
        if let Some(sent) = self.sent.get_mut(&key) {
            sent.list = self.list.number;
        }
    }

    /// Whether the list should be flushed.
    pub(super) fn should_flush(&self) -> bool {
        self.list.fresh.len() >= FLUSH_AFTER
    }

    /// Takes the changes so far out of the incomplete list. What the list does not have yet may
    /// still come, so nothing counts as gone.
    pub(super) fn flush(&mut self) -> Vec<Event> {
        let fresh = take(&mut self.list.fresh);
        self.listed(fresh)
    }

    /// As [`Self::flush`], for one object.
    pub(super) fn flush_one(&mut self, namespace: &str, name: &str) -> Vec<Event> {
        let key = self.key(namespace, name);
        let fresh = self.list.fresh.extract_if(.., |decoded| decoded.key == key).collect();
        self.listed(fresh)
    }

    fn listed(&mut self, fresh: Vec<DecodedObject>) -> Vec<Event> {
        let mut events = Vec::with_capacity(fresh.len());
        for decoded in fresh {
            self.push_events(decoded, self.list.number, &mut events);
        }
        events
    }

    /// The list is complete. Returns what changed, as one batch. Objects that were sent and are not
    /// in the list are gone.
    pub(super) fn complete(&mut self) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.list.fresh.len());
        self.sent.retain(|sent| {
            let stays = sent.list == self.list.number;
            if !stays {
                events.push(sent.gone());
            }
            stays
        });
        events.append(&mut self.flush());
        let problems = take(&mut self.list.problems);
        for (key, lines) in &problems {
            self.note_new(key.as_ref(), lines);
        }
        self.problems = problems;
        events
    }

    /// An object was added or modified.
    pub(super) fn changed(&mut self, found: &RawObject<'_>) -> Vec<Event> {
        let mut reading = self.read(found);
        let problems = take(&mut reading.problems);
        self.note_new(reading.key(), &problems);
        note(&mut self.problems, reading.key(), problems);
        let mut events = Vec::new();
        if let Some(decoded) = reading.decoded {
            // An incomplete list has an older state of this object.
            self.list.fresh.retain(|listed| listed.key != decoded.key);
            let sent = self.sent.get(&decoded.key);
            if sent.is_none_or(|sent| !sent.is_same(&decoded)) {
                let list = sent.map_or(0, |sent| sent.list);
                self.push_events(decoded, list, &mut events);
            }
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

    /// The problem that this node's Node is not known, if this index is of Nodes.
    pub(super) fn lacks_own_node(&self) -> Option<String> {
        let lacks = self.kind == ObjectKind::Node && self.sent.get(&ObjectKey::Node).is_none();
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
        take(&mut self.wrong_policies)
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

    fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(self.kind, namespace, name, self.decoder.node_name())
    }

    fn read(&mut self, found: &RawObject<'_>) -> Reading {
        let mut warnings = Vec::new();
        let (decoded, unreadable, error) = match found.decode(&mut self.decoder, &mut warnings) {
            Ok(Some(decoded)) => (Some(decoded), None, None),
            Ok(None) => return Reading::default(),
            Err(error) => (None, found.key(&self.decoder), Some(describe(&error))),
        };
        let skipped = error.map(|error| format!("{error}: the object keeps its last known state"));
        let mut problems: Vec<String> =
            warnings.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        if let Some(more) = warnings.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            problems.push(format!("{}: and {more} more", warnings[0].object));
        }
        problems.extend(skipped);
        Reading { decoded, unreadable, problems }
    }

    /// `list`: the number of the last list that had the object.
    fn push_events(&mut self, decoded: DecodedObject, list: u32, events: &mut Vec<Event>) {
        self.sent.insert(&decoded, list);
        let DecodedObject { key, event, triggered, .. } = decoded;
        events.push(event);
        if let (ObjectKey::Slice(name), Some(at)) = (&key, triggered)
            && at > self.since
        {
            events.push(Event::Triggered(name.clone(), at));
        }
    }
}

fn note(problems: &mut ObjectProblems, key: Option<&ObjectKey>, lines: Vec<String>) {
    if !lines.is_empty() {
        problems.insert(key.cloned(), lines);
    } else if !problems.is_empty() {
        problems.remove(&key.cloned());
    }
}
