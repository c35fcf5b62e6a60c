//! What happened to a packet, and whether that is what `explain` says. Pure.

use std::net::{IpAddr, SocketAddr};

use denizen_nft::{TraceMessage, TraceVerdict, TracedPacket};
use serde::Serialize;

use super::journey::{Journey, is_of_trace};
use super::rules::{TracedRules, is_agents};
use super::table::{DELIVERED, LEAVING};
use denizen_plan::explain::{Explanation, PacketVerdict};

/// What became of a packet on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketFate {
    Sent,
    /// It reached a program of this node.
    Delivered,
    /// It was refused with an answer.
    Refused,
    Dropped,
    /// A program decides about it, or it left the path of the hooks for another part of the kernel.
    Taken,
    /// No rule ended it, but no later hook saw it: it has no route, or the kernel's own checks
    /// dropped it (`rp_filter`).
    Lost,
}

/// What became of a packet, and which rule or policy caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PacketOutcome {
    pub fate: PacketFate,
    /// Index of the message whose rule or policy refused, dropped or took the packet, if one did.
    pub by: Option<usize>,
    /// Whether that message is from a rule of the agent.
    pub is_agents: bool,
    /// Whether the packet came in with an address of this node as its source.
    pub is_from_node: bool,
    /// The addresses as the packet came in.
    pub first: PacketAddresses,
    /// The addresses when the packet was last seen.
    pub last: PacketAddresses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketAddresses {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

impl From<&TracedPacket> for PacketAddresses {
    fn from(packet: &TracedPacket) -> Self {
        let (source, destination) = packet.ports.unwrap_or_default();
        Self {
            source: SocketAddr::new(packet.source, source),
            destination: SocketAddr::new(packet.destination, destination),
        }
    }
}

/// What `explain` says, compared with what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TraceComparison {
    AsPredicted,
    /// The differences: what, and where.
    Differs(Vec<String>),
    /// The two cannot be compared, for this reason.
    NotComparable(String),
}

impl PacketOutcome {
    /// The outcome of a journey; `None` if the kernel showed no headers.
    pub fn of(journey: &Journey, rules: &TracedRules, is_from_node: bool) -> Option<Self> {
        let ends = journey.messages.iter().enumerate().rev();
        let end = ends.filter_map(|(at, message)| Some((at, fate(message, rules)?))).next();
        let (fate, by) = match end {
            Some((at, fate)) => (fate, Some(at)),
            None => (PacketFate::Lost, None),
        };
        let decides = matches!(fate, PacketFate::Refused | PacketFate::Dropped | PacketFate::Taken);
        let by = by.filter(|_| decides);
        Some(Self {
            fate,
            by,
            is_agents: by.is_some_and(|at| {
                is_agents(&journey.messages[at].table, &journey.messages[at].chain)
            }),
            is_from_node,
            first: journey.first()?.into(),
            last: journey.last()?.into(),
        })
    }
}

/// How a message ends a packet, if it does.
fn fate(message: &TraceMessage, rules: &TracedRules) -> Option<PacketFate> {
    if is_of_trace(message) {
        return match &*message.chain {
            LEAVING => Some(PacketFate::Sent),
            DELIVERED => Some(PacketFate::Delivered),
            _ => None,
        };
    }
    match message.verdict()? {
        TraceVerdict::Drop if rules.of(message).is_some_and(|rule| rule.refuses) => {
            Some(PacketFate::Refused)
        }
        TraceVerdict::Drop => Some(PacketFate::Dropped),
        TraceVerdict::Queue | TraceVerdict::Stolen => Some(PacketFate::Taken),
        TraceVerdict::Continue
        | TraceVerdict::Accept
        | TraceVerdict::Return
        | TraceVerdict::Jump(_)
        | TraceVerdict::Goto(_) => None,
    }
}

/// Compares the explanation with the outcome. `is_established`: the packet's connection existed
/// before. `by` says which rule ended the packet, or where it was last seen.
pub(super) fn compare(
    explanation: &Explanation,
    outcome: &PacketOutcome,
    is_established: bool,
    by: &str,
) -> TraceComparison {
    if is_established {
        return TraceComparison::NotComparable(
            "the packet belongs to a connection that existed before; explain is about the first one"
                .to_owned(),
        );
    }
    let differences = match explanation.verdict {
        PacketVerdict::Unknown => {
            let why = "the kernel rejected rules of this service".to_owned();
            return TraceComparison::NotComparable(why);
        }
        PacketVerdict::Foreign => {
            let why = "another proxy's rules decide about this service".to_owned();
            return TraceComparison::NotComparable(why);
        }
        PacketVerdict::Forward => forwarded(explanation, outcome, by),
        PacketVerdict::Untouched => untouched(explanation, outcome, by),
        PacketVerdict::Reject => ended(PacketFate::Refused, "refused", outcome, by),
        PacketVerdict::Drop => ended(PacketFate::Dropped, "dropped", outcome, by),
    };
    match differences.is_empty() {
        true => TraceComparison::AsPredicted,
        false => TraceComparison::Differs(differences),
    }
}

/// The differences where a rule of the agent should have ended the packet.
fn ended(expected: PacketFate, word: &str, outcome: &PacketOutcome, by: &str) -> Vec<String> {
    match (outcome.fate == expected, outcome.is_agents) {
        (true, true) => Vec::new(),
        (true, false) => {
            vec![format!("it should be {word} by a rule of denizen, and was {word} {by}")]
        }
        (false, _) => vec![format!("it should be {word}, and {}", happened(outcome, by))],
    }
}

fn forwarded(explanation: &Explanation, outcome: &PacketOutcome, by: &str) -> Vec<String> {
    let end = outcome.last.destination;
    let is_endpoint = explanation.endpoints.iter().any(|endpoint| *endpoint == end.to_string());
    let is_refused = explanation.policies.iter().any(|row| {
        let is_here = row.endpoint.as_deref() == Some(&*end.to_string());
        is_here && matches!(&*row.result, "refused" | "pending")
    });
    let mut differences = Vec::new();
    match outcome.fate {
        PacketFate::Dropped if is_refused && outcome.is_agents => return differences,
        PacketFate::Dropped | PacketFate::Refused | PacketFate::Taken | PacketFate::Lost => {
            return vec![format!("it should be forwarded, and {}", happened(outcome, by))];
        }
        PacketFate::Sent | PacketFate::Delivered => {}
    }
    if !is_endpoint {
        let wanted = explanation.endpoints.join(", ");
        differences.push(format!("it should go to {wanted}, and went to {end}"));
    } else if is_refused {
        differences.push(format!("policies should drop it, and it went to {end}"));
    }
    let masquerade = match explanation.masqueraded.is_empty() {
        true => explanation.masquerade,
        false => explanation.masqueraded.contains(&end.to_string()),
    };
    differences.extend(source(masquerade, outcome));
    differences
}

fn untouched(explanation: &Explanation, outcome: &PacketOutcome, by: &str) -> Vec<String> {
    match outcome.fate {
        PacketFate::Dropped | PacketFate::Refused | PacketFate::Taken | PacketFate::Lost => {
            return vec![format!("it should pass, and {}", happened(outcome, by))];
        }
        PacketFate::Sent | PacketFate::Delivered => {}
    }
    let mut differences = Vec::new();
    let (first, last) = (outcome.first.destination, outcome.last.destination);
    if first != last {
        differences.push(format!("its destination should stay {first}, and became {last}"));
    }
    differences.extend(source(explanation.masquerade, outcome));
    differences
}

/// The source is replaced when a packet leaves. If it is an address of the node, it may stay the
/// same.
fn source(masquerade: bool, outcome: &PacketOutcome) -> Option<String> {
    let address = |addresses: &PacketAddresses| -> IpAddr { addresses.source.ip() };
    let (first, last) = (address(&outcome.first), address(&outcome.last));
    match (masquerade, first == last) {
        (true, true) if outcome.fate == PacketFate::Sent && !outcome.is_from_node => {
            Some(format!("its source should become the node's address, and stayed {first}"))
        }
        (false, false) => Some(format!("its source should stay {first}, and became {last}")),
        (true, true | false) | (false, true) => None,
    }
}

fn happened(outcome: &PacketOutcome, by: &str) -> String {
    match outcome.fate {
        PacketFate::Sent => format!("was sent on to {}", outcome.last.destination),
        PacketFate::Delivered => format!("reached this node's {}", outcome.last.destination),
        PacketFate::Refused => format!("was refused {by}"),
        PacketFate::Dropped => format!("was dropped {by}"),
        PacketFate::Taken => format!("was taken {by}"),
        PacketFate::Lost => format!(
            "no hook saw it again after {by}: without a route, or dropped by the kernel's own checks"
        ),
    }
}
