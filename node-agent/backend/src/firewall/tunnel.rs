//! Rules against packets that pods encapsulate for a tunnel of the node: they would come out with
//! any inner source, and be judged by that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::drop_reason::DropReason;
use super::rule::{dropped, rule, to};
use denizen_model::{Family, Tunnel};
use denizen_nft::{Field, Key, Rule, Statement, Verdict};

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// The key of a tunnel's element in a set.
pub(super) enum TunnelKey {
    /// Protocol and destination port.
    Port(Key),
    /// A protocol.
    Protocol(Key),
}

pub(super) fn key(tunnel: Tunnel) -> TunnelKey {
    match tunnel {
        Tunnel::Udp(port) => TunnelKey::Port(Key::EMPTY.byte(UDP).port(port)),
        Tunnel::Protocol(number) => TunnelKey::Protocol(Key::EMPTY.byte(number)),
    }
}

/// Rules that send packets which may be for a tunnel to the chain `tunnels`, by these look-ups of
/// protocol and port, and of the protocol alone.
pub(super) fn jumps(port: Statement, protocol: Statement) -> [Rule; 2] {
    let why = "may be for a tunnel of a node";
    [port, protocol].map(|lookup| rule(why, [lookup, to(Verdict::Jump("tunnels".into()))]))
}

/// The rule that drops without a look-up of the destination: where not all pods are followed, not
/// all nodes' addresses are known.
pub(super) fn to_anybody() -> Rule {
    dropped(DropReason::Tunnel, Vec::new())
}

/// Rules that drop what is for a destination that no set names and at which a tunnel may listen all
/// the same. `matches`: what each rule asks first.
pub(super) fn to_special(version: Family, matches: &[Statement]) -> Vec<Rule> {
    let within = |first| {
        let network = Ipv4Addr::new(first, 0, 0, 0).into();
        Statement::Within(Field::Destination(version), network, 8)
    };
    let special = match version {
        // With an unspecified source, Linux takes 0.0.0.0 for a broadcast. With `route_localnet`,
        // loopback is reached.
        Family::V4 => vec![is_multicast(version), within(0), within(127)],
        Family::V6 => vec![is_multicast(version)],
    };
    let rule = |is_special| dropped(DropReason::Tunnel, [matches, &[is_special]].concat());
    special.into_iter().map(rule).collect()
}

/// Matches multicast and broadcast destinations.
pub(super) fn is_multicast(version: Family) -> Statement {
    // 224.0.0.0/4 and the reserved addresses behind it, with 255.255.255.255.
    let (network, prefix): (IpAddr, u8) = match version {
        Family::V4 => (Ipv4Addr::new(224, 0, 0, 0).into(), 3),
        Family::V6 => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    Statement::Within(Field::Destination(version), network, prefix)
}
