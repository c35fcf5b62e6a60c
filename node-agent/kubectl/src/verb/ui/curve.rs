//! How edges run between boxes. Pure.

use super::dimensions::{HEIGHT, WIDTH};
use super::drawing::Drawing;
use super::layout::Layout;

/// Cubic curves one after the other, with straight lines between them, past columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    parts: Vec<[(i64, i64); 4]>,
}

/// The side of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BoxSide {
    Left,
    Right,
}

/// How far a curve leaves its box before it turns, at least and at most.
const MIN_REACH: i64 = 44;
const MAX_REACH: i64 = 220;

/// How far before an edge's end its words stand, and up to which width of an edge that is its
/// middle.
const WORDS: i64 = 40;
const SHORT: i64 = 120;

impl Curve {
    /// A curve for each edge. Ends at one side of a box are spread, in the order of the other ends.
    pub fn all(drawing: &Drawing, layout: &Layout) -> Vec<Self> {
        let sides: Vec<[BoxSide; 2]> = drawing
            .edges
            .iter()
            .map(|edge| sides(layout.corners[edge.from].0, layout.corners[edge.to].0))
            .collect();
        let none = Vec::new();
        let tracks = |edge: usize| layout.tracks.get(&edge).unwrap_or(&none);
        // By box and side: where the edge leads, the edge, and which of its ends it is.
        let mut ends: Vec<(usize, BoxSide, i64, usize, usize)> = Vec::new();
        for (at, (edge, [from, to])) in drawing.edges.iter().zip(&sides).enumerate() {
            let middle = |at: usize| layout.corners[at].1 + HEIGHT / 2;
            let next = tracks(at).first().map_or(middle(edge.to), |(_, y)| *y);
            let last = tracks(at).last().map_or(middle(edge.from), |(_, y)| *y);
            ends.push((edge.from, *from, next, at, 0));
            ends.push((edge.to, *to, last, at, 1));
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
        let curve = |(at, [from, to]): (usize, [(i64, i64); 2])| {
            let mut parts = Vec::new();
            let mut begins = from;
            for (left, y) in tracks(at) {
                parts.push(part([begins, (*left, *y)], [BoxSide::Right, BoxSide::Left]));
                begins = (left + WIDTH, *y);
            }
            parts.push(part([begins, to], sides[at]));
            Self { parts }
        };
        points.into_iter().enumerate().map(curve).collect()
    }

    /// The curve as a path of SVG.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for part in &self.parts {
            let [from, one, two, to] = part.map(|(x, y)| format!("{x} {y}"));
            let leads = if path.is_empty() { "M" } else { " L" };
            path.push_str(&format!("{leads}{from} C{one} {two} {to}"));
        }
        path
    }

    /// The middle of the edge's words: before its end, where the edge is alone and nearly level.
    pub fn words(&self) -> (i64, i64) {
        let Some([from, one, two, to]) = self.parts.last() else { return (0, 0) };
        let back = (to.0 - two.0).signum() * WORDS;
        let y = match (to.0 - from.0).abs() {
            0..=SHORT => (from.1 + 3 * one.1 + 3 * two.1 + to.1) / 8,
            _ => to.1,
        };
        (to.0 - back, y - 5)
    }
}

/// A curve that leaves one side of a box, and arrives at one of another.
fn part([from, to]: [(i64, i64); 2], [leaves, arrives]: [BoxSide; 2]) -> [(i64, i64); 4] {
    let reach = (to.0 - from.0).abs() / 2 + (to.1 - from.1).abs() / 8;
    let reach = reach.clamp(MIN_REACH, MAX_REACH);
    let out = |side| if side == BoxSide::Right { reach } else { -reach };
    [from, (from.0 + out(leaves), from.1), (to.0 + out(arrives), to.1), to]
}

/// The side of a box from which an edge leaves, and the side at which it arrives.
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
            let [_, one, two, _] = part([(from, 10), (to, 90)], expected);
            assert_eq!(one.0 > from, expected[0] == Right);
            assert_eq!(two.0 > to, expected[1] == Right);
        }
        let parts = vec![
            part([(0, 10), (100, 90)], [Right, Left]),
            part([(264, 90), (364, 90)], [Right, Left]),
        ];
        let curve = Curve { parts };
        let expected = "M0 10 C60 10 40 90 100 90 L264 90 C314 90 314 90 364 90";
        assert_eq!(curve.path(), expected);
        assert_eq!(curve.words(), (324, 85));
    }
}
