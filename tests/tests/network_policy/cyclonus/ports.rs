//! Which ports: all, one kind of thirty-one, wrong ones, and pairs.

use denizen_tests::packets::probe::Protocol::{Sctp, Tcp, Udp};
use denizen_tests::policy::{PolicyPort, PortNumber};

use super::{DIRECTIONS, Direction, one, rule_for, with};
use crate::case::{Case, PROTOCOLS};
use crate::hosts::PORTS;

pub fn cases() -> Vec<Case> {
    DIRECTIONS.into_iter().flat_map(of).collect()
}

fn of(direction: Direction) -> Vec<Case> {
    let lists = [vec![]].into_iter().chain(single()).chain(odd()).chain(pairs());
    let case = |ports: Vec<PolicyPort>| {
        let name = serde_json::to_string(&ports).expect("ports are plain");
        let mut rule = rule_for(direction, vec![super::both("ns", &["x", "y", "z"], &["b", "c"])]);
        rule.ports = Some(ports);
        one(format!("{direction:?}: ports {name}"), with(direction, rule))
    };
    lists.map(case).collect()
}

fn single() -> Vec<Vec<PolicyPort>> {
    let protocols = [None, Some(Tcp), Some(Udp), Some(Sctp)];
    let numbers = [None, Some(80), Some(81)];
    let plain = protocols.into_iter().flat_map(|protocol| {
        numbers.map(|number| PolicyPort {
            protocol: protocol.map(|known| known.to_string()),
            port: number.map(PortNumber::Number),
            end_port: None,
        })
    });
    let named = PROTOCOLS.into_iter().flat_map(|protocol| {
        PORTS.map(|port| PolicyPort::named(protocol, &name(port, &protocol.to_string())))
    });
    let ranges = PROTOCOLS
        .into_iter()
        .flat_map(|protocol| [80, 84].map(|last| PolicyPort::range(protocol, 53, last)));
    plain.chain(named).chain(ranges).map(|port| vec![port]).collect()
}

fn name(port: u16, protocol: &str) -> String {
    format!("serve-{port}-{}", protocol.to_lowercase())
}

/// A name of another protocol, one that nobody has, a number that nobody serves.
fn odd() -> Vec<Vec<PolicyPort>> {
    vec![
        vec![PolicyPort::named(Udp, "serve-80-tcp")],
        vec![PolicyPort::named(Tcp, "hello-world")],
        vec![PolicyPort::number(Tcp, 7981)],
    ]
}

fn pairs() -> Vec<Vec<PolicyPort>> {
    vec![
        vec![PolicyPort::number(Tcp, 80), PolicyPort::number(Tcp, 81)],
        vec![PolicyPort::number(Tcp, 80), PolicyPort::number(Udp, 80)],
        vec![PolicyPort::number(Udp, 81), PolicyPort::number(Sctp, 80)],
        vec![PolicyPort::every(Udp), PolicyPort::number(Tcp, 81)],
        vec![PolicyPort::named(Tcp, "serve-80-tcp"), PolicyPort::number(Tcp, 81)],
        vec![PolicyPort::named(Udp, "serve-81-udp"), PolicyPort::named(Sctp, "serve-81-sctp")],
        vec![PolicyPort::range(Tcp, 53, 80), PolicyPort::named(Tcp, "serve-81-tcp")],
    ]
}
