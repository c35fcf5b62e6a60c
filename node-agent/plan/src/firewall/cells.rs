//! What may pass between the pods of a class and each of their peers.

use std::collections::HashSet;
use std::sync::Arc;

use super::IdentityId;
use super::function::Function;

/// What may pass between the pods of a class and each peer that policies distinguish (`None`: all
/// other peers). Shared by the pods of the class.
#[derive(Debug, Clone)]
pub struct Cells(Arc<AllCells>);

/// One peer, and what passes between it and the pods.
pub type Cell = (Option<IdentityId>, Function);

#[derive(Debug)]
struct AllCells {
    /// Sorted by peer.
    cells: Vec<Cell>,
    /// The functions of all cells, each once.
    functions: Vec<Function>,
}

impl PartialEq for Cells {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.cells == other.0.cells
    }
}

impl Eq for Cells {}

impl Cells {
    /// One cell for each of these peers, which are sorted. Cells of `before` are kept; `decide`
    /// decides the others.
    pub(super) fn new(
        peers: impl Iterator<Item = Option<IdentityId>>,
        before: Option<&Self>,
        mut decide: impl FnMut(Option<IdentityId>) -> Function,
    ) -> Self {
        let mut functions: HashSet<Function> =
            before.into_iter().flat_map(Self::functions).cloned().collect();
        let mut known = before.map_or(&[][..], |before| &before.0.cells).iter().peekable();
        let cells = peers.map(|peer| {
            while known.next_if(|(id, _)| *id < peer).is_some() {}
            if let Some(same) = known.next_if(|(id, _)| *id == peer) {
                return same.clone();
            }
            let passing = decide(peer);
            // Equal functions share one copy.
            let function = functions.get(&passing).cloned().unwrap_or(passing);
            functions.insert(function.clone());
            (peer, function)
        });
        let cells: Vec<Cell> = cells.collect();
        let mut seen = HashSet::new();
        let is_new = |function: &&Function| seen.insert(function.address());
        let functions = cells.iter().map(|(_, function)| function).filter(is_new).cloned();
        Self(Arc::new(AllCells { functions: functions.collect(), cells }))
    }

    /// Sorted by peer.
    pub fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.0.cells.iter()
    }

    /// The function between the pods and a peer; `None`: nothing passes.
    pub fn of(&self, peer: Option<IdentityId>) -> Option<&Function> {
        let at = self.0.cells.binary_search_by_key(&peer, |(id, _)| *id).ok()?;
        Some(&self.0.cells[at].1)
    }

    /// The functions of all cells, each once.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.0.functions.iter()
    }

    /// The address of the shared data: equal for copies of one value.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The cells that are missing or different in `other`.
    pub fn beyond<'a>(&'a self, other: Option<&'a Self>) -> impl Iterator<Item = &'a Cell> + 'a {
        let is_same = other.is_some_and(|other| self.address() == other.address());
        let cells = if is_same { &[][..] } else { &self.0.cells };
        let mut others = other.map_or(&[][..], |other| &other.0.cells).iter().peekable();
        cells.iter().filter(move |cell| {
            while others.next_if(|(id, _)| *id < cell.0).is_some() {}
            others.next_if(|(id, _)| *id == cell.0).is_none_or(|other| other != *cell)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(of: &[(u64, bool)], before: Option<&Cells>) -> Cells {
        let peers = of.iter().map(|(id, _)| Some(IdentityId(*id)));
        Cells::new(peers, before, |id| {
            let passes = of.iter().any(|(peer, passes)| Some(IdentityId(*peer)) == id && *passes);
            if passes { Function::all() } else { Function::none() }
        })
    }

    fn ids<'a>(cells: impl Iterator<Item = &'a Cell>) -> Vec<u64> {
        cells.filter_map(|(id, _)| id.map(|id| id.0)).collect()
    }

    #[test]
    fn what_differs_is_found_on_both_sides() {
        let before = cells(&[(1, true), (2, true), (4, false), (7, true)], None);
        let after = cells(&[(2, true), (4, true), (5, false), (7, true)], None);
        assert_eq!(ids(after.beyond(Some(&before))), [4, 5]);
        assert_eq!(ids(before.beyond(Some(&after))), [1, 4]);
        assert_eq!(ids(after.beyond(None)), [2, 4, 5, 7]);
        assert!(ids(after.beyond(Some(&after.clone()))).is_empty());
    }

    #[test]
    fn what_is_known_stays_and_equal_functions_are_one() {
        let before = cells(&[(1, true), (2, false), (3, true)], None);
        assert_eq!(before.functions().count(), 2);
        // It is not decided again.
        let after = cells(&[(2, true), (3, false), (4, true)], Some(&before));
        assert!(after.of(Some(IdentityId(2))).is_some_and(Function::is_none));
        assert!(after.of(Some(IdentityId(3))).is_some_and(Function::is_all));
        assert_eq!(after.of(Some(IdentityId(1))), None);
        let [of_3, of_4] = [3, 4].map(|id| after.of(Some(IdentityId(id))).unwrap().address());
        assert_eq!(of_3, of_4);
    }
}
