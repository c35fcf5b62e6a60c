//! Groups the kernel's messages by packet. Pure.
//!
//! The kernel's number of a packet is not enough: it changes with the input interface (from a
//! bridge's port to the bridge), and later packets get the same number again. A packet begins with
//! the message of our rule that marked it. Messages with another number continue it if their
//! headers are those of the same packet.

use std::net::IpAddr;
use std::time::Instant;

use denizen_nft::{TableFamily, TraceEvent, TraceMessage, TracedPacket};

use super::table::{ARRIVING, ESTABLISHED_CHAINS, SENDING, TABLE_PREFIX};

/// All that the kernel reported of one packet, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journey {
    /// The messages. The first one has the packet as it came in.
    pub messages: Vec<TraceMessage>,
    /// The kernel's current number of the packet.
    id: u32,
    /// Header fields that identify the packet: those that are not translated on its way in.
    mark: JourneyMark,
    /// Whether the marking rule of the IP table has matched the packet already.
    has_begun_in_ip: bool,
    /// When its last message came.
    last_message_at: Instant,
}

/// The source; the protocol; the source port; and fields that count packets.
type JourneyMark = (IpAddr, u8, Option<u16>, (u16, u32));

fn mark(packet: &TracedPacket) -> JourneyMark {
    let TracedPacket { source, protocol, ports, serial, .. } = *packet;
    (source, protocol, ports.map(|(source, _)| source), serial)
}

/// The packets on their way.
#[derive(Debug)]
pub(super) struct Journeys {
    /// The table whose rule marks the packets: other programs may trace the same packets.
    table: &'static str,
    open: Vec<Journey>,
}

impl Journeys {
    /// No packets yet. `table` is the table whose rules will mark them.
    pub fn new(table: &'static str) -> Self {
        Self { table, open: Vec::new() }
    }

    /// Takes a message in. Messages about other packets are ignored: other programs may trace, too.
    pub fn take(&mut self, message: TraceMessage, now: Instant) {
        let begins = message.table == self.table && is_marked(&message);
        let (id, found) = (message.id, message.packet.as_ref().map(mark));
        let is_ip = message.family != Some(TableFamily::Bridge);
        let continued = match (begins, is_ip) {
            // A packet begins in the bridge's table, if there is one: before it there is nothing to
            // continue.
            (true, false) => None,
            (true, true) => self
                .open
                .iter_mut()
                .rev()
                .find(|journey| !journey.has_begun_in_ip && Some(journey.mark) == found),
            (false, _) => {
                let by_id = self.open.iter().rposition(|journey| journey.id == id);
                let by_mark = || self.open.iter().rposition(|journey| Some(journey.mark) == found);
                by_id.or_else(by_mark).map(|at| &mut self.open[at])
            }
        };
        match (continued, found) {
            (Some(journey), _) => {
                journey.id = id;
                journey.last_message_at = now;
                journey.has_begun_in_ip |= begins && is_ip;
                journey.messages.push(message);
            }
            (None, Some(mark)) if begins => {
                let messages = vec![message];
                self.open.push(Journey {
                    messages,
                    id,
                    mark,
                    has_begun_in_ip: is_ip,
                    last_message_at: now,
                });
            }
            (None, Some(_) | None) => {}
        }
    }

    /// The packets without messages since `then`; no more messages belong to them.
    pub fn silent_since(&mut self, then: Instant) -> Vec<Journey> {
        self.open.extract_if(.., |journey| journey.last_message_at <= then).collect()
    }

    /// Forgets the packets that are on their way.
    pub fn forget(&mut self) {
        self.open.clear();
    }
}

impl Journey {
    /// The packet as it came in.
    pub fn first(&self) -> Option<&TracedPacket> {
        self.messages.iter().find_map(|message| message.packet.as_ref())
    }

    /// The packet as it was seen last.
    pub fn last(&self) -> Option<&TracedPacket> {
        self.messages.iter().rev().find_map(|message| message.packet.as_ref())
    }

    /// Whether the packet's connection existed already.
    pub fn is_established(&self) -> bool {
        self.messages.iter().any(|message| {
            let is_rule = matches!(message.event, TraceEvent::Rule { .. });
            is_of_trace(message) && is_rule && ESTABLISHED_CHAINS.contains(&&*message.chain)
        })
    }
}

/// Whether a message is from the table of a trace, which decides nothing.
pub(super) fn is_of_trace(message: &TraceMessage) -> bool {
    message.table.starts_with(TABLE_PREFIX)
}

/// Whether a rule that marks packets has matched.
fn is_marked(message: &TraceMessage) -> bool {
    let is_rule = matches!(message.event, TraceEvent::Rule { .. });
    is_rule && [ARRIVING, SENDING].contains(&&*message.chain)
}
