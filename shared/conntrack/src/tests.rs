//! Netlink messages about entries.

mod answered;

use std::net::SocketAddr;

use super::message::{parse, write_dump, write_treatment};
use denizen_netlink::{Attributes, Writer, parse_messages};
use denizen_packet::{Family, FlowSelection, Protocol, TrackedFlow, Transport, Treatment};

/// The bit of the mark.
const BIT: u32 = 0x20;

fn entry(protocol: Protocol, source: &str, destination: &str, reply_source: &str) -> TrackedFlow {
    let [source, destination, reply_source] =
        [source, destination, reply_source].map(|end| end.parse().expect(end));
    TrackedFlow {
        id: 7,
        transport: Transport::Named(protocol),
        source,
        destination,
        reply_source,
        reply_destination: source,
        is_marked: false,
        is_mid_stream: false,
        is_unanswered_syn: protocol == Protocol::Tcp,
    }
}

/// Of ICMP over IPv4 and IPv6, the kernel has an id, a type and a code. Of protocols that it does
/// not know it has the number alone.
fn put_transport(writer: &mut Writer, transport: Transport, ends: [SocketAddr; 2]) {
    let v6 = ends[0].is_ipv6();
    let number = match transport {
        Transport::Named(protocol) => protocol.number(),
        Transport::Icmp { .. } => {
            if v6 {
                58
            } else {
                1
            }
        }
        Transport::Other { number, .. } => number,
    };
    writer.put(1, &[number]);
    match transport {
        Transport::Named(_) => {
            writer.put(2, &ends[0].port().to_be_bytes());
            writer.put(3, &ends[1].port().to_be_bytes());
        }
        Transport::Icmp { id, kind, code } => {
            let first = if v6 { 7 } else { 4 };
            writer.put(first, &id.to_be_bytes());
            writer.put(first + 1, &[kind]);
            writer.put(first + 2, &[code]);
        }
        Transport::Other { keys: [0, 0], .. } => {}
        Transport::Other { keys, .. } => {
            writer.put(2, &keys[0].to_be_bytes());
            writer.put(3, &keys[1].to_be_bytes());
        }
    }
}

/// The kernel's message for a flow, in a zone or not.
fn dumped(entry: &TrackedFlow, zone: bool) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin_message(1 << 8, 0, 1, 2, 0);
    let reply = (entry.reply_source, entry.source);
    for (kind, (source, destination)) in [(1, (entry.source, entry.destination)), (2, reply)] {
        let tuple = writer.begin(kind);
        let addresses = writer.begin(1);
        for (n, end) in [(0, source), (1, destination)] {
            match end.ip() {
                std::net::IpAddr::V4(ip) => writer.put(1 + n, &ip.octets()),
                std::net::IpAddr::V6(ip) => writer.put(3 + n, &ip.octets()),
            }
        }
        writer.end(addresses);
        let ports = writer.begin(2);
        put_transport(&mut writer, entry.transport, [source, destination]);
        writer.end(ports);
        writer.end(tuple);
    }
    // Another's bits count for nothing.
    writer.put_u32(8, if entry.is_marked { u32::MAX } else { !0x20 });
    // Confirmed, translated, and answered.
    writer.put_u32(3, if entry.is_unanswered_syn { 0x28 } else { 0x2a });
    let (info, tcp) = (writer.begin(4), writer.begin(1));
    writer.put(1, &[1]);
    // After a SYN the kernel may be liberal about one direction.
    for (kind, is_liberal) in [(4, true), (5, entry.is_mid_stream)] {
        writer.put(kind, &[if is_liberal { 0x0a } else { 0x02 }, 0]);
    }
    writer.end(tcp);
    writer.end(info);
    writer.put_u32(12, entry.id);
    if zone {
        writer.put(18, &7_u16.to_be_bytes());
    }
    writer.end_message(message);
    writer.into_bytes()
}

fn parsed(bytes: &[u8]) -> Option<TrackedFlow> {
    parse_messages(bytes).next().and_then(|message| parse(&message, BIT))
}

fn samples() -> [TrackedFlow; 6] {
    let [v4, v6] = ["10.1.0.9:0", "[fd00::9]:0"];
    let of = |transport, end| TrackedFlow { transport, ..entry(Protocol::Udp, end, end, end) };
    let icmp = Transport::Icmp { id: 0x1234, kind: 8, code: 0 };
    [
        entry(Protocol::Udp, "10.1.0.9:4000", "10.96.0.1:53", "10.1.0.1:5353"),
        entry(Protocol::Sctp, "[fd00::9]:4000", "[fd00:96::1]:53", "[fd00::1]:5353"),
        of(icmp, v4),
        of(icmp, v6),
        of(Transport::Other { number: 47, keys: [7, 9] }, v4),
        of(Transport::Other { number: 253, keys: [0, 0] }, v6),
    ]
}

#[test]
fn dumped_entries_are_parsed() {
    for entry in samples() {
        let marked = TrackedFlow { is_marked: true, ..entry };
        let (late, syn) = (
            TrackedFlow { is_mid_stream: true, ..entry },
            TrackedFlow { is_unanswered_syn: true, ..entry },
        );
        for entry in [entry, marked, late, syn] {
            assert_eq!(parsed(&dumped(&entry, false)), Some(entry));
            assert_eq!(parsed(&dumped(&entry, true)), None, "of another zone");
        }
    }
}

#[test]
fn a_truncated_message_is_no_entry() {
    for entry in samples() {
        let whole = dumped(&entry, false);
        for end in 20..whole.len() {
            let mut cut = whole[..end].to_vec();
            cut[..4].copy_from_slice(&(end as u32).to_ne_bytes());
            assert_eq!(parsed(&cut), None, "cut at {end}");
        }
    }
}

/// A request to delete without a tuple would empty the whole table, and one that does not say which
/// bits of a mark it means would clear others' bits.
#[test]
fn a_request_has_the_whole_tuple_and_the_id_or_one_bit_of_the_mark() {
    let cases = [
        (Treatment::Delete, 0x102, vec![1, 12]),
        (Treatment::DeleteUnanswered, 0x102, vec![1, 12]),
        (Treatment::Mark, 0x100, vec![1, 8, 21]),
        (Treatment::Unmark, 0x100, vec![1, 8, 21]),
    ];
    for (entry, (treatment, kind, parts)) in
        samples().into_iter().flat_map(|entry| cases.clone().map(|case| (entry, case)))
    {
        let mut writer = Writer::default();
        write_treatment(&mut writer, &entry, treatment, BIT, 0, 3);
        let message = parse_messages(writer.bytes()).next().expect("one message");
        let attributes = message.attributes();
        assert_eq!((message.kind, message.sequence), (kind, 3));
        let kinds =
            |attributes: Attributes<'_>| attributes.map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(kinds(attributes), parts);
        let (id, mark, mask) = match treatment {
            Treatment::Delete | Treatment::DeleteUnanswered => (Some(entry.id), None, None),
            Treatment::Mark => (None, Some(0x20), Some(0x20)),
            Treatment::Unmark => (None, Some(0), Some(0x20)),
        };
        assert_eq!([12, 8, 21].map(|kind| attributes.find_u32(kind)), [id, mark, mask]);
        let tuple = attributes.nested(1);
        assert_eq!(kinds(tuple), [1, 2]);
        let v6 = entry.destination.is_ipv6();
        assert_eq!(kinds(tuple.nested(1)), if v6 { [3, 4] } else { [1, 2] });
        let transport = match entry.transport {
            Transport::Icmp { .. } if v6 => vec![1, 7, 8, 9],
            Transport::Icmp { .. } => vec![1, 4, 5, 6],
            Transport::Named(_) | Transport::Other { .. } => vec![1, 2, 3],
        };
        assert_eq!(kinds(tuple.nested(2)), transport);
    }
}

/// One that a server sends data on, and from which nothing came back yet.
#[test]
fn what_began_without_a_syn_is_no_unanswered_syn() {
    let syn = entry(Protocol::Tcp, "10.1.0.9:4000", "10.96.0.1:53", "10.1.0.1:5353");
    let mut bytes = dumped(&syn, false);
    assert_eq!(parsed(&bytes), Some(syn));
    let state = [5, 0, 1, 0, 1];
    let at = bytes.windows(state.len()).position(|window| window == state).expect("its state");
    bytes[at + 4] = 3;
    assert_eq!(parsed(&bytes), Some(TrackedFlow { is_unanswered_syn: false, ..syn }));
}

/// The kernel leaves out what was answered, however much that is.
#[test]
fn a_dump_of_unanswered_syns_asks_for_them_alone() {
    let part = |unanswered_syns| FlowSelection {
        family: Family::V4,
        protocol: Some(Protocol::Tcp),
        unanswered_syns,
    };
    for (unanswered, status) in [(false, [None; 2]), (true, [Some(0), Some(2)])] {
        let mut writer = Writer::default();
        write_dump(&mut writer, 1, part(unanswered));
        let message = parse_messages(writer.bytes()).next().expect("one message");
        assert_eq!([3, 26].map(|kind| message.attributes().find_u32(kind)), status);
    }
}
