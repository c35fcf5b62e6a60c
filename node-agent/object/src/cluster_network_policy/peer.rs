//! Entries of `from` and `to`.

use serde_json::Value;

use super::super::network_policy::selector::selector;
use super::super::network_policy::{clipped, list, shown};
use super::{NOT_A_RULE, namespaced_pods};
use crate::{Notes, parse_range};
use denizen_model::{Selector, TierPeer};

const NOT_ONE: &str = "not exactly one kind of peer: the rule matches nothing if it accepts, and \
                       denies everything otherwise";
const DOMAIN_NAMES: &str = "domain names are not supported: the rule matches nothing if it \
                            accepts, and denies everything otherwise";
const NOT_A_RANGE: &str = "not an address range: the rule matches nothing if it accepts, and \
                           denies everything otherwise";

/// The peers of one entry; `None` if any part of it is not understood.
pub(super) fn peers(
    path: &str,
    is_egress: bool,
    written: &Value,
    notes: &mut Notes<'_>,
) -> Option<Vec<TierPeer>> {
    let fields = written.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let mut fields = fields.map(|(key, value)| (key.as_str(), value));
    let (Some((field, value)), None) = (fields.next(), fields.next()) else {
        notes.warn(path, shown(written), NOT_ONE);
        return None;
    };
    let path = format!("{path}.{}", clipped(field));
    let mut selected = |value| selector(notes, &path, value, NOT_A_RULE).understood();
    match field {
        "namespaces" => {
            let (namespaces, pods) = (selected(value)?, Selector::default());
            Some(vec![TierPeer::Pods { namespaces, pods }])
        }
        "pods" => {
            let (namespaces, pods) = namespaced_pods(notes, &path, value, NOT_A_RULE)?;
            Some(vec![TierPeer::Pods { namespaces, pods }])
        }
        "nodes" if is_egress => Some(vec![TierPeer::Nodes(selected(value)?)]),
        "networks" if is_egress => networks(&path, value, notes),
        "domainNames" if is_egress => {
            notes.warn(path, shown(value), DOMAIN_NAMES);
            None
        }
        _ => {
            notes.warn(path, shown(value), NOT_A_RULE);
            None
        }
    }
}

/// The peers of `networks`. Host bits are cleared: `10.1.2.3/8` is `10.0.0.0/8`.
fn networks(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<Vec<TierPeer>> {
    let Some(ranges) = list(Some(written)).filter(|ranges| !ranges.is_empty()) else {
        notes.warn(path, shown(written), NOT_A_RULE);
        return None;
    };
    let (mut read, mut is_whole) = (Vec::with_capacity(ranges.len()), true);
    for (at, written) in ranges.iter().enumerate() {
        match written.as_str().and_then(parse_range) {
            Some(range) => read.push(TierPeer::Network(range)),
            None => {
                notes.warn(format_args!("{path}[{at}]"), shown(written), NOT_A_RANGE);
                is_whole = false;
            }
        }
    }
    is_whole.then_some(read)
}
