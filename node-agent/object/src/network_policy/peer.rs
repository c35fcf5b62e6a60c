//! Entries of `from` and `to`.

use ipnetwork::IpNetwork;
use serde_json::Value;

use super::selector::selector;
use super::{fields, list, shown};
use crate::{Notes, parse_range};
use denizen_model::{Block, Namespaces, PolicyPeer, Selector};

const NOT_A_PEER: &str = "not understood: the peer is left out";
const NOTHING: &str = "neither a selector nor an ipBlock: the peer is left out";
const BOTH: &str = "an ipBlock and a selector: the peer is left out";
const NOT_A_RANGE: &str = "not an address range: the peer is left out";
const NOT_WITHIN: &str = "not a strict subset of cidr: the peer is left out";

/// One peer; `None` if any part of it is not understood.
pub(super) fn peer(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<PolicyPeer> {
    let known = ["podSelector", "namespaceSelector", "ipBlock"];
    match fields(notes, path, written, known, NOT_A_PEER)? {
        [None, None, None] => {
            notes.warn(path, shown(written), NOTHING);
            None
        }
        [None, None, Some(block)] => self::block(&format!("{path}.ipBlock"), block, notes),
        [_, _, Some(_)] => {
            notes.warn(path, shown(written), BOTH);
            None
        }
        [pods, namespaces, None] => {
            let mut read = |field: &str, written| {
                selector(notes, &format!("{path}.{field}"), written, NOT_A_PEER)
            };
            let pods = pods.map(|pods| read("podSelector", pods));
            let namespaces = namespaces.map(|namespaces| read("namespaceSelector", namespaces));
            Some(PolicyPeer::Pods {
                pods: match pods {
                    None => Selector::default(),
                    Some(pods) => pods.understood()?,
                },
                namespaces: match namespaces {
                    None => Namespaces::Own,
                    Some(namespaces) => Namespaces::Selected(namespaces.understood()?),
                },
            })
        }
    }
}

/// As in the API server, each exception must be smaller than the block and inside it. A block whose
/// exceptions are not understood would permit what was meant to be excepted.
fn block(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<PolicyPeer> {
    let [cidr, except] = fields(notes, path, written, ["cidr", "except"], NOT_A_PEER)?;
    let mut range_of = |path: &str, written: &Value| {
        let range = written.as_str().and_then(parse_range);
        if range.is_none() {
            notes.warn(path, shown(written), NOT_A_RANGE);
        }
        range
    };
    let range = range_of(&format!("{path}.cidr"), cidr.unwrap_or(&Value::Null))?;
    let Some(written) = list(except) else {
        notes.warn(
            format_args!("{path}.except"),
            shown(except.unwrap_or(&Value::Null)),
            NOT_A_PEER,
        );
        return None;
    };
    let mut except = Vec::with_capacity(written.len());
    for (index, written) in written.iter().enumerate() {
        let path = format!("{path}.except[{index}]");
        let inner = range_of(&path, written)?;
        if !is_strict_subset(inner, range) {
            notes.warn(path, shown(written), NOT_WITHIN);
            return None;
        }
        except.push(inner);
    }
    except.sort();
    except.dedup();
    Some(PolicyPeer::Block(Block { range, except }))
}

fn is_strict_subset(inner: IpNetwork, outer: IpNetwork) -> bool {
    // Addresses of another family are never contained.
    inner.prefix() > outer.prefix() && outer.contains(inner.network())
}
