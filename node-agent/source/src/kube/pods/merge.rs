//! One view of pods that several streams bring. Pure.
//!
//! The streams are not in step with each other, so of each pod one stream decides: of a pod of this
//! node that of this node, of others that of the namespace, or that of all pods. Which of these two
//! leads changes at once, when the new streams are complete and as far as the old ones were.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use denizen_model::{ClusterPod, Event, PodName};

use super::StreamScope;

/// What the streams have brought, and who decides.
#[derive(Debug, Default)]
pub(super) struct PodMerge {
    /// This node's pods, host-network ones too.
    own: BTreeSet<PodName>,
    namespaces: BTreeMap<Arc<str>, PodView>,
    all: Option<PodView>,
    /// Whether the stream of all pods decides about namespaces that have a stream of their own.
    all_leads: bool,
    /// When the grace periods of pods are over, in seconds since 1970; of those that the streams of
    /// namespaces have shown.
    ending: BTreeSet<(i64, PodName)>,
}

/// The pods that a stream has.
type PodView = HashMap<PodName, ViewedPod>;

#[derive(Debug)]
struct ViewedPod {
    ends: Option<i64>,
    /// A hash of its state.
    digest: u64,
    /// `None` if the stream decides about the pod: then the model has it.
    held: Option<ClusterPod>,
}

impl ViewedPod {
    fn of(pod: &ClusterPod) -> Self {
        let mut hasher = DefaultHasher::new();
        pod.hash(&mut hasher);
        Self { ends: pod.ends, digest: hasher.finish(), held: None }
    }
}

impl PodMerge {
    /// Takes what a stream brings at `now`, in seconds since 1970. Returns what the model gets.
    pub fn apply(&mut self, from: &StreamScope, events: Vec<Event>, now: i64) -> Vec<Event> {
        let mut merged = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::ClusterPod(name, pod) if *from == StreamScope::OwnPods => {
                    merged.extend(self.take_own(name, pod, now));
                }
                Event::ClusterPod(name, pod) => merged.extend(self.take(from, name, pod, now)),
                other => merged.push(other),
            }
        }
        merged
    }

    /// A pod of this node, or that it is gone. Another node may have one of its name by now.
    fn take_own(&mut self, name: PodName, pod: Option<ClusterPod>, now: i64) -> Option<Event> {
        if pod.is_some() {
            self.own.insert(name.clone());
            return Some(Event::ClusterPod(name, pod));
        }
        let is_known = self.own.remove(&name);
        is_known.then(|| Event::ClusterPod(name.clone(), self.hand_over(&name, now)))
    }

    fn take(
        &mut self,
        from: &StreamScope,
        name: PodName,
        pod: Option<ClusterPod>,
        now: i64,
    ) -> Option<Event> {
        // This node's pods are its own stream's. In others they may be older.
        let pod = pod.filter(|pod| pod.here.is_none());
        let pod = pod.filter(|pod| self.all_leads || !is_over(pod.ends, now));
        let decides = self.decides(from, &name);
        let view = match from {
            StreamScope::OwnPods => return None,
            StreamScope::PodsOf(namespace) => self.namespaces.get_mut(namespace)?,
            StreamScope::All => self.all.as_mut()?,
        };
        let viewed = pod.as_ref().map(ViewedPod::of);
        let ends = viewed.as_ref().and_then(|viewed| viewed.ends);
        if !decides {
            match viewed {
                Some(viewed) => _ = view.insert(name, ViewedPod { held: pod, ..viewed }),
                None => _ = view.remove(&name),
            }
            return None;
        }
        let before = match viewed {
            Some(viewed) => view.insert(name.clone(), viewed),
            None => view.remove(&name),
        };
        let shown = before.as_ref().filter(|before| before.held.is_none());
        let ended = shown.and_then(|shown| shown.ends);
        self.note_end(&name, ended, ends);
        (before.is_some() || pod.is_some()).then_some(Event::ClusterPod(name, pod))
    }

    fn note_end(&mut self, name: &PodName, before: Option<i64>, ends: Option<i64>) {
        if self.all_leads || before == ends {
            return;
        }
        before.into_iter().for_each(|before| _ = self.ending.remove(&(before, name.clone())));
        self.ending.extend(ends.map(|ends| (ends, name.clone())));
    }

    /// Whether this stream decides about a pod.
    fn decides(&self, from: &StreamScope, name: &PodName) -> bool {
        let is_own = self.own.contains(name);
        match from {
            StreamScope::OwnPods => is_own,
            StreamScope::PodsOf(_) => !is_own && !self.all_leads,
            StreamScope::All => {
                let is_covered = self.namespaces.contains_key(&name.namespace);
                !is_own && (self.all_leads || !is_covered)
            }
        }
    }

    /// The view that decides about pods of a namespace which are not of this node.
    fn deciding(&mut self, namespace: &str) -> Option<&mut PodView> {
        match self.namespaces.get_mut(namespace) {
            Some(view) if !self.all_leads => Some(view),
            Some(_) | None => self.all.as_mut(),
        }
    }

    /// The state of a pod whose stream decides from now on, and did not before.
    fn hand_over(&mut self, name: &PodName, now: i64) -> Option<ClusterPod> {
        let all_leads = self.all_leads;
        let view = self.deciding(&name.namespace)?;
        let viewed = view.get_mut(name)?;
        let ends = viewed.ends;
        let state = viewed.held.take().filter(|_| all_leads || !is_over(ends, now));
        match state {
            Some(_) => self.note_end(name, None, ends),
            // It was shown before a pod of this node took the name, and is over.
            None => _ = view.remove(name),
        }
        state
    }

    /// From now on there is a stream of this namespace. Returns `false`, and there is none, while a
    /// stream of all pods is not complete that will bring its pods.
    pub fn add_namespace(&mut self, namespace: Arc<str>) -> bool {
        let is_awaited = self.all.is_some() && !self.all_leads;
        if !is_awaited {
            self.namespaces.entry(namespace).or_default();
        }
        !is_awaited
    }

    /// The stream of a namespace is gone. Returns what becomes of its pods.
    pub fn remove_namespace(&mut self, namespace: &str, now: i64) -> Vec<Event> {
        let Some(view) = self.namespaces.remove(namespace) else { return Vec::new() };
        if self.all_leads {
            return Vec::new();
        }
        let held = held(self.all.iter()).filter(|name| *name.namespace == *namespace);
        let names: BTreeSet<PodName> = view.keys().chain(held).cloned().collect();
        for (name, viewed) in &view {
            self.note_end(name, viewed.ends, None);
        }
        self.hand_all_over(names, now)
    }

    /// From now on there is a stream of all pods. It leads if no namespace has one.
    pub fn add_all(&mut self) {
        if self.all.is_none() {
            self.all = Some(PodView::new());
            self.all_leads = self.namespaces.is_empty();
        }
    }

    /// Whether the stream of all pods and those of namespaces show the same of these namespaces: who
    /// leads makes no difference now.
    pub fn agrees(&self, now: i64) -> bool {
        let Some(all) = &self.all else { return false };
        let counts = |name: &PodName, viewed: &ViewedPod| {
            !self.own.contains(name) && !is_over(viewed.ends, now)
        };
        let of_namespaces = self.namespaces.values().flatten();
        let mut of_namespaces = of_namespaces.filter(|(name, viewed)| counts(name, viewed));
        let is_same = |name: &PodName, viewed: &ViewedPod| {
            all.get(name).is_some_and(|other| other.digest == viewed.digest)
        };
        let has_each = |name: &PodName| {
            let view = self.namespaces.get(&name.namespace);
            view.is_none_or(|view| view.contains_key(name))
        };
        of_namespaces.all(|(name, viewed)| is_same(name, viewed))
            && all.iter().all(|(name, viewed)| !counts(name, viewed) || has_each(name))
    }

    /// Whether the stream of all pods leads.
    pub fn is_led_by_all(&self) -> bool {
        self.all_leads
    }

    /// The stream of all pods decides about everything, and those of namespaces are gone. Returns
    /// what becomes of their pods.
    pub fn lead_by_all(&mut self, now: i64) -> Vec<Event> {
        let namespaces = std::mem::take(&mut self.namespaces);
        if std::mem::replace(&mut self.all_leads, true) {
            return Vec::new();
        }
        self.ending.clear();
        let shown = namespaces.values().flat_map(HashMap::keys);
        let names = shown.chain(held(self.all.iter())).cloned().collect();
        self.hand_all_over(names, now)
    }

    /// The stream of all pods is gone, and those of namespaces decide. Returns what becomes of its
    /// pods.
    pub fn lead_by_namespaces(&mut self, now: i64) -> Vec<Event> {
        let Some(all) = self.all.take() else { return Vec::new() };
        self.all_leads = false;
        // What it only held, others have shown.
        let shown = all.iter().filter(|(_, viewed)| viewed.held.is_none()).map(|(name, _)| name);
        for (name, viewed) in all.iter().filter(|(_, viewed)| viewed.held.is_none()) {
            self.note_end(name, viewed.ends, None);
        }
        let names = shown.chain(held(self.namespaces.values())).cloned().collect();
        self.hand_all_over(names, now)
    }

    fn hand_all_over(&mut self, mut names: BTreeSet<PodName>, now: i64) -> Vec<Event> {
        names.retain(|name| !self.own.contains(name));
        let states = names.into_iter().map(|name| {
            let state = self.hand_over(&name, now);
            Event::ClusterPod(name, state)
        });
        states.collect()
    }

    /// When [`Self::end`] is due, in seconds since 1970. While all pods are known it never is: the
    /// younger pod with an address has it.
    pub fn next_end(&self) -> Option<i64> {
        self.ending.first().map(|(ends, _)| *ends)
    }

    /// Pods whose grace period is over at `now` count as gone: their addresses may be others' from
    /// now on.
    pub fn end(&mut self, now: i64) -> Vec<Event> {
        let mut events = Vec::new();
        while self.next_end().is_some_and(|ends| ends <= now) {
            let Some((_, name)) = self.ending.pop_first() else { break };
            let is_own = self.own.contains(&name);
            let was_shown =
                self.deciding(&name.namespace).is_some_and(|view| view.remove(&name).is_some());
            if was_shown && !is_own {
                events.push(Event::ClusterPod(name, None));
            }
        }
        events
    }
}

/// The pods that these streams have and do not decide about.
fn held<'a>(views: impl Iterator<Item = &'a PodView>) -> impl Iterator<Item = &'a PodName> {
    let viewed = views.flatten().filter(|(_, viewed)| viewed.held.is_some());
    viewed.map(|(name, _)| name)
}

fn is_over(ends: Option<i64>, now: i64) -> bool {
    ends.is_some_and(|ends| ends <= now)
}
