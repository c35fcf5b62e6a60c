//! Which packets a rule is about.

use anyhow::Result;
use denizen_tests::packets::probe::Protocol::{Sctp, Tcp, Udp};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyWorld, Transport};
use serde_json::json;

use super::{
    PING, TCP_80, admin, at, at_range, everybody, expect, expect_of, from, networks, pods_of, to,
    world,
};
use crate::evaluated::EvaluatedWorld;
use crate::regressions::small::{OTHER_NODE, OUTSIDE, XA, XB, YA, YB, container, packet, pod};

fn tcp(port: u16) -> Transport {
    Transport::Port(Tcp, port)
}

#[test]
fn a_port_that_is_denied_is_a_hole_in_a_range() -> Result<()> {
    let policies = || {
        [
            admin(5, "range", "x").ingress([at_range(1, u16::MAX, from("Accept", everybody()))]),
            admin(0, "ssh", "x").ingress([at(22, from("Deny", everybody()))]),
        ]
    };
    let expected = |rest| {
        [
            (YA, XA, tcp(22), false),
            (YA, XA, tcp(21), true),
            (YA, XA, tcp(23), true),
            (YA, XA, tcp(u16::MAX), true),
            // No rule can name it.
            (YA, XA, tcp(0), rest),
            (YA, XA, Transport::Port(Udp, 22), rest),
            (YA, XA, Transport::Port(Sctp, 22), rest),
            (YA, XA, PING, rest),
        ]
    };
    expect(&world(policies(), []), &expected(true))?;
    let closed = NetworkPolicy::new("x", "closed", LabelSelector::default()).ingress([]);
    expect(&world(policies(), [closed]), &expected(false))
}

/// Ranges that touch, nest, overlap, or share an end.
#[test]
fn every_edge_of_ranges_is_where_it_was_written() -> Result<()> {
    let ranges = [
        ("Deny", 10, 20),
        ("Accept", 15, 30),
        ("Deny", 21, 21),
        ("Pass", 25, 40),
        ("Deny", 31, 31),
        ("Accept", 32, 35),
        ("Deny", 36, 50),
        ("Deny", 65_535, 65_535),
        ("Accept", 60, 65_535),
    ];
    let rules =
        ranges.map(|(action, first, last)| at_range(first, last, from(action, everybody())));
    let closed = NetworkPolicy::new("x", "closed", LabelSelector::default()).ingress([]);
    let world = world([admin(5, "ranges", "x").ingress(rules)], [closed]);
    let evaluated = EvaluatedWorld::new(&world)?;
    let accepted = |port: u16| matches!(port, 21..=30 | 60..=65_534);
    let edges = ranges.iter().flat_map(|(_, first, last)| [*first, *last]);
    let ports = edges.flat_map(|port: u16| [port - 1, port, port.saturating_add(1)]);
    for port in ports.chain([0, 1]) {
        for family in 0..2 {
            let packet = packet(YA[family], XA[family], tcp(port));
            expect_of(&evaluated, packet, accepted(port))?;
        }
    }
    Ok(())
}

#[test]
fn rules_with_ports_say_nothing_of_pings() -> Result<()> {
    let ports = admin(0, "tcp", "x").ingress([at_range(1, u16::MAX, from("Deny", everybody()))]);
    expect(&world([ports], []), &[(YA, XA, PING, true), (YA, XA, TCP_80, false)])?;
    let all = admin(0, "all", "x").ingress([from("Deny", everybody())]);
    expect(&world([all], []), &[(YA, XA, PING, false), (YA, XA, TCP_80, false)])
}

#[test]
fn a_narrow_network_does_not_escape_a_broad_one() -> Result<()> {
    let broad = |priority| {
        admin(priority, "broad", "x").egress([to("Deny", networks(&["10.0.0.0/8", "fd00::/8"]))])
    };
    let narrow = |priority| {
        let host = networks(&["10.0.1.10/32", "fd00::1:10/128"]);
        admin(priority, "narrow", "x").egress([to("Accept", host)])
    };
    let broad_first = [(XA, YA, TCP_80, false), (XA, YB, TCP_80, false), (XA, OUTSIDE, PING, true)];
    expect(&world([broad(0), narrow(5)], []), &broad_first)?;
    let narrow_first = [(XA, YA, TCP_80, true), (XA, YB, TCP_80, false)];
    expect(&world([broad(5), narrow(0)], []), &narrow_first)
}

#[test]
fn host_bits_count_for_nothing_and_zero_is_everybody() -> Result<()> {
    let bits =
        admin(0, "bits", "x").egress([to("Deny", networks(&["10.9.9.9/8", "fd00:1:2::3/16"]))]);
    expect(&world([bits], []), &[(XA, YA, TCP_80, false), (XA, OUTSIDE, TCP_80, true)])?;
    let zero = admin(0, "zero", "x").egress([to("Deny", networks(&["10.1.2.3/0"]))]);
    let world = world([zero], []);
    let evaluated = EvaluatedWorld::new(&world)?;
    for other in [YA, XB, OUTSIDE, OTHER_NODE] {
        expect_of(&evaluated, packet(XA[0], other[0], TCP_80), false)?;
        expect_of(&evaluated, packet(XA[1], other[1], TCP_80), true)?;
    }
    Ok(())
}

#[test]
fn pods_are_accepted_out_of_a_denied_network() -> Result<()> {
    let rules = [to("Accept", pods_of("y")), to("Deny", networks(&["0.0.0.0/0", "::/0"]))];
    let expected = [(XA, YA, TCP_80, true), (XA, XB, TCP_80, false), (XA, OUTSIDE, PING, false)];
    expect(&world([admin(5, "p", "x").egress(rules)], []), &expected)
}

/// They are neither subjects nor peers by labels. Their node is, by its addresses.
#[test]
fn pods_of_the_hosts_network_are_their_node() -> Result<()> {
    let with_host = |rule, is_ingress: bool| -> PolicyWorld {
        let policy = admin(0, "p", "x");
        let policy = if is_ingress { policy.ingress([rule]) } else { policy.egress([rule]) };
        let mut world = world([policy], []);
        let mut host = pod("y", "host", 1, OTHER_NODE);
        host.spec.host_network = true;
        world.pods.push(host);
        world
    };
    let from_y = with_host(from("Deny", pods_of("y")), true);
    expect(&from_y, &[(YA, XA, TCP_80, false), (OTHER_NODE, XA, TCP_80, true)])?;
    let to_y = with_host(to("Deny", pods_of("y")), false);
    expect(&to_y, &[(XA, YA, TCP_80, false), (XA, OTHER_NODE, TCP_80, true)])?;
    for peer in [json!({ "nodes": {} }), networks(&["192.168.0.2/32", "2001:db8::2/128"])] {
        let to_node = with_host(to("Deny", peer), false);
        expect(&to_node, &[(XA, OTHER_NODE, TCP_80, false), (XA, YA, TCP_80, true)])?;
    }
    // Whom it selects has no packets of its own.
    let mut of_host = with_host(from("Deny", everybody()), true);
    of_host.tiers[0].spec["subject"] = pods_of("y");
    expect(&of_host, &[(XA, YA, TCP_80, false), (XA, OTHER_NODE, TCP_80, true)])
}

#[test]
fn names_are_names_of_every_protocol() -> Result<()> {
    let named = |mut rule: serde_json::Value| {
        rule["protocols"] = json!([{ "destinationNamedPort": "8080" }]);
        rule
    };
    let mut denied = world([admin(0, "p", "x").egress([named(to("Deny", pods_of("y")))])], []);
    let udp = Transport::Port(Udp, 81);
    denied.pods[2].spec.containers = vec![container(&[("8080", 80)])];
    let mut dns = container(&[("8080", 81)]);
    dns.ports[0].protocol = Some("UDP".to_owned());
    denied.pods[2].spec.containers.push(dns);
    denied.pods[3].spec.containers = vec![container(&[("8080", 90)])];
    expect(
        &denied,
        &[
            (XA, YA, tcp(80), false),
            (XA, YA, udp, false),
            (XA, YA, tcp(8080), true),
            (XA, YA, tcp(81), true),
            (XA, YB, tcp(80), true),
            (XA, YB, tcp(90), false),
        ],
    )?;
    // Nobody says whose name it would be.
    let range = || networks(&["10.0.1.0/24", "fd00::1:0/112"]);
    let accepts = named(to("Accept", range()));
    let rules = [accepts, at(80, to("Deny", everybody()))];
    let accepted = world([admin(0, "p", "x").egress(rules)], []);
    expect(&accepted, &[(XA, YA, tcp(80), false), (XA, YA, tcp(81), true)])?;
    let denied = world([admin(0, "p", "x").egress([named(to("Deny", range()))])], []);
    expect(&denied, &[(XA, YA, tcp(80), false), (XA, XB, PING, false)])
}
