//! One entry of the conntrack table, as in netlink (`linux/netfilter/nfnetlink_conntrack.h`). Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use denizen_netlink::{Attributes, Message, Writer};
use denizen_packet::{
    Family, FlowSelection, Protocol, TrackedFlow, Transport, Treatment, family_of,
};
use nix::libc;

/// Without `NLM_F_CREATE` it changes an entry.
const IPCTNL_MSG_CT_NEW: u16 = 0;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_MARK_MASK: u16 = 21;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;

const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;

const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// The two numbers that follow are the attributes of type and code; for ICMPv6 likewise.
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMPV6_ID: u16 = 7;

const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;

const IPS_SEEN_REPLY: u32 = 1 << 1;
const TCP_CONNTRACK_SYN_SENT: u8 = 1;
/// Set in both directions if conntrack did not see the connection's beginning.
const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 0x08;

/// Parses an entry of a dump or an event; `mark_bit` is the bit of [`TrackedFlow::is_marked`].
/// `None` for an entry in a zone of its own (its packets did not pass our chains), or an incomplete
/// one.
pub fn parse(message: &Message<'_>, mark_bit: u32) -> Option<TrackedFlow> {
    let attributes = message.attributes();
    let (original, reply) = (attributes.nested(CTA_TUPLE_ORIG), attributes.nested(CTA_TUPLE_REPLY));
    let zoned = [original, reply].iter().any(|tuple| tuple.find(CTA_TUPLE_ZONE).is_some());
    if zoned || attributes.find(CTA_ZONE).is_some() {
        return None;
    }
    let (transport, source, destination) = parse_tuple(original)?;
    let (_, reply_source, reply_destination) = parse_tuple(reply)?;
    Some(TrackedFlow {
        id: attributes.find_u32(CTA_ID)?,
        transport,
        source,
        destination,
        reply_source,
        reply_destination,
        // The kernel leaves out a mark of 0.
        is_marked: attributes.find_u32(CTA_MARK).is_some_and(|mark| mark & mark_bit != 0),
        is_mid_stream: is_mid_stream(attributes),
        is_unanswered_syn: is_unanswered_syn(attributes),
    })
}

/// Appends a request for a treatment of an entry. A newer entry with the same addresses is not
/// deleted; but its mark would be changed, since the kernel does not compare the id then.
pub fn write_treatment(
    writer: &mut Writer,
    flow: &TrackedFlow,
    treatment: Treatment,
    mark_bit: u32,
    flags: u16,
    sequence: u32,
) {
    let request = match treatment {
        Treatment::Delete | Treatment::DeleteUnanswered => IPCTNL_MSG_CT_DELETE,
        Treatment::Mark | Treatment::Unmark => IPCTNL_MSG_CT_NEW,
    };
    let message =
        writer.begin_message(message_type(request), flags, sequence, nf_family(flow.family()), 0);
    write_tuple(writer, CTA_TUPLE_ORIG, flow.transport, flow.source, flow.destination);
    let mark = match treatment {
        Treatment::Delete | Treatment::DeleteUnanswered => None,
        Treatment::Mark => Some(mark_bit),
        Treatment::Unmark => Some(0),
    };
    match mark {
        None => writer.put_u32(CTA_ID, flow.id),
        Some(mark) => {
            writer.put_u32(CTA_MARK, mark);
            // The other bits belong to other programs.
            writer.put_u32(CTA_MARK_MASK, mark_bit);
        }
    }
    writer.end_message(message);
}

/// Appends a request for the current state of the entry with these addresses.
pub fn write_get(writer: &mut Writer, flow: &TrackedFlow, sequence: u32) {
    let get = message_type(IPCTNL_MSG_CT_GET);
    let message = writer.begin_message(get, 0, sequence, nf_family(flow.family()), 0);
    write_tuple(writer, CTA_TUPLE_ORIG, flow.transport, flow.source, flow.destination);
    writer.end_message(message);
}

/// Appends a request for a part of the table. Kernels before 5.8 ignore the protocol and return the
/// whole family; those before 5.15 ignore the status and return answered connections too.
pub fn write_dump(writer: &mut Writer, sequence: u32, selection: FlowSelection) {
    const CTA_FILTER_ORIG_FLAGS: u16 = 1;
    /// In the kernel's nf_internals.h. (Filters by address do not work: for IPv6 the kernel's
    /// comparison is inverted.)
    const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
    let (get, flags) = (message_type(IPCTNL_MSG_CT_GET), libc::NLM_F_DUMP as u16);
    let message = writer.begin_message(get, flags, sequence, nf_family(selection.family), 0);
    if let Some(protocol) = selection.protocol {
        let tuple = writer.begin(CTA_TUPLE_ORIG);
        let transport = writer.begin(CTA_TUPLE_PROTO);
        writer.put(CTA_PROTO_NUM, &[protocol.number()]);
        writer.end(transport);
        writer.end(tuple);
        let filter = writer.begin(CTA_FILTER);
        // Unlike other numbers here, this one is in host byte order.
        writer.put(CTA_FILTER_ORIG_FLAGS, &CTA_FILTER_F_CTA_PROTO_NUM.to_ne_bytes());
        writer.end(filter);
    }
    if selection.unanswered_syns {
        writer.put_u32(CTA_STATUS, 0);
        writer.put_u32(CTA_STATUS_MASK, IPS_SEEN_REPLY);
    }
    writer.end_message(message);
}

fn message_type(request: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | request
}

fn nf_family(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

fn is_mid_stream(attributes: Attributes<'_>) -> bool {
    let tcp = attributes.nested(CTA_PROTOINFO).nested(CTA_PROTOINFO_TCP);
    [CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY].into_iter().all(|direction| {
        let flags = tcp.find(direction).and_then(|flags| flags.first());
        flags.is_some_and(|flags| flags & IP_CT_TCP_FLAG_BE_LIBERAL != 0)
    })
}

fn is_unanswered_syn(attributes: Attributes<'_>) -> bool {
    let tcp = attributes.nested(CTA_PROTOINFO).nested(CTA_PROTOINFO_TCP);
    tcp.find(CTA_PROTOINFO_TCP_STATE) == Some(&[TCP_CONNTRACK_SYN_SENT])
        && attributes.find_u32(CTA_STATUS).is_some_and(|status| status & IPS_SEEN_REPLY == 0)
}

/// What a tuple carries, its source and its destination.
fn parse_tuple(tuple: Attributes<'_>) -> Option<(Transport, SocketAddr, SocketAddr)> {
    let (addresses, ports) = (tuple.nested(CTA_TUPLE_IP), tuple.nested(CTA_TUPLE_PROTO));
    let address = |v4: u16, v6: u16| match addresses.find(v4) {
        Some(bytes) => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        None => {
            let bytes = <[u8; 16]>::try_from(addresses.find(v6)?).ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
    };
    let source = address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?;
    let destination = address(CTA_IP_V4_DST, CTA_IP_V6_DST)?;
    let transport = parse_transport(family_of(destination), ports)?;
    let port = |attribute| match transport {
        Transport::Named(_) => find_u16(ports, attribute),
        Transport::Icmp { .. } | Transport::Other { .. } => Some(0),
    };
    let source = SocketAddr::new(source, port(CTA_PROTO_SRC_PORT)?);
    let destination = SocketAddr::new(destination, port(CTA_PROTO_DST_PORT)?);
    Some((transport, source, destination))
}

pub(crate) fn write_tuple(
    writer: &mut Writer,
    attribute: u16,
    transport: Transport,
    source: SocketAddr,
    destination: SocketAddr,
) {
    let tuple = writer.begin(attribute);
    let addresses = writer.begin(CTA_TUPLE_IP);
    let ends =
        [(CTA_IP_V4_SRC, CTA_IP_V6_SRC, source), (CTA_IP_V4_DST, CTA_IP_V6_DST, destination)];
    for (v4, v6, end) in ends {
        match end.ip() {
            IpAddr::V4(ip) => writer.put(v4, &ip.octets()),
            IpAddr::V6(ip) => writer.put(v6, &ip.octets()),
        }
    }
    writer.end(addresses);
    let nested = writer.begin(CTA_TUPLE_PROTO);
    let ports = [source.port(), destination.port()];
    write_transport(writer, transport, family_of(destination.ip()), ports);
    writer.end(nested);
    writer.end(tuple);
}

fn parse_transport(family: Family, attributes: Attributes<'_>) -> Option<Transport> {
    let number = *attributes.find(CTA_PROTO_NUM)?.first()?;
    if let Some(protocol) = Protocol::from_number(number) {
        return Some(Transport::Named(protocol));
    }
    let (icmp, id) = icmp(family);
    if number == icmp {
        let byte = |attribute| attributes.find(attribute)?.first().copied();
        return Some(Transport::Icmp {
            id: find_u16(attributes, id)?,
            kind: byte(id + 1)?,
            code: byte(id + 2)?,
        });
    }
    let key = |attribute| find_u16(attributes, attribute).unwrap_or_default();
    Some(Transport::Other { number, keys: [CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT].map(key) })
}

/// The kernel demands the attributes of the protocol, and ignores others.
fn write_transport(writer: &mut Writer, transport: Transport, family: Family, ports: [u16; 2]) {
    let put_number = |writer: &mut Writer, number| writer.put(CTA_PROTO_NUM, &[number]);
    let put_ports = |writer: &mut Writer, [source, destination]: [u16; 2]| {
        writer.put(CTA_PROTO_SRC_PORT, &source.to_be_bytes());
        writer.put(CTA_PROTO_DST_PORT, &destination.to_be_bytes());
    };
    match transport {
        Transport::Named(protocol) => {
            put_number(writer, protocol.number());
            put_ports(writer, ports);
        }
        Transport::Icmp { id, kind, code } => {
            let (icmp, attribute) = icmp(family);
            put_number(writer, icmp);
            writer.put(attribute, &id.to_be_bytes());
            writer.put(attribute + 1, &[kind]);
            writer.put(attribute + 2, &[code]);
        }
        Transport::Other { number, keys } => {
            put_number(writer, number);
            put_ports(writer, keys);
        }
    }
}

/// The number of a family's ICMP in the IP header, and the attribute of its id.
fn icmp(family: Family) -> (u8, u16) {
    match family {
        Family::V4 => (libc::IPPROTO_ICMP as u8, CTA_PROTO_ICMP_ID),
        Family::V6 => (libc::IPPROTO_ICMPV6 as u8, CTA_PROTO_ICMPV6_ID),
    }
}

fn find_u16(attributes: Attributes<'_>, attribute: u16) -> Option<u16> {
    Some(u16::from_be_bytes(attributes.find(attribute)?.try_into().ok()?))
}
