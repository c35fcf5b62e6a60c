//! Commands as bytes, and what is read from the kernel's.

use std::net::IpAddr;
use std::num::NonZeroU32;

use denizen_netlink::{Attributes, Message, Writer, parse_messages};

use super::*;
use crate::message::{RTMSG, read_path, read_route};

mod kernel;

const OURS: u8 = 213;

fn key(destination: &str, metric: u32, table: u32) -> RouteKey {
    RouteKey { table, destination: destination.parse().expect("a prefix"), metric }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The header, then each attribute's number and bytes.
fn written(command: &RouteCommand) -> String {
    let mut writer = Writer::default();
    command.write(&mut writer);
    let attributes = Attributes::new(writer.bytes())
        .map(|(attribute, bytes)| format!(" {attribute}={}", hex(bytes)));
    hex(&command.header(OURS)) + &attributes.collect::<String>()
}

/// By linux/rtnetlink.h, on a little-endian machine. The header: family, prefix lengths of the
/// destination and the source, TOS, table, protocol, scope, type, flags.
#[cfg(target_endian = "little")]
#[test]
fn commands_are_written_as_the_kernel_reads_them() {
    let unicast = RouteTarget::Unicast { gateway: Some(address("192.0.2.7")), link: 3 };
    let neighbour = RouteTarget::Unicast { gateway: None, link: 3 };
    let source = Some(address("192.0.2.1"));
    let cases = [
        (
            RouteCommand::Add(Route {
                key: key("10.1.2.0/24", 1190, 254),
                target: unicast,
                source,
                window: None,
            }),
            "0218000000d5000100000000 15=fe000000 1=0a010200 6=a6040000 5=c0000207 4=03000000 \
             7=c0000201",
        ),
        (
            RouteCommand::Replace(Route {
                key: key("10.1.2.0/24", 1190, 254),
                target: neighbour,
                source: None,
                window: None,
            }),
            "0218000000d5fd0100000000 15=fe000000 1=0a010200 6=a6040000 4=03000000",
        ),
        (
            RouteCommand::Add(Route {
                key: key("fd96::10/128", 1, 255),
                target: RouteTarget::Local { link: 1 },
                source: None,
                window: None,
            }),
            "0a80000000d5fe0200000000 15=ff000000 1=fd960000000000000000000000000010 6=01000000 \
             4=01000000",
        ),
        (
            RouteCommand::Add(Route {
                key: key("203.0.113.7/32", 105, 1000),
                target: RouteTarget::Blackhole,
                source: None,
                window: None,
            }),
            "0220000000d5000600000000 15=e8030000 1=cb007107 6=69000000",
        ),
        (
            RouteCommand::Add(Route {
                key: key("10.9.0.5/32", 98, 219),
                target: RouteTarget::Blackhole,
                source: None,
                window: NonZeroU32::new(7),
            }),
            "0220000000d5000600000000 15=db000000 1=0a090005 6=62000000 8=0800030007000000",
        ),
        (
            RouteCommand::Add(Route {
                key: key("10.1.2.9/24", 20000, 254),
                target: RouteTarget::Unreachable,
                source: None,
                window: None,
            }),
            "0218000000d5000700000000 15=fe000000 1=0a010200 6=204e0000",
        ),
        (
            RouteCommand::Remove(key("10.1.2.0/24", 1190, 254)),
            "0218000000d5ff0000000000 15=fe000000 1=0a010200 6=a6040000",
        ),
    ];
    for (command, bytes) in cases {
        assert_eq!(written(&command), bytes, "{command:?}");
    }
}

/// An attribute: its number and bytes.
type Written<'a> = (u16, &'a [u8]);

/// Gives the message of a route to `read`.
fn with<T>(kind: u8, attributes: &[Written<'_>], read: impl FnOnce(&Message<'_>) -> T) -> T {
    let mut header = [0; RTMSG];
    (header[0], header[1], header[4], header[5], header[7]) = (2, 24, 254, OURS, kind);
    let mut writer = Writer::default();
    let open = writer.begin_message_with(nix::libc::RTM_NEWROUTE, 0, 1, &header);
    for (attribute, bytes) in attributes {
        writer.put(*attribute, bytes);
    }
    writer.end_message(open);
    read(&parse_messages(writer.bytes()).next().expect("a message"))
}

#[test]
fn what_this_driver_does_not_make_has_no_target() {
    let to: Written<'_> = (1, &[10, 1, 2, 0]);
    let link: Written<'_> = (4, &3_u32.to_ne_bytes());
    let gateway: Written<'_> = (5, &[192, 0, 2, 7]);
    let unicast = RouteTarget::Unicast { gateway: Some(address("192.0.2.7")), link: 3 };
    let cases: [(&str, u8, &[Written<'_>], Option<RouteTarget>); 7] = [
        ("unicast", 1, &[to, link, gateway], Some(unicast)),
        ("several next hops", 1, &[to, (9, &[0; 8])], None),
        ("a next hop of the other family", 1, &[to, link, (18, &[10, 0])], None),
        ("a tunnel", 1, &[to, link, (22, &[])], None),
        ("a next hop object", 1, &[to, link, gateway, (30, &[1, 0, 0, 0])], None),
        ("throw", 9, &[to], None),
        ("prohibit", 8, &[to], None),
    ];
    for (name, kind, attributes, wanted) in cases {
        let read = with(kind, attributes, read_route).expect(name);
        assert_eq!(read.target, wanted, "{name}");
        assert_eq!((read.key, read.protocol), (key("10.1.2.0/24", 0, 254), OURS), "{name}");
    }
}

#[test]
fn what_a_lookup_made_of_a_route_is_no_route() {
    let mut header = [0; RTMSG];
    header[0] = 10;
    header[8..].copy_from_slice(&0x200_u32.to_ne_bytes());
    let mut writer = Writer::default();
    let open = writer.begin_message_with(nix::libc::RTM_NEWROUTE, 0, 1, &header);
    writer.end_message(open);
    let message = parse_messages(writer.bytes()).next().expect("a message");
    assert_eq!(read_route(&message), None);
}

#[test]
fn messages_cut_anywhere_are_not_read_beyond_their_end() {
    let mut writer = Writer::default();
    let open = writer.begin_message_with(nix::libc::RTM_NEWROUTE, 0, 1, &[2; RTMSG]);
    writer.put(1, &[10, 1, 2, 0]);
    writer.put(4, &[1]);
    writer.end_message(open);
    let whole = parse_messages(writer.bytes()).next().expect("a message");
    for end in 0..whole.payload.len() {
        let cut = Message { payload: &whole.payload[..end], ..whole };
        let _ = (read_route(&cut), read_path(&cut));
    }
}
