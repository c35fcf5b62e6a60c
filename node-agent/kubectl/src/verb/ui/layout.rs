//! Where boxes stand: who asks is left of who answers. The same drawing gives the same picture. A
//! box that was in the picture before stays in its column, in the same order. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::dimensions::{GAP, HEIGHT, MARGIN, WIDTH};
use super::drawing::Drawing;
use super::participant::Participant;
use super::track::{Tracks, lay};

/// The space between columns that edges cross, and between columns that no edge crosses.
const CROSSED: i64 = 76;
const SPLIT: i64 = 26;

/// Room for the words above boxes without edges.
const HEADING: i64 = 56;

/// The most boxes of one column, columns that edges lead through, and rounds of sorting.
const ROWS: usize = 16;
const LAYERS: usize = 10;
const ROUNDS: usize = 8;

/// The narrowest picture, in boxes.
const NARROWEST: i64 = 4;

/// Which column a box is in, and its place there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrangement {
    /// From left to right, each from top to bottom.
    layers: Vec<Vec<Participant>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The upper left corners, in the order of [`Drawing::boxes`].
    pub corners: Vec<(i64, i64)>,
    pub width: i64,
    pub height: i64,
    /// The height of the words above boxes without edges.
    pub idle: Option<i64>,
    pub tracks: Tracks,
}

/// For each box, by its number, the boxes that its edges lead to, and those that they come from.
struct Links {
    after: Vec<BTreeSet<usize>>,
    before: Vec<BTreeSet<usize>>,
}

impl Links {
    fn of(drawing: &Drawing) -> Self {
        let none = || vec![BTreeSet::new(); drawing.boxes.len()];
        let mut links = Self { after: none(), before: none() };
        for edge in &drawing.edges {
            links.after[edge.from].insert(edge.to);
            links.before[edge.to].insert(edge.from);
        }
        links
    }

    fn is_idle(&self, at: usize) -> bool {
        self.after[at].is_empty() && self.before[at].is_empty()
    }

    fn neighbours(&self, at: usize) -> impl Iterator<Item = usize> {
        let all = self.after[at].union(&self.before[at]).copied();
        all.filter(move |other| *other != at)
    }

    /// An order of the boxes in which few edges lead backward, however many cycles there are
    /// (Eades, Lin and Smyth). A box that asks no other comes last, and a box that no other asks
    /// comes first. Of the rest, the first is the box whose outgoing edges outnumber its incoming
    /// ones most.
    fn forward(&self) -> Vec<usize> {
        let mut rest: BTreeSet<usize> = (0..self.after.len()).collect();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let count = |of: &BTreeSet<usize>, own: usize| {
                of.iter().filter(|other| **other != own && rest.contains(other)).count() as i64
            };
            let counted: Vec<(usize, i64, i64)> = rest
                .iter()
                .map(|at| (*at, count(&self.after[*at], *at), count(&self.before[*at], *at)))
                .collect();
            let sinks: Vec<usize> =
                counted.iter().filter(|(_, asks, _)| *asks == 0).map(|(at, ..)| *at).collect();
            if sinks.is_empty() {
                let next = counted.iter().max_by_key(|(at, outgoing, incoming)| {
                    (*incoming == 0, outgoing - incoming, std::cmp::Reverse(*at))
                });
                let Some((next, ..)) = next else { break };
                rest.remove(next);
                first.push(*next);
            } else {
                rest.retain(|at| !sinks.contains(at));
                last.extend(sinks.into_iter().rev());
            }
        }
        first.extend(last.into_iter().rev());
        first
    }

    /// The layer of each box with edges.
    fn layers(&self, drawing: &Drawing) -> Vec<usize> {
        let order = self.forward();
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, at)| rank[*at] = place);
        let mut layers = vec![0_usize; order.len()];
        for at in &order {
            for next in self.after[*at].iter().filter(|next| rank[**next] > rank[*at]) {
                layers[*next] = layers[*next].max(layers[*at] + 1);
            }
        }
        // If there are more layers than `LAYERS`, neighbouring layers become one.
        let longest = layers.iter().copied().max().unwrap_or_default() + 1;
        if longest > LAYERS {
            layers.iter_mut().for_each(|layer| *layer = *layer * LAYERS / longest);
        }
        // A box that only asks stands beside the leftmost box that it asks. `Outside` stays at the
        // edge of the picture.
        for at in (0..order.len()).filter(|at| self.before[*at].is_empty()) {
            if !matches!(drawing.boxes[at].participant, Participant::Outside { .. })
                && let Some(next) = self.after[at].iter().map(|next| layers[*next]).min()
            {
                layers[at] = next.saturating_sub(1);
            }
        }
        layers
    }
}

impl Arrangement {
    /// The arrangement of the boxes with edges. Boxes of `earlier` stay where they are, unless most
    /// boxes are new.
    pub fn of(drawing: &Drawing, earlier: Option<&Self>) -> Self {
        let links = Links::of(drawing);
        let linked: Vec<usize> =
            (0..drawing.boxes.len()).filter(|at| !links.is_idle(*at)).collect();
        if let Some(earlier) = earlier {
            let kept = earlier.places(drawing);
            if !linked.is_empty()
                && 2 * linked.iter().filter(|at| kept.contains_key(at)).count() >= linked.len()
            {
                return earlier.with(drawing, &links, &linked, kept);
            }
        }
        let of = links.layers(drawing);
        let mut layers: Vec<Vec<usize>> = Vec::new();
        for at in linked {
            layers.resize(layers.len().max(of[at] + 1), Vec::new());
            layers[of[at]].push(at);
        }
        layers.retain(|layer| !layer.is_empty());
        sort(&mut layers, &links);
        Self::named(drawing, layers)
    }

    fn named(drawing: &Drawing, layers: Vec<Vec<usize>>) -> Self {
        let name = |at: usize| drawing.boxes[at].participant.clone();
        let named = layers.into_iter().map(|layer| layer.into_iter().map(name).collect());
        Self { layers: named.collect() }
    }

    /// The layer and the place in it, by box.
    fn places(&self, drawing: &Drawing) -> BTreeMap<usize, (usize, usize)> {
        let number: BTreeMap<&Participant, usize> =
            drawing.boxes.iter().enumerate().map(|(at, drawn)| (&drawn.participant, at)).collect();
        let all = self.layers.iter().enumerate().flat_map(|(layer, participants)| {
            participants
                .iter()
                .enumerate()
                .map(move |(place, participant)| (participant, (layer, place)))
        });
        all.filter_map(|(participant, place)| Some((*number.get(participant)?, place))).collect()
    }

    /// This arrangement with the new boxes, each at the end of the column beside a neighbour's
    /// column.
    fn with(
        &self,
        drawing: &Drawing,
        links: &Links,
        linked: &[usize],
        mut kept: BTreeMap<usize, (usize, usize)>,
    ) -> Self {
        let end = self.layers.iter().map(Vec::len).sum::<usize>();
        for (more, at) in linked.iter().enumerate() {
            if kept.contains_key(at) {
                continue;
            }
            let layer_of = |other: &usize| kept.get(other).map(|(layer, _)| *layer);
            let left = links.before[*at].iter().filter_map(layer_of).max();
            let right = links.after[*at].iter().filter_map(layer_of).min();
            let layer = match (left, right) {
                (Some(left), _) => (left + 1).min(LAYERS - 1),
                (None, Some(right)) => right.saturating_sub(1),
                (None, None) => 0,
            };
            kept.insert(*at, (layer, end + more));
        }
        let mut layers: Vec<Vec<(usize, usize)>> = Vec::new();
        for at in linked {
            let (layer, place) = kept[at];
            layers.resize(layers.len().max(layer + 1), Vec::new());
            layers[layer].push((place, *at));
        }
        let sorted = layers.into_iter().filter(|layer| !layer.is_empty()).map(|mut layer| {
            layer.sort_unstable();
            layer.into_iter().map(|(_, at)| at).collect()
        });
        Self::named(drawing, sorted.collect())
    }

    pub fn layout(&self, drawing: &Drawing) -> Layout {
        let links = Links::of(drawing);
        let places = self.places(drawing);
        let mut layers = vec![Vec::new(); self.layers.len()];
        let mut sorted: Vec<_> = places.iter().map(|(at, place)| (*place, *at)).collect();
        sorted.sort_unstable();
        sorted.into_iter().for_each(|((layer, _), at)| layers[layer].push(at));
        let mut corners = vec![(0, 0); drawing.boxes.len()];
        let mut right = columns(&layers, &mut corners);
        align(&layers, &links, &mut corners);
        // Past a layer of several columns there is no way between boxes.
        let mut tracks = match layers.iter().all(|layer| layer.len() <= ROWS) {
            true => lay(&layers, drawing, &mut corners),
            false => Tracks::new(),
        };
        let bottom = move_to_top(&places, &mut corners, &mut tracks);
        let idle: Vec<usize> = (0..corners.len()).filter(|at| !places.contains_key(at)).collect();
        if idle.is_empty() {
            let (width, height) = (right + MARGIN, bottom + MARGIN);
            return Layout { corners, width, height, idle: None, tracks };
        }
        let begins = if places.is_empty() { MARGIN } else { bottom + GAP };
        let row = ((right - MARGIN + SPLIT) / (WIDTH + SPLIT)).max(NARROWEST);
        let mut height = begins;
        for (place, at) in (0..).zip(idle) {
            let x = MARGIN + place % row * (WIDTH + SPLIT);
            let y = begins + HEADING + place / row * (HEIGHT + GAP);
            corners[at] = (x, y);
            (right, height) = (right.max(x + WIDTH), height.max(y + HEIGHT));
        }
        let heading = Some(begins + HEADING - GAP);
        let (width, height) = (right + MARGIN, height + MARGIN);
        Layout { corners, width, height, idle: heading, tracks }
    }
}

/// Sorts layers so that few edges cross: each box where its neighbours are on average.
fn sort(layers: &mut [Vec<usize>], links: &Links) {
    let number = links.after.len();
    for _ in 0..ROUNDS {
        let mut place = vec![0.0; number];
        for layer in layers.iter() {
            let length = layer.len() as f64;
            layer.iter().enumerate().for_each(|(at, drawn)| {
                place[*drawn] = (at as f64 + 0.5) / length;
            });
        }
        for layer in layers.iter_mut() {
            let wished = |at: &usize| {
                let (sum, count) = links
                    .neighbours(*at)
                    .fold((0.0, 0.0), |(sum, count), other| (sum + place[other], count + 1.0));
                if count > 0.0 { sum / count } else { place[*at] }
            };
            let mut wished: Vec<(f64, usize)> = layer.iter().map(|at| (wished(at), *at)).collect();
            wished.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            *layer = wished.into_iter().map(|(_, at)| at).collect();
            let length = layer.len() as f64;
            layer.iter().enumerate().for_each(|(at, drawn)| {
                place[*drawn] = (at as f64 + 0.5) / length;
            });
        }
    }
}

/// Puts layers side by side; a tall one is several columns. Returns the right end.
fn columns(layers: &[Vec<usize>], corners: &mut [(i64, i64)]) -> i64 {
    let mut x = MARGIN;
    let mut right = MARGIN;
    for layer in layers {
        let columns = layer.len().div_ceil(ROWS).max(1);
        for column in layer.chunks(layer.len().div_ceil(columns).max(1)) {
            for (at, y) in column.iter().zip((MARGIN..).step_by((HEIGHT + GAP) as usize)) {
                corners[*at] = (x, y);
            }
            right = x + WIDTH;
            x += WIDTH + SPLIT;
        }
        x += CROSSED - SPLIT;
    }
    right
}

/// Moves everything so that the highest box or edge is at the top. Returns the bottom.
fn move_to_top(
    places: &BTreeMap<usize, (usize, usize)>,
    corners: &mut [(i64, i64)],
    tracks: &mut Tracks,
) -> i64 {
    let boxes = places.keys().map(|at| corners[*at].1);
    let passing = tracks.values().flatten().map(|(_, y)| *y);
    let by = MARGIN - boxes.chain(passing).min().unwrap_or(MARGIN);
    places.keys().for_each(|at| corners[*at].1 += by);
    tracks.values_mut().flatten().for_each(|(_, y)| *y += by);
    let boxes = places.keys().map(|at| corners[*at].1 + HEIGHT);
    let passing = tracks.values().flatten().map(|(_, y)| *y);
    boxes.chain(passing).max().unwrap_or(MARGIN)
}

/// Moves boxes up and down towards their neighbours, in layers that are one column.
fn align(layers: &[Vec<usize>], links: &Links, corners: &mut [(i64, i64)]) {
    let step = HEIGHT + GAP;
    let tallest = layers.iter().map(|layer| layer.len().min(ROWS)).max().unwrap_or_default() as i64;
    let single = || layers.iter().filter(|layer| layer.len() <= ROWS);
    for layer in single() {
        let above = (tallest - layer.len() as i64) * step / 2;
        layer.iter().for_each(|at| corners[*at].1 += above);
    }
    for _ in 0..ROUNDS {
        for layer in single() {
            let wished = |at: &usize| {
                let ys: Vec<i64> = links.neighbours(*at).map(|other| corners[other].1).collect();
                let number = ys.len() as i64;
                if ys.is_empty() { corners[*at].1 } else { ys.iter().sum::<i64>() / number }
            };
            let wished: Vec<i64> = layer.iter().map(wished).collect();
            // From above and from below; the mean of both keeps the order and the distance.
            let (mut down, mut up) = (wished.clone(), wished);
            for at in 1..layer.len() {
                down[at] = down[at].max(down[at - 1] + step);
            }
            for at in (1..layer.len()).rev() {
                up[at - 1] = up[at - 1].min(up[at] - step);
            }
            for ((at, down), up) in layer.iter().zip(down).zip(up) {
                corners[*at].1 = (down + up).div_euclid(2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::directory::ParticipantFacts;
    use super::super::drawing::{DrawnBox, DrawnEdge, OmittedEdges};
    use super::super::history::{EdgeFacts, MINUTES};
    use super::super::observation::{EdgeKey, EdgeVerdict, ExampleEnds};
    use super::*;

    fn name(at: usize) -> Participant {
        Participant::Node(format!("n{at:03}"))
    }

    fn drawing(boxes: &[usize], pairs: &[(usize, usize)]) -> Drawing {
        let drawn = |at: &usize| DrawnBox {
            participant: name(*at),
            facts: ParticipantFacts::default(),
            members: 1,
            is_bad: false,
            inside: 0,
        };
        let edge = |(from, to): &(usize, usize)| DrawnEdge {
            from: *from,
            to: *to,
            ports: BTreeSet::new(),
            facts: EdgeFacts {
                key: EdgeKey { from: name(0), to: name(0), port: String::new() }.into(),
                counts: [0; EdgeVerdict::ALL.len()],
                open: 0,
                verdict: EdgeVerdict::Connected,
                reasons: BTreeSet::new(),
                minutes: [0; MINUTES],
                age: 0,
                ends: ExampleEnds { from: String::new(), to: String::new(), via: None }.into(),
            },
        };
        Drawing {
            boxes: boxes.iter().map(drawn).collect(),
            edges: pairs.iter().map(edge).collect(),
            left_out: OmittedEdges::default(),
        }
    }

    fn laid_out(drawing: &Drawing) -> Layout {
        Arrangement::of(drawing, None).layout(drawing)
    }

    #[test]
    fn who_asks_is_left_of_who_answers() {
        // A shop: 0 -> 1 -> 2 -> 3 -> 4, and 5, which asks 3; 6 is alone.
        let shop = drawing(&[0, 1, 2, 3, 4, 5, 6], &[(0, 1), (1, 2), (2, 3), (3, 4), (5, 3)]);
        let layout = laid_out(&shop);
        let x: Vec<i64> = layout.corners.iter().map(|(x, _)| *x).collect();
        assert!(x[..5].windows(2).all(|two| two[0] < two[1]), "{x:?}");
        assert_eq!(x[5], x[2]);
        let lowest = layout.corners[..6].iter().map(|(_, y)| y + HEIGHT).max().unwrap();
        assert!(layout.idle.unwrap() > lowest && layout.corners[6].1 > lowest, "{layout:?}");
        // A cycle gets an order too.
        laid_out(&drawing(&[0, 1, 2], &[(0, 1), (1, 2), (2, 0), (1, 1)]));
    }

    #[test]
    fn a_box_that_was_there_stays_in_its_column_and_order() {
        let pairs = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 4)];
        let before = drawing(&[0, 1, 2, 3, 4], &pairs);
        let first = Arrangement::of(&before, None);
        assert_eq!(Arrangement::of(&before, Some(&first)), first);
        // An edge that would turn the order around, and a new box.
        let more = [&pairs[..], &[(4, 1), (5, 3)]].concat();
        let after = drawing(&[0, 1, 2, 3, 4, 5], &more);
        let second = Arrangement::of(&after, Some(&first));
        for (layer, kept) in first.layers.iter().zip(&second.layers) {
            let old: Vec<&Participant> =
                kept.iter().filter(|participant| **participant != name(5)).collect();
            assert_eq!(old, layer.iter().collect::<Vec<_>>());
        }
        let other = drawing(&[6, 7, 8], &[(0, 1), (1, 2)]);
        assert_eq!(Arrangement::of(&other, Some(&first)), Arrangement::of(&other, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_two_boxes_overlap_and_the_same_gives_the_same(
            number in 1usize..200,
            pairs in prop::collection::vec((0usize..200, 0usize..200), 0..500),
            other in prop::collection::vec((0usize..200, 0usize..200), 0..40),
        ) {
            let of = |pairs: &[(usize, usize)]| -> Vec<(usize, usize)> {
                pairs.iter().map(|(from, to)| (from % number, to % number)).collect()
            };
            let boxes: Vec<usize> = (0..number).collect();
            let first = drawing(&boxes, &of(&pairs));
            let arrangement = Arrangement::of(&first, None);
            let second = drawing(&boxes, &of(&[&pairs[..], &other].concat()));
            let later = Arrangement::of(&second, Some(&arrangement));
            // With few edges, they pass between boxes.
            let few = drawing(&boxes, &of(&other));
            let alone = Arrangement::of(&few, None);
            let all = [(&first, &arrangement), (&second, &later), (&few, &alone)];
            for (drawing, arrangement) in all {
                let layout = arrangement.layout(drawing);
                prop_assert_eq!(&layout, &arrangement.layout(drawing));
                for (x, y) in layout.tracks.values().flatten() {
                    let is_hidden = |(left, top): &(i64, i64)| {
                        left == x && (top - 2..=top + HEIGHT + 2).contains(y)
                    };
                    prop_assert!(!layout.corners.iter().any(is_hidden), "{x} {y}");
                }
                for (at, (x, y)) in layout.corners.iter().enumerate() {
                    prop_assert!(*x >= MARGIN && x + WIDTH <= layout.width);
                    prop_assert!(*y >= MARGIN && y + HEIGHT <= layout.height);
                    for (other_x, other_y) in &layout.corners[..at] {
                        let (right, down) = ((x - other_x).abs(), (y - other_y).abs());
                        prop_assert!(right >= WIDTH || down >= HEIGHT, "{x} {y}");
                    }
                }
            }
            prop_assert_eq!(Arrangement::of(&first, None), arrangement);
        }
    }
}
