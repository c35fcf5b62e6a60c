//! Entries of `protocols`.

use std::num::NonZeroU16;

use serde_json::Value;

use super::super::network_policy::{fields, shown};
use super::NOT_A_RULE;
use crate::Notes;
use denizen_model::{Protocol, TierPort};

const NOT_ONE: &str = "not exactly one protocol or named port: the rule matches nothing if it \
                       accepts, and denies everything otherwise";
const NOT_A_PORT: &str = "neither a port number nor a range of them: the rule matches nothing if \
                          it accepts, and denies everything otherwise";
const NOT_A_NAME: &str = "not the name of a port: the rule matches nothing if it accepts, and \
                          denies everything otherwise";

/// One entry; `None` if any part of it is not understood.
pub(super) fn port(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<TierPort> {
    let known = ["tcp", "udp", "sctp", "destinationNamedPort"];
    match fields(notes, path, written, known, NOT_A_RULE)? {
        [Some(tcp), None, None, None] => ports(&format!("{path}.tcp"), Protocol::Tcp, tcp, notes),
        [None, Some(udp), None, None] => ports(&format!("{path}.udp"), Protocol::Udp, udp, notes),
        [None, None, Some(sctp), None] => {
            ports(&format!("{path}.sctp"), Protocol::Sctp, sctp, notes)
        }
        // Whatever it looks like: "8080" is a name too.
        [None, None, None, Some(name)] => match name.as_str().filter(|name| !name.is_empty()) {
            Some(name) => Some(TierPort::Named(name.into())),
            None => {
                notes.warn(format_args!("{path}.destinationNamedPort"), shown(name), NOT_A_NAME);
                None
            }
        },
        _ => {
            notes.warn(path, shown(written), NOT_ONE);
            None
        }
    }
}

fn ports(
    path: &str,
    protocol: Protocol,
    written: &Value,
    notes: &mut Notes<'_>,
) -> Option<TierPort> {
    let [port] = fields(notes, path, written, ["destinationPort"], NOT_A_RULE)?;
    let Some(port) = port else {
        notes.warn(path, shown(written), NOT_A_PORT);
        return None;
    };
    let path = format!("{path}.destinationPort");
    let found = match fields(notes, &path, port, ["number", "range"], NOT_A_RULE)? {
        [Some(number), None] => number_of(number).map(|number| (number, number)),
        [None, Some(range)] => {
            let path = format!("{path}.range");
            let [start, end] = fields(notes, &path, range, ["start", "end"], NOT_A_RULE)?;
            let [start, end] = [start, end].map(|end| end.and_then(number_of));
            start.zip(end).filter(|(start, end)| start <= end)
        }
        [None, None] | [Some(_), Some(_)] => None,
    };
    if found.is_none() {
        notes.warn(path, shown(port), NOT_A_PORT);
    }
    let (first, last) = found?;
    Some(TierPort::Range(protocol, first, last))
}

fn number_of(written: &Value) -> Option<NonZeroU16> {
    let number = written.as_u64()?;
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}
