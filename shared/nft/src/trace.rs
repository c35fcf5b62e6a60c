//! The kernel's messages about packets that a rule marked for tracing ([`Statement::Trace`]):
//! received, and decoded.
//!
//! The kernel sends a message for each rule of a chain that matched the packet, and one when the
//! chain ends (for a base chain: with its policy). The first message of a base chain has the
//! packet's headers, as they are at that hook.
//!
//! [`Statement::Trace`]: crate::Statement::Trace

use std::net::IpAddr;
use std::time::Duration;

use denizen_netlink::{Attributes, Message, NetlinkError, Socket};
use nix::libc;

use crate::batch::kind;
use crate::bytes::read_address;
use crate::family::TableFamily;
use denizen_packet::Family;

/// `enum nf_tables_msg_types`.
const NFT_MSG_TRACE: i32 = 17;
/// `enum nfnetlink_groups`.
const NFNLGRP_NFTRACE: libc::c_int = 9;

/// What a chain did to a traced packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceMessage {
    /// The kernel's number for the packet. It stays the same from hook to hook while the packet
    /// keeps its input interface; a later packet may get it again.
    pub id: u32,
    /// The family of the chain's table; `None` for a family that Denizen does not use.
    pub family: Option<TableFamily>,
    /// The name of the table that the packet is in.
    pub table: String,
    /// The name of the chain that the packet is in.
    pub chain: String,
    /// What happened in the chain.
    pub event: TraceEvent,
    /// The packet as it was then: only in the first message of a base chain.
    pub packet: Option<TracedPacket>,
}

/// What happened in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// A rule of the chain matched.
    Rule {
        /// The rule's handle.
        handle: u64,
        /// The verdict after the rule.
        verdict: TraceVerdict,
    },
    /// No further rule of the chain matched.
    NoRule,
    /// No rule of the chain decided: back to where it was called from.
    Return,
    /// No rule of the base chain decided: its policy did.
    Policy(TraceVerdict),
}

/// The verdict of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceVerdict {
    /// On with the next rule.
    Continue,
    /// The packet passes this base chain.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Back to where the chain was called from.
    Return,
    /// To a chain, and back.
    Jump(String),
    /// To a chain, not back.
    Goto(String),
    /// A program decides (`NF_QUEUE`).
    Queue,
    /// Another part of the kernel keeps the packet, or the verdict is unknown.
    Stolen,
}

/// A packet's headers, as far as the kernel shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPacket {
    /// The index of the input interface.
    pub input: Option<u32>,
    /// The index of the output interface.
    pub output: Option<u32>,
    /// The source address at this point.
    pub source: IpAddr,
    /// The destination address at this point.
    pub destination: IpAddr,
    /// The transport protocol's number.
    pub protocol: u8,
    /// Source and destination port, if the protocol has ports.
    pub ports: Option<(u16, u16)>,
    /// Distinguishes the packet from others of the same connection, and is not translated: IPv4's
    /// identification, and TCP's sequence number (0 if there is none).
    pub serial: (u16, u32),
}

/// Receives the messages of this network namespace.
#[derive(Debug)]
pub struct Tracer {
    socket: Socket,
}

impl Tracer {
    /// Receives from now on.
    ///
    /// # Errors
    /// [`NetlinkError::Io`]; without `CAP_NET_ADMIN`, too.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::open()?;
        socket.join(NFNLGRP_NFTRACE)?;
        Ok(Self { socket })
    }

    /// Waits for messages no longer than `wait`, and gives each to `each`. Returns whether there
    /// were any.
    ///
    /// # Errors
    /// [`NetlinkError::Overflow`] when messages were lost, else [`NetlinkError::Io`].
    pub fn receive(
        &mut self,
        wait: Duration,
        mut each: impl FnMut(TraceMessage),
    ) -> Result<bool, NetlinkError> {
        self.socket.set_timeout(wait)?;
        self.socket.receive(true, |message| {
            if let Some(message) = TraceMessage::decode(&message) {
                each(message);
            }
        })
    }
}

impl TraceMessage {
    /// What a rule or a policy decided; `None` if none did.
    pub fn verdict(&self) -> Option<&TraceVerdict> {
        match &self.event {
            TraceEvent::Rule { verdict, .. } | TraceEvent::Policy(verdict) => Some(verdict),
            TraceEvent::NoRule | TraceEvent::Return => None,
        }
    }

    /// Decodes a message (`enum nft_trace_attributes`); `None` if it is another, or not complete.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != kind(NFT_MSG_TRACE) {
            return None;
        }
        let attributes = message.attributes();
        Some(Self {
            id: attributes.find_u32(6)?,
            family: message.family().and_then(TableFamily::from_number),
            table: attributes.find_str(1)?.to_owned(),
            chain: attributes.find_str(2)?.to_owned(),
            event: event(attributes)?,
            packet: packet(attributes),
        })
    }
}

fn event(attributes: Attributes<'_>) -> Option<TraceEvent> {
    // `enum nft_trace_types`.
    const POLICY: u32 = 1;
    const RETURN: u32 = 2;
    const RULE: u32 = 3;
    match attributes.find_u32(4)? {
        POLICY => attributes.find_u32(16).map(|code| TraceEvent::Policy(verdict(code, ""))),
        RETURN => Some(TraceEvent::Return),
        RULE => {
            let Some(handle) = attributes.find(3) else { return Some(TraceEvent::NoRule) };
            let handle = handle.try_into().ok().map(u64::from_be_bytes)?;
            let decided = attributes.nested(5);
            let chain = decided.find_str(2).unwrap_or_default();
            Some(TraceEvent::Rule { handle, verdict: verdict(decided.find_u32(1)?, chain) })
        }
        _ => None,
    }
}

fn verdict(code: u32, chain: &str) -> TraceVerdict {
    match code as i32 {
        libc::NFT_CONTINUE => TraceVerdict::Continue,
        libc::NFT_JUMP => TraceVerdict::Jump(chain.to_owned()),
        libc::NFT_GOTO => TraceVerdict::Goto(chain.to_owned()),
        libc::NFT_RETURN => TraceVerdict::Return,
        // The upper bits hold other data, such as a queue's number.
        code => match code & 0xff {
            libc::NF_ACCEPT => TraceVerdict::Accept,
            libc::NF_DROP => TraceVerdict::Drop,
            libc::NF_QUEUE => TraceVerdict::Queue,
            _ => TraceVerdict::Stolen,
        },
    }
}

fn packet(attributes: Attributes<'_>) -> Option<TracedPacket> {
    let header = attributes.find(8)?;
    let version = match header.first()? >> 4 {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    let (protocol, addresses, identification) = match version {
        Family::V4 => (9, 12, header.get(4..6)),
        Family::V6 => (6, 8, None),
    };
    let address = |at: usize| read_address(version, header.get(at..)?);
    let transport = attributes.find(9).unwrap_or_default();
    let protocol = *header.get(protocol)?;
    let port = |at: usize| Some(u16::from_be_bytes(*transport.get(at..)?.first_chunk()?));
    let has_ports =
        [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP].contains(&i32::from(protocol));
    let sequence = transport.get(4..).and_then(|bytes| bytes.first_chunk().copied());
    let sequence = sequence.filter(|_| i32::from(protocol) == libc::IPPROTO_TCP);
    Some(TracedPacket {
        input: attributes.find_u32(10),
        output: attributes.find_u32(12),
        source: address(addresses)?,
        destination: address(addresses + version.address_len())?,
        protocol,
        ports: port(0).zip(port(2)).filter(|_| has_ports),
        serial: (
            identification.map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]])),
            sequence.map_or(0, u32::from_be_bytes),
        ),
    })
}

#[cfg(test)]
mod tests;
