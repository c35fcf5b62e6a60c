//! One entry of the conntrack table with its state and age, as in netlink. Pure.

use std::time::Duration;

use denizen_netlink::{Attributes, Message};
use denizen_plan::MarkBit;

use denizen_model::Protocol;
use denizen_packet::TrackedFlow;

// linux/netfilter/nfnetlink_conntrack.h.
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMESTAMP: u16 = 20;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_SCTP: u16 = 3;
/// `CTA_PROTOINFO_TCP_STATE` and `CTA_PROTOINFO_SCTP_STATE`.
const INFO_STATE: u16 = 1;
const CTA_TIMESTAMP_START: u16 = 1;
const CTA_TIMESTAMP_STOP: u16 = 2;
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// Its addresses and ports.
    pub entry: TrackedFlow,
    pub protocol: Protocol,
    /// For TCP and SCTP, the kernel's name of the state in lower case. For UDP: `unanswered`,
    /// `answered`, or `assured` (answered, and the client sent more).
    pub state: Option<&'static str>,
    /// When it began, since 1970. The kernel knows the time if
    /// `net.netfilter.nf_conntrack_timestamp` was already on.
    pub began: Option<Duration>,
    /// When it ended, since 1970.
    pub ended: Option<Duration>,
}

impl Tracked {
    /// Parses an entry of a dump or an event; `None` for what [`denizen_conntrack::parse`] skips,
    /// and for a protocol without ports.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let entry = denizen_conntrack::parse(message, MarkBit::FORBIDDEN.mask())?;
        let attributes = message.attributes();
        let times = attributes.nested(CTA_TIMESTAMP);
        let time = |kind| {
            let nanoseconds = times.find(kind)?.try_into().ok().map(u64::from_be_bytes)?;
            Some(Duration::from_nanos(nanoseconds))
        };
        let protocol = entry.protocol()?;
        let state = state(protocol, attributes);
        Some(Self {
            entry,
            protocol,
            state,
            began: time(CTA_TIMESTAMP_START),
            ended: time(CTA_TIMESTAMP_STOP),
        })
    }

    /// Its duration so far, or until it ended. Times are since 1970.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        Some(self.ended.unwrap_or(now).saturating_sub(self.began?))
    }
}

fn state(protocol: Protocol, attributes: Attributes<'_>) -> Option<&'static str> {
    let named = |info, names: &[&'static str]| {
        let number = attributes.nested(CTA_PROTOINFO).nested(info).find(INFO_STATE)?;
        names.get(usize::from(*number.first()?)).copied()
    };
    match protocol {
        Protocol::Tcp => named(CTA_PROTOINFO_TCP, &TCP_STATES),
        Protocol::Sctp => named(CTA_PROTOINFO_SCTP, &SCTP_STATES),
        Protocol::Udp => attributes.find_u32(CTA_STATUS).map(|status| match status {
            status if status & IPS_SEEN_REPLY == 0 => "unanswered",
            status if status & IPS_ASSURED == 0 => "answered",
            _ => "assured",
        }),
    }
}
