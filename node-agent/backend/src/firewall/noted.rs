//! Lists of desired elements, and the difference between an earlier and a later list.

use std::collections::BTreeMap;

use super::element::sorted;
use super::table::FirewallTable;
use denizen_nft::{Element, Keeper, TableFamily};

/// The desired elements of each table, [`sorted`].
pub(super) fn of_each(
    elements: impl Fn(FirewallTable) -> Vec<Element>,
) -> [(TableFamily, Vec<Element>); 3] {
    FirewallTable::ALL.map(|table| (table.family(), sorted(elements(table))))
}

/// The elements that are missing or different in `others`. Both are [`sorted`].
fn beyond<'a>(
    elements: &'a [Element],
    others: &'a [Element],
) -> impl Iterator<Item = &'a Element> + 'a {
    let mut others = others.iter().peekable();
    elements.iter().filter(move |element| {
        let order = |other: &&Element| (other.set, other.key).cmp(&(element.set, element.key));
        while others.next_if(|other| order(other).is_lt()).is_some() {}
        others.next_if(|other| order(other).is_eq()).is_none_or(|other| other != *element)
    })
}

/// Notes in each table's keeper the difference between the elements noted before and those desired
/// now. Both are [`sorted`].
pub(super) fn replace(
    noted: &mut BTreeMap<TableFamily, Vec<Element>>,
    keepers: &mut BTreeMap<TableFamily, Keeper>,
    wanted: [(TableFamily, Vec<Element>); 3],
) {
    for (family, after) in wanted {
        let before = noted.remove(&family).unwrap_or_default();
        let (gone, come) = (beyond(&before, &after), beyond(&after, &before));
        note(keepers, family, gone.cloned(), come.cloned());
        noted.insert(family, after);
    }
}

/// Notes in a table's keeper the difference between two lists of elements.
pub(super) fn note(
    keepers: &mut BTreeMap<TableFamily, Keeper>,
    family: impl Into<TableFamily>,
    before: impl IntoIterator<Item = Element>,
    after: impl IntoIterator<Item = Element>,
) {
    if let Some(keeper) = keepers.get_mut(&family.into()) {
        let (before, after) = (before.into_iter().collect(), after.into_iter().collect());
        keeper.note(|delta| delta.extend(before, after));
    }
}
