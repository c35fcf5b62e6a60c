//! Streams that are not in step, and what comes of them.

use std::collections::HashMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use denizen_model::{Labels, OwnPodFacts};

const NAMESPACES: [&str; 3] = ["a", "b", "c"];

fn name(namespace: &str, name: &str) -> PodName {
    PodName { namespace: namespace.into(), name: name.into() }
}

fn pod(name: &PodName, state: u8, is_here: bool, ends: Option<i64>) -> Arc<ClusterPod> {
    let pod = ClusterPod {
        labels: Labels::from_iter([("state", &*state.to_string())]),
        ips: [IpAddr::from([10, 0, 0, state])].into(),
        ends,
        here: is_here.then(|| OwnPodFacts::new("u".into()).into()),
        ..ClusterPod::named(name.clone())
    };
    pod.into()
}

fn of(namespace: &str) -> StreamScope {
    StreamScope::PodsOf(namespace.into())
}

fn shown(
    merge: &mut PodMerge,
    from: &StreamScope,
    pod: Option<Arc<ClusterPod>>,
    name: &PodName,
) -> bool {
    !merge.apply(from, vec![Event::ClusterPod(name.clone(), pod)], 0).is_empty()
}

#[test]
fn a_pod_of_this_node_is_its_own_streams() {
    let mut merge = PodMerge::default();
    merge.add_namespace("a".into());
    let web = name("a", "web");
    // Not scheduled yet: another stream is ahead.
    assert!(shown(&mut merge, &of("a"), Some(pod(&web, 1, false, None)), &web));
    assert!(shown(&mut merge, &StreamScope::OwnPods, Some(pod(&web, 2, true, None)), &web));
    assert!(!shown(&mut merge, &of("a"), Some(pod(&web, 1, true, None)), &web));
    assert!(!shown(&mut merge, &of("a"), None, &web), "its end comes through its own stream");
    // One of the same name on another node is known before this one's end.
    assert!(!shown(&mut merge, &of("a"), Some(pod(&web, 3, false, None)), &web));
    let gone = vec![Event::ClusterPod(web.clone(), None)];
    let events = merge.apply(&StreamScope::OwnPods, gone, 0);
    assert_eq!(events, [Event::ClusterPod(web.clone(), Some(pod(&web, 3, false, None)))]);
}

/// This node's stream is behind that of all pods.
#[test]
fn a_pod_whose_name_moved_to_another_node_stays_known() {
    let mut merge = PodMerge::default();
    merge.add_all();
    let web = name("a", "web");
    let moved = pod(&web, 2, false, None);
    assert!(shown(&mut merge, &StreamScope::All, Some(moved.clone()), &web));
    assert!(shown(&mut merge, &StreamScope::OwnPods, Some(pod(&web, 1, true, None)), &web));
    let gone = vec![Event::ClusterPod(web.clone(), None)];
    let events = merge.apply(&StreamScope::OwnPods, gone, 0);
    assert_eq!(events, [Event::ClusterPod(web, Some(moved))]);
}

/// Its address may be another pod's, of a namespace that nobody follows.
#[test]
fn at_the_end_of_its_grace_period_a_pod_is_gone() {
    let mut merge = PodMerge::default();
    merge.add_namespace("a".into());
    let [web, db, own] = ["web", "db", "own"].map(|pod| name("a", pod));
    merge.apply(&of("a"), vec![Event::ClusterPod(web.clone(), Some(pod(&web, 1, false, None)))], 0);
    let ending = |name: &PodName, ends| {
        Event::ClusterPod(name.clone(), Some(pod(name, 1, false, Some(ends))))
    };
    merge.apply(&of("a"), vec![ending(&web, 30), ending(&db, 20)], 0);
    let here = pod(&own, 1, true, Some(10));
    merge.apply(&StreamScope::OwnPods, vec![Event::ClusterPod(own.clone(), Some(here))], 0);
    assert_eq!(merge.next_expiry(), Some(20));
    assert!(merge.remove_expired(19).is_empty());
    assert_eq!(merge.remove_expired(20), [Event::ClusterPod(db.clone(), None)]);
    // What is reported of it afterwards does not bring it back.
    assert!(merge.apply(&of("a"), vec![ending(&db, 20)], 21).is_empty());
    // A pod of the same name that is not being deleted has another life.
    let new = Some(pod(&web, 2, false, None));
    merge.apply(&of("a"), vec![Event::ClusterPod(web.clone(), new)], 21);
    assert_eq!(merge.next_expiry(), None);
    assert!(merge.remove_expired(40).is_empty());
}

/// While all are known, the younger one with an address has it.
#[test]
fn while_all_pods_are_known_none_ends_before_it_is_gone() {
    let mut merge = PodMerge::default();
    merge.add_all();
    let web = name("a", "web");
    let ending = Some(pod(&web, 1, false, Some(20)));
    assert!(shown(&mut merge, &StreamScope::All, ending.clone(), &web));
    assert_eq!(merge.next_expiry(), None);
    assert!(merge.remove_expired(40).is_empty());
    merge.add_namespace("a".into());
    merge.apply(&of("a"), vec![Event::ClusterPod(web.clone(), ending)], 10);
    assert!(merge.agrees(|_| true, 10));
    assert_eq!(merge.lead_by_namespaces(40), [Event::ClusterPod(web, None)]);
}

#[test]
fn a_namespace_waits_for_all_pods_that_are_awaited() {
    let mut merge = PodMerge::default();
    assert!(merge.add_namespace("a".into()));
    merge.add_all();
    assert!(!merge.is_led_by_all());
    assert!(!merge.add_namespace("b".into()));
    merge.lead_by_all(0);
    assert!(merge.add_namespace("b".into()));
}

/// One thing that happened to a pod: which, and what it is now.
#[derive(Debug, Clone)]
struct Happened {
    name: PodName,
    pod: Option<Arc<ClusterPod>>,
}

/// What is done with the streams.
#[derive(Debug, Clone)]
enum MergeStep {
    /// A stream catches up by so many events.
    Advance(usize, usize),
    Namespace(usize),
    Leave(usize),
    All,
    LeadByAll,
    LeadByNamespaces,
}

fn happened() -> impl Strategy<Value = Vec<Happened>> {
    let one = (0..NAMESPACES.len(), 0..3_u8, 0..4_u8, any::<bool>());
    prop::collection::vec(one, 0..24).prop_map(|all| {
        let of = |(namespace, number, state, is_here): (usize, u8, u8, bool)| {
            let name = name(NAMESPACES[namespace], &number.to_string());
            let pod = (state > 0).then(|| pod(&name, state, is_here, None));
            Happened { name, pod }
        };
        // A pod does not move to another node: one of its name ends before.
        let mut places: HashMap<PodName, bool> = HashMap::new();
        let mut history = Vec::new();
        for next in all.into_iter().map(of) {
            let is_here = next.pod.as_ref().map(|pod| pod.here.is_some());
            let before = match is_here {
                Some(is_here) => places.insert(next.name.clone(), is_here),
                None => places.remove(&next.name),
            };
            if is_here.is_some() && before.is_some() && before != is_here {
                history.push(Happened { name: next.name.clone(), pod: None });
            }
            history.push(next);
        }
        history
    })
}

fn steps() -> impl Strategy<Value = Vec<MergeStep>> {
    let step = prop_oneof![
        6 => (0..5_usize, 1..6_usize).prop_map(|(stream, by)| MergeStep::Advance(stream, by)),
        2 => (0..NAMESPACES.len()).prop_map(MergeStep::Namespace),
        1 => (0..NAMESPACES.len()).prop_map(MergeStep::Leave),
        1 => Just(MergeStep::All),
        1 => Just(MergeStep::LeadByAll),
        1 => Just(MergeStep::LeadByNamespaces),
    ];
    prop::collection::vec(step, 0..40)
}

/// A server's history, and streams that are somewhere in it.
struct Streams {
    history: Vec<Happened>,
    at: BTreeMap<StreamScope, usize>,
    merge: PodMerge,
    model: BTreeMap<PodName, Arc<ClusterPod>>,
}

impl Streams {
    fn scope(number: usize) -> StreamScope {
        match number {
            3 => StreamScope::OwnPods,
            4 => StreamScope::All,
            number => of(NAMESPACES[number]),
        }
    }

    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            let Event::ClusterPod(name, pod) = event else { continue };
            match pod {
                Some(pod) => drop(self.model.insert(name, pod)),
                None => drop(self.model.remove(&name)),
            }
        }
    }

    fn is_in(scope: &StreamScope, happened: &Happened, before: Option<&Arc<ClusterPod>>) -> bool {
        let is_here = |pod: &Arc<ClusterPod>| pod.here.is_some();
        match scope {
            StreamScope::All => true,
            StreamScope::PodsOf(namespace) => happened.name.namespace == *namespace,
            StreamScope::OwnPods => {
                happened.pod.as_ref().is_some_and(is_here) || before.is_some_and(is_here)
            }
        }
    }

    fn advance(&mut self, scope: &StreamScope, by: usize) {
        for _ in 0..by {
            let Some(at) = self.at.get_mut(scope).filter(|at| **at < self.history.len()) else {
                return;
            };
            let number = *at;
            *at += 1;
            let happened = self.history[number].clone();
            let earlier = self.history[..number].iter().rev();
            let before = earlier.into_iter().find(|other| other.name == happened.name);
            let before = before.and_then(|before| before.pod.as_ref());
            if Self::is_in(scope, &happened, before) {
                let event = Event::ClusterPod(happened.name, happened.pod);
                let events = self.merge.apply(scope, vec![event], 0);
                self.take(events);
            }
        }
    }

    /// A list is of what is there at the time, and no older than what others have shown.
    fn begin(&mut self, scope: StreamScope) {
        let at = self.at.values().copied().max().unwrap_or_default();
        self.at.insert(scope.clone(), 0);
        self.advance(&scope, at);
    }

    fn step(&mut self, step: &MergeStep) {
        match step {
            MergeStep::Advance(stream, by) => self.advance(&Self::scope(*stream), *by),
            MergeStep::Namespace(number) => {
                let scope = Self::scope(*number);
                if !self.at.contains_key(&scope)
                    && self.merge.add_namespace(NAMESPACES[*number].into())
                {
                    self.begin(scope);
                }
            }
            MergeStep::Leave(number) => {
                if self.at.contains_key(&StreamScope::All) && !self.merge.is_led_by_all() {
                    return;
                }
                if self.at.remove(&Self::scope(*number)).is_some() {
                    let events = self.merge.remove_namespace(NAMESPACES[*number], 0);
                    self.take(events);
                }
            }
            MergeStep::All => {
                if !self.at.contains_key(&StreamScope::All) {
                    self.merge.add_all();
                    self.begin(StreamScope::All);
                }
            }
            MergeStep::LeadByAll => self.change_lead(true),
            MergeStep::LeadByNamespaces => self.change_lead(false),
        }
    }

    /// If both show the same, what both know is not touched.
    fn change_lead(&mut self, to_all: bool) {
        if !self.at.contains_key(&StreamScope::All) || !self.merge.agrees(|_| true, 0) {
            return;
        }
        let covered: BTreeSet<Arc<str>> = self.merge.namespaces.keys().cloned().collect();
        let own = self.merge.own.clone();
        let known =
            |model: &BTreeMap<PodName, Arc<ClusterPod>>| -> BTreeMap<PodName, Arc<ClusterPod>> {
                let both = model
                    .iter()
                    .filter(|(name, _)| covered.contains(&name.namespace) || own.contains(*name));
                both.map(|(name, pod)| (name.clone(), pod.clone())).collect()
            };
        let before = known(&self.model);
        let events = match to_all {
            true => self.merge.lead_by_all(0),
            false => self.merge.lead_by_namespaces(0),
        };
        for event in &events {
            let Event::ClusterPod(name, pod) = event else { continue };
            let was = before.get(name);
            assert!(was.is_none() || was == pod.as_ref(), "{event:?} {was:?}");
        }
        self.take(events);
        assert_eq!(known(&self.model), before);
        match to_all {
            true => self.at.retain(|scope, _| !matches!(scope, StreamScope::PodsOf(_))),
            false => _ = self.at.remove(&StreamScope::All),
        }
    }

    /// What should be known when all streams have brought everything.
    fn expected(&self) -> BTreeMap<PodName, Arc<ClusterPod>> {
        let mut there = BTreeMap::new();
        for Happened { name, pod } in &self.history {
            match pod {
                Some(pod) => drop(there.insert(name.clone(), pod.clone())),
                None => drop(there.remove(name)),
            }
        }
        let is_known = |name: &PodName, pod: &Arc<ClusterPod>| {
            pod.here.is_some()
                || self.at.contains_key(&StreamScope::All)
                || self.at.contains_key(&StreamScope::PodsOf(name.namespace.clone()))
        };
        there.retain(|name, pod| is_known(name, pod));
        there
    }
}

proptest! {
    /// Whatever the streams do, in the end exactly those pods are known that are followed, as they
    /// are; and who leads changes without touching what both know.
    #[test]
    fn in_the_end_what_is_followed_is_known(history in happened(), steps in steps()) {
        let (merge, model) = (PodMerge::default(), BTreeMap::new());
        let mut streams = Streams { history, at: BTreeMap::new(), merge, model };
        streams.begin(StreamScope::OwnPods);
        steps.iter().for_each(|step| streams.step(step));
        let scopes: Vec<StreamScope> = streams.at.keys().cloned().collect();
        scopes.iter().for_each(|scope| streams.advance(scope, usize::MAX));
        prop_assert_eq!(&streams.model, &streams.expected());
    }
}
