//! Entries of `ports`.

use serde_json::Value;

use super::{fields, shown};
use crate::Notes;
use crate::service::port_number;
use denizen_model::{PolicyPort, PortMatch, Protocol};

const NOT_A_PORT: &str = "not understood: the port is left out";
const NOT_A_PROTOCOL: &str = "not TCP, UDP or SCTP: the port is left out";
const NOT_A_NUMBER: &str = "neither a port number nor the name of a port: the port is left out";
const NOT_AN_END: &str =
    "not a port number from `port` on, which must be a number: the port is left out";

/// One port; `None` if any part of it is not understood.
pub(super) fn port(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<PolicyPort> {
    let known = ["protocol", "port", "endPort"];
    let [protocol, port, end] = fields(notes, path, written, known, NOT_A_PORT)?;
    let mut wrong = |field: &str, value: &Value, problem| {
        notes.warn(format_args!("{path}.{field}"), shown(value), problem);
    };
    let protocol = match protocol {
        None => Some(Protocol::Tcp),
        Some(written) => {
            let protocol = written.as_str().and_then(protocol_of);
            if protocol.is_none() {
                wrong("protocol", written, NOT_A_PROTOCOL);
            }
            protocol
        }
    };
    let matched = match port {
        None => Some(PortMatch::Any),
        Some(written) => {
            let matched = port_match(written);
            if matched.is_none() {
                wrong("port", written, NOT_A_NUMBER);
            }
            matched
        }
    };
    let (protocol, matched) = (protocol?, matched?);
    let port = match end {
        None => matched,
        Some(written) => {
            let range = range(&matched, written);
            if range.is_none() {
                wrong("endPort", written, NOT_AN_END);
            }
            range?
        }
    };
    Some(PolicyPort { protocol, port })
}

fn protocol_of(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn port_match(written: &Value) -> Option<PortMatch> {
    match written.as_str() {
        Some(name) => is_port_name(name).then(|| PortMatch::Named(name.into())),
        None => {
            let port = port_number(written.as_i64()?)?;
            Some(PortMatch::Range(port, port))
        }
    }
}

fn range(first: &PortMatch, end: &Value) -> Option<PortMatch> {
    let end = port_number(end.as_i64()?)?;
    match first {
        PortMatch::Range(first, _) if *first <= end => Some(PortMatch::Range(*first, end)),
        PortMatch::Range(..) | PortMatch::Any | PortMatch::Named(_) => None,
    }
}

/// The most characters of a port's name.
const LONGEST_NAME: usize = 15;

/// A name in the sense of RFC 6335: letters, digits and single hyphens, with at least one letter.
fn is_port_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(known)
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.contains("--")
        && !name.starts_with('-')
        && !name.ends_with('-')
}
