//! Ranges as the kernel has them: one element where a range begins, another where it ends.

use denizen_netlink::Attributes;

use crate::batch::INTERVAL_END;
use crate::bytes::Key;
use crate::observed_element::{ObservedElement, observed_element};
use crate::set::Set;

/// The first key of a range, with its value; or the key after the last key of a range.
#[derive(Debug)]
pub(crate) struct RangeEdge {
    key: Key,
    /// `None`: a range ends.
    begins: Option<ObservedElement>,
}

impl RangeEdge {
    /// An element that the kernel sent; `None` if its key is longer than any key of ours.
    pub fn read(set: &Set, key: &[u8], element: Attributes<'_>) -> Option<Self> {
        let is_end = element.find_u32(3).is_some_and(|flags| flags & INTERVAL_END != 0);
        let begins = (!is_end).then(|| observed_element(set, element));
        Some(Self { key: Key::from_bytes(key)?, begins })
    }
}

/// The first and the last key of each range. A range may have no end: nft leaves it out where the
/// next range begins. Such a range goes up to the next one, or to the greatest key.
pub(crate) fn ranges(mut edges: Vec<RangeEdge>) -> Vec<(Key, Key, ObservedElement)> {
    edges.sort_by_key(|edge| (edge.key, edge.begins.is_some()));
    let mut found = Vec::with_capacity(edges.len() / 2);
    let mut open: Option<(Key, ObservedElement)> = None;
    for RangeEdge { key, begins } in edges {
        if let (Some((first, element)), Some(last)) = (open.take(), key.predecessor()) {
            found.push((first, last, element));
        }
        open = begins.map(|element| (key, element));
    }
    found.extend(open.map(|(first, element)| (first, first.greatest(), element)));
    found
}
