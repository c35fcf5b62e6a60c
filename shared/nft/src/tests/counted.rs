//! Packets that are counted by what they have in common.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use denizen_packet::Family;

use super::{alone, count, flow, rule, set};
use crate::*;

/// The test's namespace has no other interface.
#[expect(clippy::disallowed_methods, reason = "a test needs an interface")]
fn bring_up_loopback() {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
}

/// A table that counts what is sent over UDP, and drops it.
fn counting(version: Family, max_elements: u32) -> (Schema, Vec<Chain>) {
    let id = SetId(0);
    let counted = Set {
        max_dynamic_elements: Some(max_elements),
        ..set(id, "counted", &flow(version), DataType::None)
    };
    let family = version.into();
    let schema = Schema { family, name: "some", comment: "for a test", sets: vec![counted] };
    let is_udp = || Statement::Equals(Field::Protocol, Key::EMPTY.byte(17));
    let rules = vec![
        rule([is_udp(), count(version, true)]),
        rule([is_udp(), Statement::Counter, Statement::Verdict(Verdict::Drop)]),
    ];
    let base = Some(BaseChain { kind: ChainKind::Filter, hook: Hook::Input, priority: 0 });
    (schema, vec![Chain { name: "input".into(), base, why: "a chain", rules }])
}

fn counts(kernel: &mut Kernel, schema: &Schema) -> Vec<(Key, u64)> {
    let elements = kernel.counted_elements(schema.family, schema.name, "counted").unwrap();
    assert!(elements.iter().all(|element| element.expires_in.as_secs() <= 900), "{elements:?}");
    let mut counts: Vec<_> =
        elements.iter().map(|element| (element.key, element.packets)).collect();
    counts.sort();
    counts
}

/// A set that is full changes nothing about what becomes of packets.
#[test]
fn packets_are_counted_exactly_while_there_is_room_and_dropped_in_any_case() {
    alone(|kernel| {
        bring_up_loopback();
        for version in Family::BOTH {
            let (schema, chains) = counting(version, 2);
            let family = schema.family;
            assert_eq!(counts(kernel, &schema), [], "there is no such table");
            kernel.write(family, |batch| batch.replace_table(false, &schema, &chains)).unwrap();
            let lo = super::loopback(family);
            let sender = UdpSocket::bind((lo, 0)).unwrap();
            let receiver = |port| UdpSocket::bind((lo, port)).unwrap();
            let (one, two, three) = (receiver(1001), receiver(1002), receiver(1003));
            for (to, packets) in [(1001, 1), (1002, 3), (1001, 4), (1003, 5)] {
                for _ in 0..packets {
                    sender.send_to(b"a", SocketAddr::new(lo, to)).unwrap();
                }
            }
            let key = |port| Key::EMPTY.byte(17).port(port).address(lo).address(lo);
            assert_eq!(counts(kernel, &schema), [(key(1001), 5), (key(1002), 3)]);
            let dropped = kernel.rules(family, "some", None, |rule| Some(rule.packets())).unwrap();
            assert_eq!(dropped.iter().sum::<u64>(), 13, "{dropped:?}");
            for socket in [one, two, three] {
                socket.set_nonblocking(true).unwrap();
                assert!(socket.recv(&mut [0]).is_err());
            }
        }
    });
}

/// What packets have put into a set is not the client's to compare, to repair or to remove.
#[test]
fn a_look_and_a_change_leave_what_packets_have_counted() {
    struct OnlyChains(Vec<Chain>);
    impl Content for OnlyChains {
        fn chains(&self) -> Vec<Chain> {
            self.0.clone()
        }
        fn elements(&self) -> impl Iterator<Item = Element> {
            std::iter::empty()
        }
    }
    alone(|kernel| {
        bring_up_loopback();
        let version = Family::V4;
        let (schema, chains) = counting(version, 100);
        let (mut keeper, mut content) = (Keeper::new(schema.clone()), OnlyChains(chains));
        Keeper::sync(kernel, &mut [(&mut keeper, &mut content)]).unwrap();
        let lo = super::loopback(schema.family);
        let sender = UdpSocket::bind((lo, 0)).unwrap();
        let _receiver = UdpSocket::bind((lo, 1001)).unwrap();
        sender.send_to(b"a", (lo, 1001)).unwrap();
        let key = Key::EMPTY.byte(17).port(1001).address(lo).address(lo);
        assert_eq!(counts(kernel, &schema), [(key, 1)]);
        let mut restarted = Keeper::new(schema.clone());
        let repair = Keeper::sync(kernel, &mut [(&mut restarted, &mut content)]).unwrap();
        assert_eq!((repair, restarted.count()), (Repair::default(), 0));
        content.0[0].rules.insert(0, rule([Statement::Counter]));
        restarted.mark_unknown();
        let repair = Keeper::sync(kernel, &mut [(&mut restarted, &mut content)]).unwrap();
        assert_eq!(repair, Repair { chains: 1, ..Repair::default() });
        sender.send_to(b"a", (lo, 1001)).unwrap();
        assert_eq!(counts(kernel, &schema), [(key, 2)]);
    });
}
