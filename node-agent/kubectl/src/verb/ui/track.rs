//! Room for edges that lead past columns, so that no box hides them. Pure.

use std::collections::BTreeMap;

use super::dimensions::{GAP, HEIGHT};
use super::drawing::Drawing;

/// Where edges pass columns: by edge, its height in each column between its ends, with the column's
/// left side. In the order of the columns.
pub type Tracks = BTreeMap<usize, Vec<(i64, i64)>>;

/// The room of an edge, and what is between it and a box.
const THICKNESS: i64 = 6;
const BESIDE: i64 = 8;

/// With more edges than this in one column, there is no room.
const MOST: usize = 24;

/// What stands in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ColumnEntry {
    Box(usize),
    Edge(usize),
}

impl ColumnEntry {
    fn height(self) -> i64 {
        match self {
            Self::Box(_) => HEIGHT,
            Self::Edge(_) => THICKNESS,
        }
    }

    /// The distance between the middles of two entries that stand next to each other.
    fn distance(self, next: Self) -> i64 {
        let between = match (self, next) {
            (Self::Box(_), Self::Box(_)) => GAP,
            (Self::Box(_) | Self::Edge(_), Self::Edge(_)) | (Self::Edge(_), Self::Box(_)) => BESIDE,
        };
        (self.height() + next.height()) / 2 + between
    }
}

/// Gives each edge that leads past columns a place in them, and moves the boxes there apart. If
/// there are too many edges, none has a place.
pub fn lay(layers: &[Vec<usize>], drawing: &Drawing, corners: &mut [(i64, i64)]) -> Tracks {
    let mut layer_of = BTreeMap::new();
    for (layer, boxes) in layers.iter().enumerate() {
        layer_of.extend(boxes.iter().map(|at| (*at, layer)));
    }
    let middle = |corners: &[(i64, i64)], at: usize| corners[at].1 + HEIGHT / 2;
    let mut columns: Vec<Vec<(i64, ColumnEntry)>> = layers
        .iter()
        .map(|boxes| boxes.iter().map(|at| (middle(corners, *at), ColumnEntry::Box(*at))).collect())
        .collect();
    for (number, edge) in drawing.edges.iter().enumerate() {
        let ends = [edge.from, edge.to].map(|end| layer_of.get(&end).copied());
        let [Some(from), Some(to)] = ends else { continue };
        let (begins, ends) = (middle(corners, edge.from), middle(corners, edge.to));
        for (layer, column) in columns.iter_mut().enumerate().take(to).skip(from + 1) {
            let part = (layer - from) as i64;
            let wished = begins + (ends - begins) * part / (to - from) as i64;
            column.push((wished, ColumnEntry::Edge(number)));
        }
    }
    if columns.iter().zip(layers).any(|(column, boxes)| column.len() > boxes.len() + MOST) {
        return Tracks::new();
    }
    let mut tracks = Tracks::new();
    for (column, boxes) in columns.iter_mut().zip(layers) {
        let Some(left) = boxes.first().map(|at| corners[*at].0) else { continue };
        for (middle, entry) in apart(column) {
            match entry {
                ColumnEntry::Box(at) => corners[at].1 = middle - HEIGHT / 2,
                ColumnEntry::Edge(edge) => tracks.entry(edge).or_default().push((left, middle)),
            }
        }
    }
    tracks
}

/// Moves entries that overlap apart, and none of them further than it must.
fn apart(column: &mut [(i64, ColumnEntry)]) -> impl Iterator<Item = (i64, ColumnEntry)> {
    column.sort_unstable();
    let mut down: Vec<i64> = column.iter().map(|(wished, _)| *wished).collect();
    let mut up = down.clone();
    let distance = |at: usize| column[at - 1].1.distance(column[at].1);
    for at in 1..down.len() {
        down[at] = down[at].max(down[at - 1] + distance(at));
    }
    for at in (1..up.len()).rev() {
        up[at - 1] = up[at - 1].min(up[at] - distance(at));
    }
    let middles = down.into_iter().zip(up).map(|(down, up)| (down + up).div_euclid(2));
    middles.zip(column.iter().map(|(_, entry)| *entry)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_passes_between_boxes() {
        let mut column = vec![
            (100, ColumnEntry::Box(0)),
            (100 + HEIGHT + GAP, ColumnEntry::Box(1)),
            (110, ColumnEntry::Edge(7)),
        ];
        let moved: Vec<(i64, ColumnEntry)> = apart(&mut column).collect();
        let order: Vec<ColumnEntry> = moved.iter().map(|(_, entry)| *entry).collect();
        assert_eq!(order, [ColumnEntry::Box(0), ColumnEntry::Edge(7), ColumnEntry::Box(1)]);
        for two in moved.windows(2) {
            assert!(two[1].0 - two[0].0 >= two[0].1.distance(two[1].1), "{moved:?}");
        }
        // Entries with enough room stay where they are.
        let mut wide =
            vec![(0, ColumnEntry::Box(0)), (500, ColumnEntry::Box(1)), (250, ColumnEntry::Edge(0))];
        let moved: Vec<i64> = apart(&mut wide).map(|(middle, _)| middle).collect();
        assert_eq!(moved, [0, 250, 500]);
    }
}
