//! One entry of the conntrack table, as in netlink (`linux/netfilter/nfnetlink_conntrack.h`). Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::libc;

use denizen_model::{Family, Protocol, family_of};
use denizen_netlink::{Attributes, Message, Writer};
use denizen_plan::MarkBit;

/// IPCTNL_MSG_CT_NEW (which, without NLM_F_CREATE, changes an entry), _GET and _DELETE.
const CHANGE: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_PROTOINFO, CTA_MARK, CTA_ID, CTA_ZONE,
/// CTA_MARK_MASK, CTA_FILTER, CTA_STATUS_MASK.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const MARK: u16 = 8;
const ID: u16 = 12;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;
const FILTER: u16 = 25;
const STATUS_MASK: u16 = 26;
/// CTA_TUPLE_IP, CTA_TUPLE_PROTO, CTA_TUPLE_ZONE.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
/// CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT.
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// CTA_PROTO_ICMP_ID and CTA_PROTO_ICMPV6_ID, each followed by its type and its code.
const ICMP_ID: u16 = 4;
const ICMPV6_ID: u16 = 7;

/// A tracked flow, in the default zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The kernel's id, which differs even between entries with the same addresses and ports.
    pub id: u32,
    /// What it carries.
    pub transport: Transport,
    /// The sender of the first packet.
    pub source: SocketAddr,
    /// The destination of the first packet.
    pub destination: SocketAddr,
    /// The source of answers: [`Self::destination`], unless DNAT changed it.
    pub reply_source: SocketAddr,
    /// The destination of answers: [`Self::source`], unless masquerade changed it.
    pub reply_destination: SocketAddr,
    /// Whether its mark has [`MarkBit::FORBIDDEN`].
    pub is_forbidden: bool,
    /// Whether conntrack took a packet from the middle of a TCP connection for its first one: then
    /// its source may be the server.
    pub is_mid_stream: bool,
    /// Whether it is a TCP connection of which conntrack saw nothing but the client's SYN. If it is
    /// deleted, no connection ends: the client's next SYN begins anew.
    pub is_unanswered_syn: bool,
}

/// IPS_SEEN_REPLY.
const SEEN_REPLY: u32 = 1 << 1;
/// CTA_PROTOINFO_TCP, and in it CTA_PROTOINFO_TCP_STATE, _TCP_FLAGS_ORIGINAL and _REPLY.
const TCP_INFO: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS: [u16; 2] = [4, 5];
/// TCP_CONNTRACK_SYN_SENT.
const SYN_SENT: u8 = 1;
/// IP_CT_TCP_FLAG_BE_LIBERAL: of both directions if conntrack saw no beginning.
const IS_LIBERAL: u8 = 0x08;

/// What a flow carries, as its first packet has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A protocol that services and policies can name. Its ports are at the ends of the entry;
    /// those of other flows have port 0.
    Named(Protocol),
    /// ICMP, or ICMPv6 if the family is IPv6: a question that is answered, as an echo request is.
    Icmp {
        /// By which answers are told apart.
        id: u16,
        /// Of the message.
        kind: u8,
        /// Of the message.
        code: u8,
    },
    /// Another protocol.
    Other {
        /// Its number in the IP header.
        number: u8,
        /// What conntrack has in place of source and destination port, such as GRE's keys; 0 if
        /// the protocol has neither.
        keys: [u16; 2],
    },
}

impl Transport {
    fn parse(family: Family, attributes: Attributes<'_>) -> Option<Self> {
        let number = *attributes.find(PROTOCOL_NUMBER)?.first()?;
        if let Some(protocol) = Protocol::from_number(number) {
            return Some(Self::Named(protocol));
        }
        let (icmp, id) = icmp(family);
        if number == icmp {
            let byte = |kind| attributes.find(kind)?.first().copied();
            return Some(Self::Icmp {
                id: two_bytes(attributes, id)?,
                kind: byte(id + 1)?,
                code: byte(id + 2)?,
            });
        }
        let key = |kind| two_bytes(attributes, kind).unwrap_or_default();
        Some(Self::Other { number, keys: [SOURCE_PORT, DESTINATION_PORT].map(key) })
    }

    /// Appends it to a tuple. The kernel demands the attributes of the protocol, and ignores
    /// others.
    fn write(self, writer: &mut Writer, family: Family, ports: [u16; 2]) {
        let number = |writer: &mut Writer, number| writer.put(PROTOCOL_NUMBER, &[number]);
        let put_ports = |writer: &mut Writer, [source, destination]: [u16; 2]| {
            writer.put(SOURCE_PORT, &source.to_be_bytes());
            writer.put(DESTINATION_PORT, &destination.to_be_bytes());
        };
        match self {
            Self::Named(protocol) => {
                number(writer, protocol.number());
                put_ports(writer, ports);
            }
            Self::Icmp { id, kind, code } => {
                let (icmp, of_id) = icmp(family);
                number(writer, icmp);
                writer.put(of_id, &id.to_be_bytes());
                writer.put(of_id + 1, &[kind]);
                writer.put(of_id + 2, &[code]);
            }
            Self::Other { number: its, keys } => {
                number(writer, its);
                put_ports(writer, keys);
            }
        }
    }
}

/// The number of a family's ICMP in the IP header, and the attribute of its id.
fn icmp(family: Family) -> (u8, u16) {
    match family {
        Family::V4 => (libc::IPPROTO_ICMP as u8, ICMP_ID),
        Family::V6 => (libc::IPPROTO_ICMPV6 as u8, ICMPV6_ID),
    }
}

/// A part of the kernel's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The family of its packets.
    pub family: Family,
    /// What the entries carry; `None` for everything.
    pub protocol: Option<Protocol>,
    /// Only [`Entry::is_unanswered_syn`].
    pub unanswered_syns: bool,
}

impl Part {
    /// Whether an entry is in it.
    pub fn has(&self, entry: &Entry) -> bool {
        self.family == entry.family()
            && self.protocol.is_none_or(|protocol| entry.protocol() == Some(protocol))
            && (!self.unanswered_syns || entry.is_unanswered_syn)
    }

    /// Whether an entry is in it for as long as it lasts.
    pub fn keeps(&self, entry: &Entry) -> bool {
        !self.unanswered_syns && self.has(entry)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.fmt(f)?;
        if let Some(protocol) = self.protocol {
            write!(f, ", {protocol}")?;
        }
        if self.unanswered_syns { f.write_str(", unanswered SYNs") } else { Ok(()) }
    }
}

/// What is done to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It is deleted: the next packet begins a new connection.
    Delete,
    /// It is deleted unless it is no [`Entry::is_unanswered_syn`] any more.
    DeleteUnanswered,
    /// It gets [`MarkBit::FORBIDDEN`], so that the firewall drops its packets. If it were deleted,
    /// the next packet of its server would begin a connection, of which the client's packets would
    /// be the answers.
    Forbid,
    /// It loses that bit.
    Permit,
}

impl Treatment {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Delete, Self::DeleteUnanswered, Self::Forbid, Self::Permit];

    /// Whether the entry is gone then.
    pub fn deletes(self) -> bool {
        match self {
            Self::Delete | Self::DeleteUnanswered => true,
            Self::Forbid | Self::Permit => false,
        }
    }
}

impl Entry {
    /// Parses an entry of a dump. `None` for an entry in a zone of its own (its packets did not
    /// pass our chains), or an incomplete one.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes();
        let (original, reply) = (attributes.nested(ORIGINAL), attributes.nested(REPLY));
        let zoned = [original, reply].iter().any(|tuple| tuple.find(TUPLE_ZONE).is_some());
        if zoned || attributes.find(ZONE).is_some() {
            return None;
        }
        let (transport, source, destination) = ends(original)?;
        let (_, reply_source, reply_destination) = ends(reply)?;
        Some(Self {
            id: attributes.find_u32(ID)?,
            transport,
            source,
            destination,
            reply_source,
            reply_destination,
            // The kernel leaves out a mark of 0.
            is_forbidden: attributes
                .find_u32(MARK)
                .is_some_and(|mark| mark & MarkBit::FORBIDDEN.mask() != 0),
            is_mid_stream: is_mid_stream(attributes),
            is_unanswered_syn: is_unanswered_syn(attributes),
        })
    }

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

    /// Appends a request for a treatment of this entry. A newer entry with the same addresses is
    /// not deleted; but its mark would be changed, for then the kernel does not compare the id.
    /// That lets nothing through that is forbidden: the newer one began under the new rules, and
    /// none is marked but by the thread that does all this. One that is marked though it is
    /// permitted, since it goes to another endpoint, is found by the second search.
    pub fn write(&self, treatment: Treatment, writer: &mut Writer, flags: u16, sequence: u32) {
        let change = match treatment {
            Treatment::Delete | Treatment::DeleteUnanswered => DELETE,
            Treatment::Forbid | Treatment::Permit => CHANGE,
        };
        let family = nf_family(self.family());
        let message = writer.begin_message(kind(change), flags, sequence, family, 0);
        self.write_tuple(writer);
        let bit = MarkBit::FORBIDDEN.mask();
        let mark = match treatment {
            Treatment::Delete | Treatment::DeleteUnanswered => None,
            Treatment::Forbid => Some(bit),
            Treatment::Permit => Some(0),
        };
        match mark {
            None => writer.put_u32(ID, self.id),
            Some(mark) => {
                writer.put_u32(MARK, mark);
                // The other bits are others'.
                writer.put_u32(MARK_MASK, bit);
            }
        }
        writer.end_message(message);
    }

    /// Appends a request for the current state of the entry with these addresses.
    pub fn write_get(&self, writer: &mut Writer, sequence: u32) {
        let message = writer.begin_message(kind(GET), 0, sequence, nf_family(self.family()), 0);
        self.write_tuple(writer);
        writer.end_message(message);
    }

    fn write_tuple(&self, writer: &mut Writer) {
        let tuple = writer.begin(ORIGINAL);
        let addresses = writer.begin(TUPLE_IP);
        for (kind, end) in [(0, self.source), (1, self.destination)] {
            match end.ip() {
                IpAddr::V4(ip) => writer.put(1 + kind, &ip.octets()),
                IpAddr::V6(ip) => writer.put(3 + kind, &ip.octets()),
            }
        }
        writer.end(addresses);
        let ports = writer.begin(TUPLE_PROTOCOL);
        let numbers = [self.source, self.destination].map(|end| end.port());
        self.transport.write(writer, self.family(), numbers);
        writer.end(ports);
        writer.end(tuple);
    }
}

/// Appends a request for a part of the table. Kernels before 5.8 ignore the protocol and return the
/// whole family; those before 5.15 ignore the status and return what was answered too.
pub fn write_dump(writer: &mut Writer, sequence: u32, part: Part) {
    const ORIGINAL_FLAGS: u16 = 1;
    /// CTA_FILTER_F_CTA_PROTO_NUM in the kernel's nf_internals.h. (Filters by address do not work:
    /// for IPv6 the kernel's comparison is inverted.)
    const BY_PROTOCOL: u32 = 1 << 3;
    let flags = libc::NLM_F_DUMP as u16;
    let message = writer.begin_message(kind(GET), flags, sequence, nf_family(part.family), 0);
    if let Some(protocol) = part.protocol {
        let tuple = writer.begin(ORIGINAL);
        let ports = writer.begin(TUPLE_PROTOCOL);
        writer.put(PROTOCOL_NUMBER, &[protocol.number()]);
        writer.end(ports);
        writer.end(tuple);
        let filter = writer.begin(FILTER);
        // Unlike other numbers here, this one is in host byte order.
        writer.put(ORIGINAL_FLAGS, &BY_PROTOCOL.to_ne_bytes());
        writer.end(filter);
    }
    if part.unanswered_syns {
        writer.put_u32(STATUS, 0);
        writer.put_u32(STATUS_MASK, SEEN_REPLY);
    }
    writer.end_message(message);
}

fn kind(message: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | message
}

fn nf_family(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

fn is_mid_stream(attributes: Attributes<'_>) -> bool {
    let tcp = attributes.nested(PROTOCOL_INFO).nested(TCP_INFO);
    let flags = TCP_FLAGS.map(|kind| tcp.find(kind).and_then(|flags| flags.first()));
    flags.into_iter().all(|flags| flags.is_some_and(|flags| flags & IS_LIBERAL != 0))
}

fn is_unanswered_syn(attributes: Attributes<'_>) -> bool {
    let tcp = attributes.nested(PROTOCOL_INFO).nested(TCP_INFO);
    tcp.find(TCP_STATE) == Some(&[SYN_SENT])
        && attributes.find_u32(STATUS).is_some_and(|status| status & SEEN_REPLY == 0)
}

fn two_bytes(attributes: Attributes<'_>, kind: u16) -> Option<u16> {
    Some(u16::from_be_bytes(attributes.find(kind)?.try_into().ok()?))
}

/// What a tuple carries, its source and its destination.
fn ends(tuple: Attributes<'_>) -> Option<(Transport, SocketAddr, SocketAddr)> {
    let (addresses, ports) = (tuple.nested(TUPLE_IP), tuple.nested(TUPLE_PROTOCOL));
    let address = |kind: u16| match addresses.find(1 + kind) {
        Some(v4) => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?))),
        None => {
            let v6 = <[u8; 16]>::try_from(addresses.find(3 + kind)?).ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(v6)))
        }
    };
    let (source, destination) = (address(0)?, address(1)?);
    let transport = Transport::parse(family_of(destination), ports)?;
    let port = |kind| match transport {
        Transport::Named(_) => two_bytes(ports, kind),
        Transport::Icmp { .. } | Transport::Other { .. } => Some(0),
    };
    let source = SocketAddr::new(source, port(SOURCE_PORT)?);
    let destination = SocketAddr::new(destination, port(DESTINATION_PORT)?);
    Some((transport, source, destination))
}
