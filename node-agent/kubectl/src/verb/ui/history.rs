//! The last minutes of each edge. Agents give a sample: what they track now, and packets of a few
//! seconds. Memory is bounded by the number of edges.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::observation::{EdgeKey, EdgeObservation, EdgeVerdict, ExampleEnds};

/// For how many minutes an edge is remembered that is not seen any more.
pub const MINUTES: usize = 15;

/// How many edges are remembered: 10 MB, as a rule.
const EDGES: usize = 20_000;

/// Of these, this many are reserved for edges whose packets rules dropped, if there are as many.
const RULED: usize = EDGES / 4;

/// How many reasons of one edge are remembered.
const REASONS: usize = 4;

const VERDICTS: usize = EdgeVerdict::ALL.len();

#[derive(Debug, Default)]
pub struct History {
    /// Boxes, since a map moves what it holds.
    edges: BTreeMap<Rc<EdgeKey>, Box<EdgeHistory>>,
    /// How many edges had to be forgotten early.
    forgotten: u64,
    /// The minute of the last sample.
    minute: u64,
}

#[derive(Debug)]
struct EdgeHistory {
    /// By minute modulo [`MINUTES`], and by verdict.
    ring: [[u32; VERDICTS]; MINUTES],
    /// The minute of the newest slot.
    newest: u64,
    /// The last sample's connections, by verdict.
    open: [u32; VERDICTS],
    reasons: BTreeSet<(EdgeVerdict, String)>,
    ends: Rc<ExampleEnds>,
}

/// What there is to say of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeFacts {
    pub key: Rc<EdgeKey>,
    /// The last minutes, by verdict. For connections, the sum of each minute's largest sample; for
    /// packets, how many were seen.
    pub counts: [u64; VERDICTS],
    /// Connections that are tracked now.
    pub open: u64,
    /// The worst of the last minutes.
    pub verdict: EdgeVerdict,
    pub reasons: BTreeSet<(EdgeVerdict, String)>,
    /// All verdicts together, the oldest minute first.
    pub minutes: [u64; MINUTES],
    /// Minutes since it was seen.
    pub age: u64,
    pub ends: Rc<ExampleEnds>,
}

impl EdgeFacts {
    pub fn is_bad(&self) -> bool {
        self.verdict != EdgeVerdict::Connected
    }

    pub fn weight(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Takes in another edge that is drawn as the same.
    pub fn merge(&mut self, other: Self) {
        let is_worse = |one: &Self| (one.verdict, one.weight());
        if is_worse(&other) > is_worse(self) {
            self.key = other.key;
            self.ends = other.ends;
        }
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        for (count, more) in self.minutes.iter_mut().zip(other.minutes) {
            *count = count.saturating_add(more);
        }
        self.open = self.open.saturating_add(other.open);
        self.verdict = self.verdict.max(other.verdict);
        self.age = self.age.min(other.age);
        self.reasons.extend(other.reasons);
        while self.reasons.len() > REASONS {
            // The mildest reason.
            self.reasons.pop_first();
        }
    }
}

impl History {
    /// Adds the connections that are tracked at this minute.
    pub fn connections(&mut self, minute: u64, observations: Vec<EdgeObservation>) {
        self.edges.values_mut().for_each(|edge| edge.open = [0; VERDICTS]);
        for observation in observations {
            let (verdict, count) = (observation.verdict as usize, clamped(observation.count));
            let edge = self.edge(minute, observation);
            edge.open[verdict] = count;
            let slot = &mut edge.ring[slot_of(minute)][verdict];
            *slot = count.max(*slot);
        }
        self.forget(minute);
    }

    /// Packets, each with the minute when they were seen: now, or fewer than [`MINUTES`] ago. All
    /// in one call, since forgetting edges costs a look at every edge.
    pub fn packets(&mut self, seen: impl IntoIterator<Item = (u64, Vec<EdgeObservation>)>) {
        let mut last = 0;
        for (minute, observations) in seen {
            for observation in observations {
                let (verdict, count) = (observation.verdict as usize, clamped(observation.count));
                let slot = &mut self.edge(minute, observation).ring[slot_of(minute)][verdict];
                *slot = slot.saturating_add(count);
            }
            last = last.max(minute);
            if self.edges.len() > 2 * EDGES {
                self.forget(last);
            }
        }
        self.forget(last);
    }

    fn edge(&mut self, minute: u64, observation: EdgeObservation) -> &mut EdgeHistory {
        let EdgeObservation { key, verdict, reason, ends, count: _ } = observation;
        let ends = Rc::new(ends);
        let edge = self.edges.entry(Rc::new(key)).or_insert_with(|| {
            Box::new(EdgeHistory {
                ring: [[0; VERDICTS]; MINUTES],
                newest: minute,
                open: [0; VERDICTS],
                reasons: BTreeSet::new(),
                ends: ends.clone(),
            })
        });
        edge.go_on_to(minute);
        if let Some(reason) = reason {
            // The ends that are explained are those of the worst refusal.
            if !edge.reasons.iter().any(|(known, _)| *known >= verdict) {
                edge.ends = ends;
            }
            if edge.reasons.len() < REASONS {
                edge.reasons.insert((verdict, reason));
            }
        }
        edge
    }

    fn forget(&mut self, minute: u64) {
        let minute = self.minute.max(minute);
        self.minute = minute;
        self.edges.retain(|_, edge| minute.saturating_sub(edge.newest) < MINUTES as u64);
        if self.edges.len() > EDGES {
            let surplus = self.surplus();
            self.forgotten += surplus.len() as u64;
            surplus.iter().for_each(|key| drop(self.edges.remove(key)));
        }
    }

    /// The edges for which there is no room: those that were not seen for longest, then those that
    /// are not tracked now, then those that were seen least. Rules and connections each have a part
    /// of the room that the other cannot take: neither a scan of ports nor a crowd hides the rest.
    fn surplus(&self) -> Vec<Rc<EdgeKey>> {
        let is_ruled = |(_, edge): &(&Rc<EdgeKey>, &EdgeHistory)| !edge.reasons.is_empty();
        let edges = self.edges.iter().map(|(key, edge)| (key, &**edge));
        let (ruled, others): (Vec<_>, Vec<_>) = edges.partition(is_ruled);
        let room = RULED.max(EDGES.saturating_sub(others.len())).min(ruled.len());
        let of = |edges: Vec<(&Rc<EdgeKey>, &EdgeHistory)>, room: usize| {
            let surplus = edges.len().saturating_sub(room);
            let ranked = edges.into_iter().map(|(key, edge)| (edge.rank(), key));
            let mut ranked: Vec<_> = ranked.collect();
            ranked.sort_unstable();
            ranked.into_iter().take(surplus).map(|(_, key)| key.clone()).collect::<Vec<_>>()
        };
        [of(ruled, room), of(others, EDGES - room)].concat()
    }

    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub fn edges(&self) -> impl Iterator<Item = EdgeFacts> {
        self.edges.iter().map(|(key, edge)| edge.facts(key, self.minute))
    }

    /// The ends to explain.
    pub fn ends(&self, matches: impl Fn(&EdgeKey) -> bool) -> Option<&ExampleEnds> {
        self.edges.iter().find(|(key, _)| matches(key)).map(|(_, edge)| &*edge.ends)
    }
}

impl EdgeHistory {
    /// What ranks lowest is forgotten first.
    fn rank(&self) -> (u64, bool, u64) {
        let weight = self.ring.iter().flatten().map(|count| u64::from(*count)).sum();
        (self.newest, self.open.iter().any(|open| *open > 0), weight)
    }

    /// Empties the slots of the minutes in between.
    fn go_on_to(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.newest).min(MINUTES as u64);
        for back in 0..passed {
            self.ring[slot_of(minute - back)] = [0; VERDICTS];
        }
        self.newest = self.newest.max(minute);
    }

    fn facts(&self, key: &Rc<EdgeKey>, now: u64) -> EdgeFacts {
        let age = now.saturating_sub(self.newest);
        let (mut counts, mut minutes) = ([0; VERDICTS], [0; MINUTES]);
        for (at, sum) in minutes.iter_mut().enumerate() {
            let back = (MINUTES - 1 - at) as u64;
            // Before the first minute, and after the newest, there is nothing.
            let Some(minute) = now.checked_sub(back).filter(|minute| *minute <= self.newest) else {
                continue;
            };
            for (count, seen) in counts.iter_mut().zip(self.ring[slot_of(minute)]) {
                *count += u64::from(seen);
                *sum += u64::from(seen);
            }
        }
        let seen = |verdict: &&EdgeVerdict| counts[**verdict as usize] > 0;
        let worst = EdgeVerdict::ALL.iter().rev().find(seen).copied();
        EdgeFacts {
            key: key.clone(),
            counts,
            open: self.open.iter().map(|open| u64::from(*open)).sum(),
            verdict: worst.unwrap_or(EdgeVerdict::Connected),
            reasons: self
                .reasons
                .iter()
                .filter(|(verdict, _)| counts[*verdict as usize] > 0)
                .cloned()
                .collect(),
            minutes,
            age,
            ends: self.ends.clone(),
        }
    }
}

fn slot_of(minute: u64) -> usize {
    (minute % MINUTES as u64) as usize
}

fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::participant::Participant;
    use super::*;

    fn seen(to: &str, verdict: EdgeVerdict, count: u64) -> EdgeObservation {
        let key = EdgeKey {
            from: Participant::Outside { is_client: true },
            to: Participant::Node(to.to_owned()),
            port: "1/tcp".into(),
        };
        let reason = (verdict > EdgeVerdict::Unanswered).then(|| "no policy permits it".to_owned());
        let ends = ExampleEnds { from: "a".into(), to: to.to_owned(), via: None };
        EdgeObservation { key, verdict, count, reason, ends }
    }

    #[test]
    fn connections_are_the_most_of_a_minute_and_packets_their_sum() {
        let mut history = History::default();
        for count in [3, 7, 2] {
            history.connections(100, vec![seen("a", EdgeVerdict::Connected, count)]);
            history.packets([(100, vec![seen("a", EdgeVerdict::Dropped, count)])]);
        }
        let edge = history.edges().next().unwrap();
        assert_eq!((edge.counts, edge.open), ([7, 0, 0, 12], 2));
        assert_eq!(
            (edge.verdict, edge.age, edge.minutes[MINUTES - 1]),
            (EdgeVerdict::Dropped, 0, 19)
        );
        history.connections(103, Vec::new());
        let edge = history.edges().next().unwrap();
        assert_eq!((edge.open, edge.age, edge.minutes[MINUTES - 4]), (0, 3, 19));
        // Drops are forgotten before connections that still exist.
        for minute in 104..120 {
            history.connections(minute, vec![seen("a", EdgeVerdict::Connected, 1)]);
        }
        let edge = history.edges().next().unwrap();
        assert_eq!((edge.counts, edge.verdict), ([15, 0, 0, 0], EdgeVerdict::Connected));
        history.connections(120 + MINUTES as u64, Vec::new());
        assert_eq!(history.edges().count(), 0);
    }

    #[test]
    fn packets_of_an_earlier_minute_are_forgotten_earlier() {
        let mut history = History::default();
        history.connections(100, vec![seen("a", EdgeVerdict::Connected, 1)]);
        history.packets([(90, vec![seen("a", EdgeVerdict::Dropped, 7)])]);
        history.packets([(86, vec![seen("b", EdgeVerdict::Refused, 2)])]);
        history.packets([(100, vec![seen("b", EdgeVerdict::Refused, 1)])]);
        let of = |history: &History| -> Vec<_> {
            history.edges().map(|edge| (edge.counts, edge.minutes[0], edge.age)).collect()
        };
        assert_eq!(of(&history), [([1, 0, 0, 7], 0, 0), ([0, 0, 3, 0], 2, 0)]);
        history.connections(101, Vec::new());
        assert_eq!(of(&history), [([1, 0, 0, 7], 0, 1), ([0, 0, 1, 0], 0, 1)]);
        history.connections(105, Vec::new());
        assert_eq!(of(&history)[0], ([1, 0, 0, 0], 0, 5));
    }

    #[test]
    fn memory_is_bounded_and_what_was_forgotten_is_counted() {
        let mut history = History::default();
        let many = (0..EDGES + 5).map(|at| seen(&format!("n{at}"), EdgeVerdict::Connected, 1));
        history.connections(1, many.collect());
        history.packets([(2, vec![seen("new", EdgeVerdict::Refused, 1)])]);
        assert_eq!((history.edges().count(), history.forgotten()), (EDGES, 6));
        assert!(history.edges().any(|edge| edge.verdict == EdgeVerdict::Refused));
    }

    /// One sample, then a scan of all ports, then many that come and go within the minute.
    #[test]
    fn neither_a_scan_nor_a_crowd_hides_what_is_there_now() {
        let mut history = History::default();
        let connected = |name: String| seen(&name, EdgeVerdict::Connected, 1);
        let are_here = |history: &History| {
            let here = history.edges().filter(|edge| edge.key.to.to_string().starts_with("node a"));
            here.filter(|edge| edge.open > 0).count()
        };
        let now = || (0..1_000).map(|at| connected(format!("a{at}"))).collect();
        history.connections(1, now());
        let scan = (0..3 * EDGES).map(|at| seen(&format!("n{at}"), EdgeVerdict::Dropped, 9));
        history.packets([(1, scan.collect())]);
        assert_eq!((history.edges().count(), are_here(&history)), (EDGES, 1_000));
        for round in 0..3 {
            let crowd = (0..EDGES).map(|at| connected(format!("z{round}-{at}")));
            history.connections(1, crowd.collect());
        }
        history.connections(1, now());
        assert_eq!((history.edges().count(), are_here(&history)), (EDGES, 1_000));
        let ruled = history.edges().filter(EdgeFacts::is_bad).count();
        assert_eq!(ruled, RULED, "the scan is not hidden either");
    }

    proptest! {
        /// The ring against a plain list.
        #[test]
        fn a_minute_counts_for_so_long_and_no_longer(
            steps in prop::collection::vec((0u64..9, 1u64..9), 1..30),
        ) {
            let (mut history, mut plain, mut minute) = (History::default(), Vec::new(), 0);
            for (pause, count) in steps {
                minute += pause;
                history.packets([(minute, vec![seen("a", EdgeVerdict::Dropped, count)])]);
                plain.push((minute, count));
            }
            let counts = plain.iter().filter(|(at, _)| minute - at < MINUTES as u64);
            let expected: u64 = counts.map(|(_, count)| count).sum();
            prop_assert_eq!(history.edges().next().unwrap().counts[3], expected);
        }
    }
}
