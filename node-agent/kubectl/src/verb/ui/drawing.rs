//! What of a cluster is drawn: at most 200 boxes and 500 edges, the most telling ones. The rest is
//! folded into a box for each namespace, and counted. Pure.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use denizen_text::Printable;

use super::directory::ParticipantFacts;
use super::history::EdgeFacts;
use super::observation::EdgeKey;
use super::participant::{FoldedGroup, Participant};

pub const BOXES: usize = 200;
pub const EDGES: usize = 500;

/// How many of the boxes may stand for a group.
const GROUPS: usize = 60;

/// If not every participant can have its own box, this many boxes are drawn, and more only for what
/// is searched for and what is not well: most people see nothing in a picture of 200.
const CALM: usize = 60;

/// What the user of the picture looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PictureFilter {
    /// A text in the name of a box, in a port or in a reason; empty for all.
    pub search: String,
    /// The namespace whose boxes are folded last.
    pub namespace: Option<String>,
    /// Only what is refused, dropped, unanswered or marked.
    pub problems: bool,
}

/// What is drawn.
#[derive(Debug, Default)]
pub struct Drawing {
    /// Sorted.
    pub boxes: Vec<DrawnBox>,
    /// Sorted by their ends.
    pub edges: Vec<DrawnEdge>,
    pub left_out: OmittedEdges,
}

#[derive(Debug)]
pub struct DrawnBox {
    pub participant: Participant,
    pub facts: ParticipantFacts,
    /// How many participants the box stands for.
    pub members: usize,
    /// Whether something in the box, or between its members, is not well.
    pub is_bad: bool,
    /// The traffic between its members, if the box stands for several.
    pub inside: u64,
}

#[derive(Debug)]
pub struct DrawnEdge {
    /// Positions in [`Drawing::boxes`].
    pub from: usize,
    pub to: usize,
    /// Several, if there are too many edges: then one edge stands for all ports between two boxes.
    pub ports: BTreeSet<String>,
    pub facts: EdgeFacts,
}

impl DrawnEdge {
    /// Names the edge that is explained.
    pub fn id(&self) -> String {
        edge_id(&self.facts.key)
    }
}

/// Edges that are not drawn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OmittedEdges {
    pub edges: usize,
    /// How many of these are not well.
    pub bad: usize,
}

/// Decides which boxes and edges are drawn.
pub fn drawing(
    participants: &BTreeMap<Participant, ParticipantFacts>,
    edges: impl Iterator<Item = EdgeFacts>,
    filter: &PictureFilter,
) -> Drawing {
    let edges: Vec<EdgeFacts> = edges.filter(|edge| filter.has_edge(edge)).collect();
    let ends = edges.iter().flat_map(|edge| [&edge.key.from, &edge.key.to]);
    let ends: BTreeSet<&Participant> = ends.collect();
    let matching = participants
        .iter()
        .filter(|(participant, facts)| filter.has_participant(participant, facts));
    let matching = matching.map(|(participant, _)| participant);
    let all: BTreeSet<&Participant> = matching.chain(ends).collect();
    let (ranked, telling) = ranked(all, participants, &edges, filter);
    let places = places(&ranked, telling);
    drawn(&places, participants, edges)
}

/// The most telling first, and how many of them are searched for, not well, or never folded.
fn ranked<'a>(
    all: BTreeSet<&'a Participant>,
    participants: &BTreeMap<Participant, ParticipantFacts>,
    edges: &[EdgeFacts],
    filter: &PictureFilter,
) -> (Vec<&'a Participant>, usize) {
    let mut seen: BTreeMap<&Participant, (bool, u64)> = BTreeMap::new();
    for edge in edges {
        for end in [&edge.key.from, &edge.key.to] {
            let (is_bad, weight) = seen.entry(end).or_default();
            *is_bad |= edge.is_bad();
            *weight = weight.saturating_add(edge.weight());
        }
    }
    let is_open = |participant: &Participant| {
        filter.namespace.as_deref().is_some_and(|name| participant.is_in(name))
    };
    let rank = |participant: &Participant| {
        let (is_bad, weight) = seen.get(participant).copied().unwrap_or_default();
        let is_marked = participants.get(participant).is_some_and(|facts| facts.mark.is_some());
        let never_folds = participant.group().is_none();
        let is_found = !filter.search.is_empty() && filter.finds(participant);
        ([never_folds, is_found || is_open(participant), is_bad, is_marked], weight)
    };
    let mut ranked: Vec<_> =
        all.into_iter().map(|participant| (Reverse(rank(participant)), participant)).collect();
    ranked.sort();
    let is_telling =
        |(Reverse((why, _)), _): &&(Reverse<([bool; 4], u64)>, &Participant)| why.contains(&true);
    let telling = ranked.iter().filter(is_telling).count();
    (ranked.into_iter().map(|(_, participant)| participant).collect(), telling)
}

/// How many of `ranked`, from the beginning, keep a box of their own.
fn kept(ranked: &[&Participant], telling: usize) -> usize {
    if ranked.len() <= BOXES {
        return ranked.len();
    }
    let all: BTreeSet<FoldedGroup> =
        ranked.iter().filter_map(|participant| participant.group()).collect();
    let least = telling.max(CALM.saturating_sub(all.len())).min(ranked.len());
    let mut groups = BTreeSet::new();
    let mut kept = ranked.len();
    // From the end: those that tell least are folded first.
    while kept > 0 && (kept > least || kept + groups.len().min(GROUPS) > BOXES) {
        let Some(group) = ranked[kept - 1].group() else { break };
        groups.insert(group);
        kept -= 1;
    }
    kept
}

/// The box of each participant.
fn places(ranked: &[&Participant], telling: usize) -> BTreeMap<Participant, Participant> {
    let kept = kept(ranked, telling);
    let folded = &ranked[kept..];
    let mut sizes: BTreeMap<FoldedGroup, usize> = BTreeMap::new();
    let mut named: Vec<FoldedGroup> = Vec::new();
    for group in folded.iter().filter_map(|participant| participant.group()) {
        *sizes.entry(group.clone()).or_default() += 1;
        if !named.contains(&group) {
            named.push(group);
        }
    }
    // The last box is for all other groups together.
    let with_box = if named.len() > GROUPS { &named[..GROUPS - 1] } else { &named[..] };
    let place = |(at, participant): (usize, &&Participant)| {
        let place = match participant.group() {
            Some(group) if at >= kept && with_box.contains(&group) => match sizes.get(&group) {
                Some(1) => (*participant).clone(),
                Some(_) | None => Participant::Rest(group),
            },
            Some(_) if at >= kept => Participant::Rest(FoldedGroup::OtherNamespaces),
            Some(_) | None => (*participant).clone(),
        };
        ((*participant).clone(), place)
    };
    ranked.iter().enumerate().map(place).collect()
}

/// Edges with the same key are drawn as one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DrawnKey {
    /// Positions in [`Drawing::boxes`].
    from: usize,
    to: usize,
    port: String,
}

/// One box for each place, sorted.
fn boxes(
    places: &BTreeMap<Participant, Participant>,
    participants: &BTreeMap<Participant, ParticipantFacts>,
) -> Vec<DrawnBox> {
    let mut boxes: BTreeMap<Participant, DrawnBox> = BTreeMap::new();
    for (participant, place) in places {
        let facts = participants.get(participant).cloned().unwrap_or_default();
        let drawn = boxes.entry(place.clone()).or_insert_with(|| DrawnBox {
            participant: place.clone(),
            facts: ParticipantFacts::default(),
            members: 0,
            is_bad: false,
            inside: 0,
        });
        drawn.members += 1;
        drawn.is_bad |= facts.mark.is_some();
        if participant == place {
            drawn.facts = facts;
        } else {
            drawn.facts.pods += facts.pods;
        }
    }
    boxes.into_values().collect()
}

fn drawn(
    places: &BTreeMap<Participant, Participant>,
    participants: &BTreeMap<Participant, ParticipantFacts>,
    edges: Vec<EdgeFacts>,
) -> Drawing {
    let mut boxes = boxes(places, participants);
    let position = |place: &Participant| {
        let found = boxes.binary_search_by(|drawn| drawn.participant.cmp(place));
        found.expect("each place has a box")
    };
    let positions: BTreeMap<&Participant, usize> =
        places.iter().map(|(participant, place)| (participant, position(place))).collect();
    let mut by_port: BTreeMap<DrawnKey, Vec<EdgeFacts>> = BTreeMap::new();
    for edge in edges {
        let [from, to] = [&edge.key.from, &edge.key.to].map(|end| positions[end]);
        let drawn = &mut boxes[from];
        if from == to && drawn.participant != edge.key.from {
            drawn.inside = drawn.inside.saturating_add(edge.weight());
            drawn.is_bad |= edge.is_bad();
            continue;
        }
        let key = DrawnKey { from, to, port: edge.key.port.clone() };
        by_port.entry(key).or_default().push(edge);
    }
    let are_too_many = by_port.len() > EDGES;
    let mut merged: BTreeMap<DrawnKey, MergedEdge> = BTreeMap::new();
    for (DrawnKey { from, to, port }, facts) in by_port {
        let shown = if are_too_many { String::new() } else { port.clone() };
        let key = DrawnKey { from, to, port: shown };
        for facts in facts {
            match merged.entry(key.clone()) {
                Entry::Occupied(mut known) => {
                    let edge = known.get_mut();
                    edge.ports.insert(port.clone());
                    edge.facts.merge(facts);
                }
                Entry::Vacant(new) => {
                    new.insert(MergedEdge { ports: BTreeSet::from([port.clone()]), facts });
                }
            }
        }
    }
    chosen(boxes, merged)
}

/// Edges between two boxes that are drawn as one. If there are too many edges, their [`DrawnKey`]
/// has no port.
struct MergedEdge {
    ports: BTreeSet<String>,
    facts: EdgeFacts,
}

/// The edges with the worst verdicts, and of those the edges with most traffic.
fn chosen(boxes: Vec<DrawnBox>, merged: BTreeMap<DrawnKey, MergedEdge>) -> Drawing {
    let edge = |(DrawnKey { from, to, .. }, MergedEdge { ports, facts })| DrawnEdge {
        from,
        to,
        ports,
        facts,
    };
    let mut edges: Vec<DrawnEdge> = merged.into_iter().map(edge).collect();
    let mut left_out = OmittedEdges::default();
    if edges.len() > EDGES {
        edges.sort_by_key(|edge| Reverse((edge.facts.verdict, edge.facts.weight())));
        let rest = edges.split_off(EDGES);
        let bad = rest.iter().filter(|edge| edge.facts.is_bad()).count();
        left_out = OmittedEdges { edges: rest.len(), bad };
        edges.sort_by(|one, other| {
            let ends = |edge: &DrawnEdge| (edge.from, edge.to);
            ends(one).cmp(&ends(other)).then_with(|| one.ports.cmp(&other.ports))
        });
    }
    Drawing { boxes, edges, left_out }
}

impl PictureFilter {
    fn has_edge(&self, edge: &EdgeFacts) -> bool {
        let EdgeKey { from, to, port } = &*edge.key;
        let is_found = self.finds(from)
            || self.finds(to)
            || self.finds(port)
            || edge.reasons.iter().any(|(_, reason)| self.finds(reason));
        is_found && (!self.problems || edge.is_bad())
    }

    fn has_participant(&self, participant: &Participant, facts: &ParticipantFacts) -> bool {
        self.finds(participant) && (!self.problems || facts.mark.is_some())
    }

    /// Whether the searched text is in `text`, as that is shown.
    fn finds(&self, text: &dyn fmt::Display) -> bool {
        let shown = || Printable(&text.to_string()).to_string().to_lowercase();
        self.search.is_empty() || shown().contains(&self.search.to_lowercase())
    }
}

/// A short name of an edge that needs no escaping anywhere: FNV-1a of its parts.
pub fn edge_id(key: &EdgeKey) -> String {
    let text = format!("{}\0{}\0{}", key.from, key.to, key.port);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("e{hash:016x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::history::MINUTES;
    use super::super::observation::{EdgeVerdict, ExampleEnds};
    use super::*;

    fn workload(namespace: usize, name: usize) -> Participant {
        Participant::Workload {
            namespace: format!("ns{namespace:03}"),
            name: format!("w{name:04}"),
        }
    }

    fn edge(
        from: Participant,
        to: Participant,
        port: usize,
        verdict: EdgeVerdict,
        count: u64,
    ) -> EdgeFacts {
        let mut counts = [0; EdgeVerdict::ALL.len()];
        counts[verdict as usize] = count;
        EdgeFacts {
            key: EdgeKey { from, to, port: format!("{port}/tcp") }.into(),
            counts,
            open: count,
            verdict,
            reasons: BTreeSet::new(),
            minutes: [0; MINUTES],
            age: 0,
            ends: ExampleEnds { from: String::new(), to: String::new(), via: None }.into(),
        }
    }

    fn known(
        participants: impl IntoIterator<Item = Participant>,
    ) -> BTreeMap<Participant, ParticipantFacts> {
        participants
            .into_iter()
            .map(|participant| (participant, ParticipantFacts::default()))
            .collect()
    }

    #[test]
    fn a_small_cluster_is_drawn_as_it_is() {
        let participants = known((0..BOXES).map(|at| workload(at % 7, at)));
        let edges = [edge(workload(0, 0), workload(1, 1), 80, EdgeVerdict::Connected, 3)];
        let drawing = drawing(&participants, edges.into_iter(), &PictureFilter::default());
        assert_eq!((drawing.boxes.len(), drawing.edges.len()), (BOXES, 1));
        assert!(drawing.boxes.iter().all(|drawn| drawn.members == 1));
    }

    #[test]
    fn what_is_refused_is_folded_last_and_nothing_is_lost() {
        let participants = known((0..3000).map(|at| workload(at % 300, at)));
        let mut edges: Vec<EdgeFacts> = (0..3000)
            .map(|at| {
                let to = (at * 7 + 1) % 3000;
                let (from, to) = (workload(at % 300, at), workload(to % 300, to));
                edge(from, to, at % 9, EdgeVerdict::Connected, 1 + at as u64 % 50)
            })
            .collect();
        edges[1500].verdict = EdgeVerdict::Dropped;
        let drawing = drawing(&participants, edges.into_iter(), &PictureFilter::default());
        assert!(drawing.boxes.len() <= BOXES && drawing.edges.len() <= EDGES);
        assert_eq!(drawing.boxes.iter().map(|drawn| drawn.members).sum::<usize>(), 3000);
        let bad: Vec<&DrawnEdge> =
            drawing.edges.iter().filter(|edge| edge.facts.is_bad()).collect();
        assert_eq!(bad.len(), 1);
        assert_eq!(drawing.boxes[bad[0].from].participant, workload(1500 % 300, 1500));
        let rest = Participant::Rest(FoldedGroup::OtherNamespaces);
        assert!(drawing.boxes.iter().any(|drawn| drawn.participant == rest));
    }

    #[test]
    fn ports_are_put_together_before_an_edge_is_left_out() {
        let participants = known((0..30).map(|at| workload(0, at)));
        let all = |ports: usize| {
            let pairs = (0..30).flat_map(|from| (0..30).map(move |to| (from, to)));
            let pairs = pairs.filter(|(from, to)| from != to);
            pairs.take(600).flat_map(move |(from, to)| {
                (0..ports).map(move |port| {
                    edge(workload(0, from), workload(0, to), port, EdgeVerdict::Connected, 1)
                })
            })
        };
        let few = drawing(&participants, all(4).take(800), &PictureFilter::default());
        assert_eq!((few.edges.len(), few.edges[0].ports.len()), (200, 4));
        assert_eq!(few.left_out, OmittedEdges::default());
        let many = drawing(&participants, all(1), &PictureFilter::default());
        assert_eq!((many.edges.len(), many.left_out), (EDGES, OmittedEdges { edges: 100, bad: 0 }));
    }

    #[test]
    fn search_and_an_open_namespace_come_first() {
        let participants = known((0..1000).map(|at| workload(at % 4, at)));
        let of = |filter: PictureFilter| drawing(&participants, std::iter::empty(), &filter);
        let found =
            of(PictureFilter { search: "NS001/W0005".to_owned(), ..PictureFilter::default() });
        assert_eq!(found.boxes.len(), 1);
        let open =
            of(PictureFilter { namespace: Some("ns002".to_owned()), ..PictureFilter::default() });
        let shown = open.boxes.iter().filter(|drawn| drawn.participant.is_in("ns002")).count();
        assert!(shown > 190, "{shown}");
        assert!(of(PictureFilter { problems: true, ..PictureFilter::default() }).boxes.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn never_more_than_the_limits(
            sizes in prop::collection::vec(0usize..60, 0..90),
            pairs in prop::collection::vec((0usize..2000, 0usize..2000, 0usize..4), 0..900),
        ) {
            let all: Vec<Participant> = sizes
                .iter()
                .enumerate()
                .flat_map(|(namespace, size)| (0..*size).map(move |at| workload(namespace, at)))
                .chain([Participant::Outside { is_client: true }, Participant::Node("n".into())])
                .collect();
            let verdicts = EdgeVerdict::ALL;
            let edges: Vec<EdgeFacts> = pairs
                .iter()
                .map(|(from, to, verdict)| {
                    let end = |at: &usize| all[at % all.len()].clone();
                    edge(end(from), end(to), from % 5, verdicts[*verdict], 1)
                })
                .collect();
            let filter = PictureFilter::default();
            let drawing = drawing(&known(all.clone()), edges.into_iter(), &filter);
            prop_assert!(drawing.boxes.len() <= BOXES);
            prop_assert!(drawing.edges.len() <= EDGES);
            let members: usize = drawing.boxes.iter().map(|drawn| drawn.members).sum();
            prop_assert_eq!(members, all.len());
            prop_assert!(drawing.boxes.is_sorted_by(|a, b| a.participant < b.participant));
            let ids: BTreeSet<String> = drawing.edges.iter().map(DrawnEdge::id).collect();
            prop_assert_eq!(ids.len(), drawing.edges.len());
        }
    }
}
