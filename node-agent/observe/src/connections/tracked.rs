//! One entry of the conntrack table with its state and age, as in netlink. Pure.

use std::time::Duration;

use denizen_netlink::{Attributes, Message};
use denizen_plan::MarkBit;

use denizen_model::Protocol;
use denizen_packet::TrackedFlow;

/// CTA_STATUS, CTA_PROTOINFO, CTA_TIMESTAMP.
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const TIMESTAMP: u16 = 20;
/// CTA_PROTOINFO_TCP, CTA_PROTOINFO_SCTP; CTA_PROTOINFO_TCP_STATE, CTA_PROTOINFO_SCTP_STATE.
const TCP_INFO: u16 = 1;
const SCTP_INFO: u16 = 3;
const INFO_STATE: u16 = 1;
/// CTA_TIMESTAMP_START, CTA_TIMESTAMP_STOP.
const START: u16 = 1;
const STOP: u16 = 2;
/// IPS_SEEN_REPLY, IPS_ASSURED.
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;

/// `enum tcp_conntrack`.
const TCP_STATES: [&str; 10] = [
    "none",
    "syn_sent",
    "syn_recv",
    "established",
    "fin_wait",
    "close_wait",
    "last_ack",
    "time_wait",
    "close",
    "syn_sent2",
];
/// `enum sctp_conntrack`.
const SCTP_STATES: [&str; 10] = [
    "none",
    "closed",
    "cookie_wait",
    "cookie_echoed",
    "established",
    "shutdown_sent",
    "shutdown_recd",
    "shutdown_ack_sent",
    "heartbeat_sent",
    "heartbeat_acked",
];

/// A tracked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// Its addresses and ports.
    pub entry: TrackedFlow,
    pub protocol: Protocol,
    /// For TCP and SCTP, the kernel's name of the state in lower case. For UDP: `unanswered`,
    /// `answered`, or `assured` (answered, and the client sent more).
    pub state: Option<&'static str>,
    /// When it began, since 1970. The kernel knows it if `net.netfilter.nf_conntrack_timestamp` was
    /// on by then.
    pub began: Option<Duration>,
    /// When it ended, since 1970.
    pub ended: Option<Duration>,
}

impl Tracked {
    /// Parses an entry of a dump or an event; `None` for what [`denizen_conntrack::parse`] skips, and
    /// for a protocol without ports.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let entry = denizen_conntrack::parse(message, MarkBit::FORBIDDEN.mask())?;
        let attributes = message.attributes();
        let times = attributes.nested(TIMESTAMP);
        let time = |kind| {
            let nanoseconds = times.find(kind)?.try_into().ok().map(u64::from_be_bytes)?;
            Some(Duration::from_nanos(nanoseconds))
        };
        let protocol = entry.protocol()?;
        let state = state(protocol, attributes);
        Some(Self { entry, protocol, state, began: time(START), ended: time(STOP) })
    }

    /// Its duration so far, or until it ended. Times are since 1970.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        Some(self.ended.unwrap_or(now).saturating_sub(self.began?))
    }
}

fn state(protocol: Protocol, attributes: Attributes<'_>) -> Option<&'static str> {
    let named = |info, names: &[&'static str]| {
        let number = attributes.nested(PROTOCOL_INFO).nested(info).find(INFO_STATE)?;
        names.get(usize::from(*number.first()?)).copied()
    };
    match protocol {
        Protocol::Tcp => named(TCP_INFO, &TCP_STATES),
        Protocol::Sctp => named(SCTP_INFO, &SCTP_STATES),
        Protocol::Udp => attributes.find_u32(STATUS).map(|status| match status {
            status if status & SEEN_REPLY == 0 => "unanswered",
            status if status & ASSURED == 0 => "answered",
            _ => "assured",
        }),
    }
}
