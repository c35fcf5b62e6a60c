//! How edges run between boxes. Pure.

use super::fold::Drawing;
use super::layout::{HEIGHT, Layout, WIDTH};

/// A cubic curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Curve {
    pub points: [(i64, i64); 4],
}

/// The side of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BoxSide {
    Left,
    Right,
}

/// How far a curve leaves its box before it turns, at least and at most.
const SHORTEST: i64 = 44;
const LONGEST: i64 = 220;

/// How far before the end words stand, and up to which width that is the middle.
const WORDS: i64 = 40;
const SHORT: i64 = 120;

impl Curve {
    /// One for each edge. Ends at one side of a box are spread, in the order of the other ends.
    pub fn all(drawing: &Drawing, layout: &Layout) -> Vec<Self> {
        let sides: Vec<[BoxSide; 2]> = drawing
            .edges
            .iter()
            .map(|edge| sides(layout.corners[edge.from].0, layout.corners[edge.to].0))
            .collect();
        // By box and side: the height of the other end, the edge, and which of its ends it is.
        let mut ends: Vec<(usize, BoxSide, i64, usize, usize)> = Vec::new();
        for (at, (edge, [from, to])) in drawing.edges.iter().zip(&sides).enumerate() {
            ends.push((edge.from, *from, layout.corners[edge.to].1, at, 0));
            ends.push((edge.to, *to, layout.corners[edge.from].1, at, 1));
        }
        ends.sort_unstable();
        let mut points = vec![[(0, 0); 2]; drawing.edges.len()];
        for of_side in ends.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let room = of_side.len() as i64 + 1;
            for (place, (drawn, side, _, edge, end)) in (1..).zip(of_side) {
                let (x, y) = layout.corners[*drawn];
                let x = if *side == BoxSide::Right { x + WIDTH } else { x };
                points[*edge][*end] = (x, y + HEIGHT * place / room);
            }
        }
        points.iter().zip(&sides).map(|(ends, sides)| Self::between(*ends, *sides)).collect()
    }

    fn between([from, to]: [(i64, i64); 2], [leaves, arrives]: [BoxSide; 2]) -> Self {
        let reach =
            ((to.0 - from.0).abs() / 2 + (to.1 - from.1).abs() / 8).clamp(SHORTEST, LONGEST);
        let out = |side| if side == BoxSide::Right { reach } else { -reach };
        let turns = [(from.0 + out(leaves), from.1), (to.0 + out(arrives), to.1)];
        Self { points: [from, turns[0], turns[1], to] }
    }

    /// As SVG has it.
    pub fn path(&self) -> String {
        let [from, one, two, to] = self.points.map(|(x, y)| format!("{x} {y}"));
        format!("M{from} C{one} {two} {to}")
    }

    /// The middle of its words: before its end, where it is alone and nearly level.
    pub fn words(&self) -> (i64, i64) {
        let [from, one, two, to] = self.points;
        let back = (to.0 - two.0).signum() * WORDS;
        let y = match (to.0 - from.0).abs() {
            0..=SHORT => (from.1 + 3 * one.1 + 3 * two.1 + to.1) / 8,
            _ => to.1,
        };
        (to.0 - back, y - 5)
    }
}

/// From which side an edge leaves, and at which it arrives.
fn sides(from: i64, to: i64) -> [BoxSide; 2] {
    match from.cmp(&to) {
        std::cmp::Ordering::Less => [BoxSide::Right, BoxSide::Left],
        std::cmp::Ordering::Equal => [BoxSide::Right, BoxSide::Right],
        std::cmp::Ordering::Greater => [BoxSide::Left, BoxSide::Right],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_begins_and_ends_at_its_boxes_and_turns_outward() {
        use BoxSide::{Left, Right};
        for (from, to, expected) in
            [(0, 300, [Right, Left]), (300, 0, [Left, Right]), (0, 0, [Right, Right])]
        {
            assert_eq!(sides(from, to), expected);
            let curve = Curve::between([(from, 10), (to, 90)], expected);
            let [_, one, two, _] = curve.points;
            assert_eq!(one.0 > from, expected[0] == Right);
            assert_eq!(two.0 > to, expected[1] == Right);
        }
        let curve = Curve::between([(0, 10), (100, 90)], [Right, Left]);
        assert_eq!(curve.path(), "M0 10 C60 10 40 90 100 90");
    }
}
