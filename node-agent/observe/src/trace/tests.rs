//! Messages of made-up packets, and what is made of them.

#![expect(clippy::disallowed_methods, reason = "tests read the clock")]

use std::net::IpAddr;
use std::time::Instant;

use denizen_nft::{TableFamily, TraceEvent, TraceMessage, TraceVerdict, TracedPacket};

use super::compare::{PacketAddresses, PacketFate, PacketOutcome, TraceComparison, compare};
use super::journey::Journeys;
use denizen_plan::explain::{Explanation, PacketVerdict, PolicyRow};

const OWN: &str = "denizen-trace-7";
const CLIENT: &str = "10.1.2.3:4000";
const SERVICE: &str = "10.96.0.10:80";
const ENDPOINT: &str = "10.1.2.4:8080";
const NODE: &str = "192.168.0.2:5000";

fn packet(source: &str, destination: &str, serial: u16) -> TracedPacket {
    let (source, destination): (std::net::SocketAddr, std::net::SocketAddr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    TracedPacket {
        input: Some(2),
        output: None,
        source: source.ip(),
        destination: destination.ip(),
        protocol: 6,
        ports: Some((source.port(), destination.port())),
        serial: (serial, 1),
    }
}

fn message(
    id: u32,
    family: TableFamily,
    (table, chain): (&str, &str),
    packet: Option<TracedPacket>,
) -> TraceMessage {
    let event = TraceEvent::Rule { handle: 1, verdict: TraceVerdict::Continue };
    TraceMessage {
        id,
        family: Some(family),
        table: table.into(),
        chain: chain.into(),
        event,
        packet,
    }
}

fn counts(messages: Vec<TraceMessage>) -> Vec<usize> {
    let mut journeys = Journeys::new(OWN);
    let now = Instant::now();
    messages.into_iter().for_each(|message| journeys.take(message, now));
    journeys.silent_since(now).iter().map(|journey| journey.messages.len()).collect()
}

#[test]
fn messages_of_one_packet_are_put_together() {
    use TableFamily::{Bridge, Ip};
    let came = || Some(packet(CLIENT, SERVICE, 1));
    let translated = || Some(packet(CLIENT, ENDPOINT, 1));
    let begins = |id, family| message(id, family, (OWN, "arriving"), came());
    let other = |id| message(id, Ip, ("filter", "FORWARD"), None);
    let cases = [
        ("one number", vec![begins(1, Ip), other(1), other(1)], vec![3]),
        ("another's trace", vec![other(9), begins(1, Ip), other(9)], vec![1]),
        (
            "a packet that another table marked",
            vec![message(1, Ip, ("denizen-trace-8", "arriving"), came()), other(1)],
            vec![],
        ),
        ("from the bridge to IP", vec![begins(1, Bridge), begins(2, Ip), other(2)], vec![3]),
        (
            "another number behind the bridge, after translation",
            vec![
                begins(1, Bridge),
                begins(1, Ip),
                message(3, Ip, ("filter", "FORWARD"), translated()),
                other(3),
            ],
            vec![4],
        ),
        (
            "the number of an earlier packet",
            vec![
                begins(1, Ip),
                other(1),
                message(1, Ip, (OWN, "arriving"), Some(packet(CLIENT, SERVICE, 2))),
                other(1),
            ],
            vec![2, 2],
        ),
        (
            "two packets that look the same",
            vec![begins(1, Bridge), begins(2, Ip), begins(1, Bridge), begins(2, Ip)],
            vec![2, 2],
        ),
    ];
    for (name, messages, expected) in cases {
        assert_eq!(counts(messages), expected, "{name}");
    }
}

fn addresses(source: &str, destination: &str) -> PacketAddresses {
    (&packet(source, destination, 0)).into()
}

fn outcome(fate: PacketFate, is_agents: bool, source: &str, destination: &str) -> PacketOutcome {
    let first = addresses(CLIENT, SERVICE);
    PacketOutcome {
        fate,
        by: None,
        is_agents,
        is_from_node: false,
        first,
        last: addresses(source, destination),
    }
}

fn explanation(verdict: PacketVerdict) -> Explanation {
    let endpoints = match verdict {
        PacketVerdict::Forward => vec![ENDPOINT.to_owned()],
        PacketVerdict::Reject
        | PacketVerdict::Drop
        | PacketVerdict::Untouched
        | PacketVerdict::Foreign
        | PacketVerdict::Unknown => Vec::new(),
    };
    Explanation {
        verdict,
        service: None,
        endpoints,
        masquerade: false,
        masqueraded: Vec::new(),
        local: true,
        policies: Vec::new(),
        redirects: Vec::new(),
        host_port: None,
        virtual_server: None,
        steps: Vec::new(),
    }
}

fn refused_by_policy() -> Explanation {
    let row = PolicyRow {
        direction: "ingress".into(),
        pod: "default/web-0".into(),
        endpoint: Some(ENDPOINT.into()),
        isolated_by: Vec::new(),
        tiers: Vec::new(),
        result: "refused".into(),
        policy: None,
        rule: None,
        peer: None,
        ports: None,
    };
    Explanation { policies: vec![row], ..explanation(PacketVerdict::Forward) }
}

/// A falsified plan must be reported, and a right one must not.
#[test]
fn what_happened_is_compared_with_what_was_said() {
    use PacketFate::{Delivered, Dropped, Lost, Refused, Sent, Taken};
    let masqueraded = || Explanation { masquerade: true, ..explanation(PacketVerdict::Forward) };
    let only = |end: &str| Explanation { masqueraded: vec![end.into()], ..masqueraded() };
    let forward = || explanation(PacketVerdict::Forward);
    let elsewhere = "10.1.2.5:8080";
    let cases = [
        (forward(), outcome(Sent, false, CLIENT, ENDPOINT), None),
        (forward(), outcome(Delivered, false, CLIENT, ENDPOINT), None),
        (forward(), outcome(Sent, false, CLIENT, elsewhere), Some("and went to 10.1.2.5:8080")),
        (forward(), outcome(Sent, false, NODE, ENDPOINT), Some("should stay 10.1.2.3")),
        (masqueraded(), outcome(Sent, false, NODE, ENDPOINT), None),
        (masqueraded(), outcome(Sent, false, CLIENT, ENDPOINT), Some("become the node's")),
        (
            masqueraded(),
            PacketOutcome { is_from_node: true, ..outcome(Sent, false, CLIENT, ENDPOINT) },
            None,
        ),
        (only(ENDPOINT), outcome(Sent, false, NODE, ENDPOINT), None),
        (only(elsewhere), outcome(Sent, false, CLIENT, ENDPOINT), None),
        (only(elsewhere), outcome(Sent, false, NODE, ENDPOINT), Some("should stay")),
        (forward(), outcome(Dropped, true, CLIENT, ENDPOINT), Some("was dropped by X")),
        (forward(), outcome(Refused, true, CLIENT, SERVICE), Some("was refused by X")),
        (forward(), outcome(Taken, false, CLIENT, SERVICE), Some("was taken by X")),
        (forward(), outcome(Lost, false, CLIENT, ENDPOINT), Some("no hook saw it again")),
        (refused_by_policy(), outcome(Dropped, true, CLIENT, ENDPOINT), None),
        (refused_by_policy(), outcome(Dropped, false, CLIENT, ENDPOINT), Some("was dropped by X")),
        (refused_by_policy(), outcome(Sent, false, CLIENT, ENDPOINT), Some("policies should drop")),
        (explanation(PacketVerdict::Reject), outcome(Refused, true, CLIENT, SERVICE), None),
        (
            explanation(PacketVerdict::Reject),
            outcome(Refused, false, CLIENT, SERVICE),
            Some("a rule of denizen"),
        ),
        (
            explanation(PacketVerdict::Reject),
            outcome(Sent, false, CLIENT, SERVICE),
            Some("was sent on"),
        ),
        (explanation(PacketVerdict::Drop), outcome(Dropped, true, CLIENT, SERVICE), None),
        (
            explanation(PacketVerdict::Drop),
            outcome(Delivered, true, CLIENT, SERVICE),
            Some("reached this node"),
        ),
        (explanation(PacketVerdict::Untouched), outcome(Sent, false, CLIENT, SERVICE), None),
        (
            explanation(PacketVerdict::Untouched),
            outcome(Sent, false, CLIENT, ENDPOINT),
            Some("and became"),
        ),
        (
            explanation(PacketVerdict::Untouched),
            outcome(Dropped, false, CLIENT, SERVICE),
            Some("should pass"),
        ),
    ];
    for (explanation, outcome, expected) in cases {
        let compared = compare(&explanation, &outcome, false, "by X");
        match (&compared, expected) {
            (TraceComparison::AsPredicted, None) => {}
            (TraceComparison::Differs(all), Some(part)) if all.join("\n").contains(part) => {}
            _ => panic!("{compared:?} instead of {expected:?}: {explanation:?} {outcome:?}"),
        }
    }
}

#[test]
fn what_explain_is_not_about_is_not_compared() {
    let sent = outcome(PacketFate::Sent, false, CLIENT, ENDPOINT);
    for (verdict, is_established) in [
        (PacketVerdict::Forward, true),
        (PacketVerdict::Unknown, false),
        (PacketVerdict::Foreign, false),
    ] {
        let compared = compare(&explanation(verdict), &sent, is_established, "");
        assert!(matches!(compared, TraceComparison::NotComparable(_)), "{compared:?}");
    }
    let client: IpAddr = "10.1.2.3".parse().unwrap();
    assert_eq!(sent.first.source.ip(), client);
}
