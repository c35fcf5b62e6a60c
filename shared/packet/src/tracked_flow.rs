//! A flow as connection tracking knows it.

use std::net::SocketAddr;

use crate::{Family, Protocol, family_of};

/// A tracked flow, in the default zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackedFlow {
    /// The kernel's id, which differs even between entries with the same addresses and ports.
    pub id: u32,
    /// The transport protocol, with its ports or ICMP fields.
    pub transport: Transport,
    /// The sender of the first packet.
    pub source: SocketAddr,
    /// The destination of the first packet.
    pub destination: SocketAddr,
    /// The source of answers: [`Self::destination`], unless DNAT changed it.
    pub reply_source: SocketAddr,
    /// The destination of answers: [`Self::source`], unless masquerade changed it.
    pub reply_destination: SocketAddr,
    /// Whether the connection's mark has the bit that the reader of the entry chose.
    pub is_marked: bool,
    /// Whether conntrack took a packet from the middle of a TCP connection for its first one: then
    /// its source may be the server.
    pub is_mid_stream: bool,
    /// Whether it is a TCP connection of which conntrack has only seen the client's SYN. Its
    /// deletion ends no connection: the client's next SYN begins anew.
    pub is_unanswered_syn: bool,
}

/// What a flow carries, as its first packet has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A protocol that services and policies can name. Its ports are in the addresses of the flow;
    /// other flows have port 0 there.
    Named(Protocol),
    /// ICMP, or ICMPv6 if the family is IPv6: a request with an answer, such as an echo request.
    Icmp {
        /// Connects answers with their request.
        id: u16,
        /// The ICMP message's type.
        kind: u8,
        /// The ICMP message's code.
        code: u8,
    },
    /// A protocol that services and policies cannot name.
    Other {
        /// Its number in the IP header.
        number: u8,
        /// What conntrack has in place of source and destination port, such as GRE's keys; 0 if the
        /// protocol has nothing in their place.
        keys: [u16; 2],
    },
}

impl TrackedFlow {
    /// The family of its packets.
    pub fn family(&self) -> Family {
        family_of(self.destination.ip())
    }

    /// Its protocol, if services and policies can name it.
    pub fn protocol(&self) -> Option<Protocol> {
        match self.transport {
            Transport::Named(protocol) => Some(protocol),
            Transport::Icmp { .. } | Transport::Other { .. } => None,
        }
    }

    /// Whether DNAT changed its destination.
    pub fn is_translated(&self) -> bool {
        self.reply_source != self.destination
    }

    /// Whether masquerade changed its source address.
    pub fn is_masqueraded(&self) -> bool {
        self.reply_destination.ip() != self.source.ip()
    }
}
