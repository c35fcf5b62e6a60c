//! One view of pods that several streams bring. Pure.
//!
//! The streams are not in step with each other, so one stream decides about each pod. About this
//! node's pods, this node's stream decides. About other pods, either the stream of their namespace
//! decides or the stream of all pods: whichever leads. The lead changes at once for all pods, when
//! the new streams are complete and as up to date as the old ones.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use denizen_model::{ClusterPod, Event, PodByName, PodName};
use foldhash::quality::RandomState;

use super::StreamScope;

/// The pods of each stream, and which stream decides about which pods.
#[derive(Debug, Default)]
pub(super) struct PodMerge {
    /// This node's pods.
    own: BTreeSet<PodName>,
    namespaces: BTreeMap<Arc<str>, PodView>,
    all: Option<PodView>,
    /// Whether the stream of all pods decides about namespaces that have a stream of their own.
    all_leads: bool,
    /// Pods that are ending, by the end of their grace period in seconds since 1970. Empty while
    /// the stream of all pods leads.
    expiring: BTreeSet<(i64, PodName)>,
}

/// The pods of other nodes that a stream has brought. The pods about which the stream decides are
/// shared with the model, not copied.
type PodView = HashSet<PodByName, RandomState>;

impl PodMerge {
    /// Takes what a stream brings at `now`, in seconds since 1970. Returns what the model gets.
    pub fn apply(&mut self, from: &StreamScope, events: Vec<Event>, now: i64) -> Vec<Event> {
        let mut merged = Vec::with_capacity(events.len());
        for event in events {
            let Event::ClusterPod(name, pod) = event else {
                merged.push(event);
                continue;
            };
            merged.extend(match *from == StreamScope::OwnPods {
                true => self.take_own(name, pod, now),
                false => self.take(from, name, pod, now),
            });
        }
        merged
    }

    /// Takes a change of this node's stream. If the pod is gone, another node may have one of the
    /// same name by now.
    fn take_own(&mut self, name: PodName, pod: Option<Arc<ClusterPod>>, now: i64) -> Option<Event> {
        // An answer about a single pod may be about a pod of another node. Of host-network pods
        // only the node's addresses count, and this node knows its own.
        let pod = pod.filter(|pod| pod.here.is_some());
        if pod.is_some() {
            self.own.insert(name.clone());
            return Some(Event::ClusterPod(name, pod));
        }
        let was_known = self.own.remove(&name);
        was_known.then(|| self.handed_over(name, now))
    }

    fn take(
        &mut self,
        from: &StreamScope,
        name: PodName,
        pod: Option<Arc<ClusterPod>>,
        now: i64,
    ) -> Option<Event> {
        // This node's own stream decides about its pods. Other streams may show older states.
        let pod = pod.filter(|pod| pod.here.is_none());
        let pod = pod.filter(|pod| self.all_leads || !is_over(pod, now));
        let decides = self.decides(from, &name);
        let view = match from {
            StreamScope::OwnPods => return None,
            StreamScope::PodsOf(namespace) => self.namespaces.get_mut(namespace)?,
            StreamScope::All => self.all.as_mut()?,
        };
        let before = match &pod {
            Some(pod) => view.replace(PodByName(pod.clone())),
            None => view.take(&name),
        };
        let before = before.map(|PodByName(pod)| pod);
        if !decides || before == pod {
            return None;
        }
        let ends = |pod: &Option<Arc<ClusterPod>>| pod.as_ref().and_then(|pod| pod.ends);
        self.note_expiry(&name, ends(&before), ends(&pod));
        Some(Event::ClusterPod(name, pod))
    }

    fn note_expiry(&mut self, name: &PodName, before: Option<i64>, ends: Option<i64>) {
        if self.all_leads || before == ends {
            return;
        }
        before.into_iter().for_each(|before| _ = self.expiring.remove(&(before, name.clone())));
        self.expiring.extend(ends.map(|ends| (ends, name.clone())));
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

    /// The view that decides about the pods of a namespace on other nodes.
    fn deciding(&mut self, namespace: &str) -> Option<&mut PodView> {
        match self.namespaces.get_mut(namespace) {
            Some(view) if !self.all_leads => Some(view),
            Some(_) | None => self.all.as_mut(),
        }
    }

    /// The event about a pod when another stream begins to decide about it.
    fn handed_over(&mut self, name: PodName, now: i64) -> Event {
        let all_leads = self.all_leads;
        let view = self.deciding(&name.namespace);
        let pod = view.and_then(|view| match view.get(&name) {
            Some(PodByName(pod)) if !all_leads && is_over(pod, now) => {
                view.remove(&name);
                None
            }
            found => found.map(|PodByName(pod)| pod.clone()),
        });
        self.note_expiry(&name, None, pod.as_ref().and_then(|pod| pod.ends));
        Event::ClusterPod(name, pod)
    }

    fn all_handed_over(&mut self, mut names: BTreeSet<PodName>, now: i64) -> Vec<Event> {
        names.retain(|name| !self.own.contains(name));
        names.into_iter().map(|name| self.handed_over(name, now)).collect()
    }

    /// Adds a stream of this namespace. Refuses, and returns `false`, while the stream of all pods,
    /// which will bring the same pods, is not complete.
    pub fn add_namespace(&mut self, namespace: Arc<str>) -> bool {
        let is_awaited = self.all.is_some() && !self.all_leads;
        if !is_awaited {
            self.namespaces.entry(namespace).or_default();
        }
        !is_awaited
    }

    /// Removes the stream of a namespace. Returns the events about its pods.
    pub fn remove_namespace(&mut self, namespace: &str, now: i64) -> Vec<Event> {
        let Some(view) = self.namespaces.remove(namespace) else { return Vec::new() };
        if self.all_leads {
            return Vec::new();
        }
        self.expiring.retain(|(_, name)| *name.namespace != *namespace);
        let is_in = |name: &&PodName| *name.namespace == *namespace;
        let others = self.all.iter().flat_map(names_of).filter(is_in);
        let names = names_of(&view).chain(others).cloned().collect();
        self.all_handed_over(names, now)
    }

    /// Adds the stream of all pods. It leads if no namespace has a stream.
    pub fn add_all(&mut self) {
        if self.all.is_none() {
            self.all = Some(PodView::default());
            self.all_leads = self.namespaces.is_empty();
            if self.all_leads {
                self.expiring.clear();
            }
        }
    }

    /// Whether the stream of all pods leads.
    pub fn is_led_by_all(&self) -> bool {
        self.all_leads
    }

    /// Whether the stream of all pods and those of namespaces show the same pods in the namespaces
    /// that are `listed`. If so, it makes no difference which of them leads.
    pub fn agrees(&self, listed: impl Fn(&str) -> bool, now: i64) -> bool {
        let Some(all) = &self.all else { return false };
        let counts = |pod: &ClusterPod| {
            !self.own.contains(&pod.name) && !is_over(pod, now) && listed(&pod.name.namespace)
        };
        let has_each = |name: &PodName| {
            let view = self.namespaces.get(&name.namespace);
            view.is_none_or(|view| view.contains(name))
        };
        let mut of_namespaces = self.namespaces.values().flatten();
        let is_same = |pod: &PodByName| all.get(&pod.0.name).is_some_and(|other| other.0 == pod.0);
        of_namespaces.all(|pod| !counts(&pod.0) || is_same(pod))
            && all.iter().all(|PodByName(pod)| !counts(pod) || has_each(&pod.name))
    }

    /// Lets the stream of all pods decide, and removes those of namespaces. Returns the events
    /// about their pods.
    pub fn lead_by_all(&mut self, now: i64) -> Vec<Event> {
        let namespaces = std::mem::take(&mut self.namespaces);
        if std::mem::replace(&mut self.all_leads, true) {
            return Vec::new();
        }
        self.expiring.clear();
        let all = self.all.iter().flat_map(names_of);
        let covered = all.filter(|name| namespaces.contains_key(&name.namespace));
        let names = namespaces.values().flat_map(names_of).chain(covered).cloned().collect();
        self.all_handed_over(names, now)
    }

    /// Removes the stream of all pods, and lets those of namespaces decide. Returns the events
    /// about its pods.
    pub fn lead_by_namespaces(&mut self, now: i64) -> Vec<Event> {
        let Some(all) = self.all.take() else { return Vec::new() };
        let led = std::mem::take(&mut self.all_leads);
        let is_led = |name: &&PodName| led || !self.namespaces.contains_key(&name.namespace);
        let shown = names_of(&all).filter(is_led);
        let of_namespaces = self.namespaces.values().flat_map(names_of).filter(|_| led);
        let names: BTreeSet<PodName> = shown.chain(of_namespaces).cloned().collect();
        self.expiring.retain(|(_, name)| !names.contains(name));
        self.all_handed_over(names, now)
    }

    /// When [`Self::remove_expired`] is due, in seconds since 1970. Never while the stream of all
    /// pods leads: then, of two pods with one address, the younger has it.
    pub fn next_expiry(&self) -> Option<i64> {
        self.expiring.first().map(|(ends, _)| *ends)
    }

    /// Removes pods whose grace period is over at `now`: other pods may have their addresses from
    /// then on.
    pub fn remove_expired(&mut self, now: i64) -> Vec<Event> {
        let mut events = Vec::new();
        while self.next_expiry().is_some_and(|ends| ends <= now) {
            let Some((_, name)) = self.expiring.pop_first() else { break };
            let is_own = self.own.contains(&name);
            let Some(view) = self.deciding(&name.namespace) else { continue };
            if view.get(&name).is_some_and(|PodByName(pod)| is_over(pod, now)) {
                view.remove(&name);
                events.extend((!is_own).then_some(Event::ClusterPod(name, None)));
            }
        }
        events
    }
}

fn names_of(view: &PodView) -> impl Iterator<Item = &PodName> {
    view.iter().map(|PodByName(pod)| &pod.name)
}

fn is_over(pod: &ClusterPod, now: i64) -> bool {
    pod.ends.is_some_and(|ends| ends <= now)
}
