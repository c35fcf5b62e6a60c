//! Messages as Linux 6.18 sent them.

use denizen_netlink::parse_messages;

use super::*;

/// A rule of an output chain that matched; the first message of the chain.
const FIRST: &str = "94000000110a000000000000000000000200000008000f000000000208000400000000030\
     80006005dc554bf060002006f00000006000100740000000c00030000000000000000060c00050008000100ffffffff\
     08000c000000000106000d0003040000180008004500003c29c24000400612f87f0000017f00000118000900e6f4005\
     0320ae9c700000000a002ffd7fe300000";
/// A rule that jumps to a chain.
const JUMP: &str = "9c000000110a000000000000000000000200000008000f00000000020800040000000003080\
     006005dc554bf070002006f32000006000100740000000c00030000000000000000071400050008000100fffffffd06\
     0002007800000008000c000000000106000d0003040000180008004500003c29c24000400612f87f0000017f0000011\
     8000900e6f40050320ae9c700000000a002ffd7fe300000";
/// The end of a chain without a rule, before its policy's message.
const NO_RULE: &str = "48000000110a000000000000000000000200000008000f0000000002080004000000000\
     3080006005dc554bf060002006f00000006000100740000000c00050008000100ffffffff";
/// A base chain's policy.
const POLICY: &str = "44000000110a000000000000000000000200000008000f00000000020800040000000001\
     080006005dc554bf060002006f00000006000100740000000800100000000001";
/// A rule of an input chain that drops.
const DROP: &str = "a8000000110a000000000000000000000200000008000f00000000020800040000000003080\
     00600635aba90060002006900000006000100740000000c00030000000000000000090c000500080001000000000008\
     000a000000000106000b0003040000180008004500003c29c24000400612f87f0000017f00000118000900e6f400503\
     20ae9c700000000a002ffd7fe3000001200070000000000000000000000000008000000";
/// A UDP packet over IPv6.
const IP6: &str = "a0000000110a000000000000000000000a00000008000f000000000a080004000000000308000\
     6005bf84860060002006f00000006000100740000000c00030000000000000000020c00050008000100ffffffff0800\
     0c000000000106000d00030400002c0008006004679f000911400000000000000000000000000000000100000000000\
     00000000000000000000110000900dde800500009001c78000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn decoded(bytes: &[u8]) -> Option<TraceMessage> {
    parse_messages(bytes).next().and_then(|message| TraceMessage::decode(&message))
}

fn local(input: Option<u32>, output: Option<u32>) -> TracedPacket {
    let address = "127.0.0.1".parse().unwrap();
    TracedPacket {
        input,
        output,
        source: address,
        destination: address,
        protocol: 6,
        ports: Some((59124, 80)),
        serial: (0x29c2, 0x320a_e9c7),
    }
}

fn message(chain: &str, event: TraceEvent, packet: Option<TracedPacket>) -> TraceMessage {
    TraceMessage {
        id: 0x5dc5_54bf,
        family: Some(TableFamily::Ip),
        table: "t".into(),
        chain: chain.into(),
        event,
        packet,
    }
}

#[test]
fn each_kind_of_message_is_decoded() {
    let rule = |handle, verdict| TraceEvent::Rule { handle, verdict };
    let at_output = || Some(local(None, Some(1)));
    let jump = TraceVerdict::Jump("x".into());
    let cases = [
        (FIRST, Some(message("o", rule(6, TraceVerdict::Continue), at_output()))),
        (JUMP, Some(message("o2", rule(7, jump), at_output()))),
        (NO_RULE, Some(message("o", TraceEvent::NoRule, None))),
        (POLICY, Some(message("o", TraceEvent::Policy(TraceVerdict::Accept), None))),
        (
            DROP,
            Some(TraceMessage {
                id: 0x635a_ba90,
                ..message("i", rule(9, TraceVerdict::Drop), Some(local(Some(1), None)))
            }),
        ),
    ];
    for (hex, expected) in cases {
        assert_eq!(decoded(&bytes(hex)), expected);
    }
}

#[test]
fn the_addresses_of_ipv6_lie_elsewhere() {
    let packet = decoded(&bytes(IP6)).unwrap().packet.unwrap();
    let address: IpAddr = "::1".parse().unwrap();
    assert_eq!((packet.source, packet.destination), (address, address));
    assert_eq!((packet.protocol, packet.ports), (17, Some((56808, 80))));
    assert_eq!(packet.serial, (0, 0), "what UDP over IPv6 does not have");
}

#[test]
fn messages_that_are_cut_or_others_are_none() {
    let whole = bytes(FIRST);
    for end in 0..whole.len() {
        assert_eq!(decoded(&whole[..end]), None, "cut at {end}");
        // The length says that it is complete, and attributes are cut.
        let mut cut = whole[..end.max(16)].to_vec();
        let length = (cut.len() as u32).to_ne_bytes();
        cut[..4].copy_from_slice(&length);
        let _ = decoded(&cut);
    }
    let mut other = whole;
    other[4] = 16;
    assert_eq!(decoded(&other), None);
}
