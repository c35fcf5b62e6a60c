//! The packets: each is sent, explained, and received or not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::fixture::service_ips;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::Protocol;

use super::context::MatrixContext;
use super::frontend::{Frontend, Seen};
use super::table::{Row, SENDERS, Sender};

/// What is expected has come by then, or never will.
const PATIENCE: Duration = Duration::from_secs(30);
/// What else was sent before the last expected packet has come by then.
const GRACE: Duration = Duration::from_millis(200);

/// One packet.
struct Packet {
    what: String,
    source: IpAddr,
    expected: Seen,
}

/// Sends every packet, with its number in it. No two packets of a test have the same source port:
/// one would be taken for the other's connection.
fn send_all(
    context: &MatrixContext,
    agent: &Agent,
    row: &Row,
    frontends: &[Frontend],
) -> Result<Vec<Packet>> {
    let mut packets = Vec::new();
    for wiring in [Wiring::Bridged, Wiring::Routed] {
        for (sender, like) in SENDERS.iter().flat_map(|s| service_ips(10).map(|like| (*s, like))) {
            let local = row.takes_for_local(wiring, sender);
            let (netns, source, interface) = context.sender(wiring, sender, like)?;
            for frontend in frontends {
                let (to, expected) = (frontend.at(like), frontend.expected(sender, local));
                let what =
                    format!("{}, {wiring:?} pods: {sender:?} to {frontend:?} {to}", row.mode);
                explained(
                    agent,
                    &what,
                    (source, interface.as_deref()),
                    (sender, local),
                    (to, expected),
                )?;
                let number = u32::try_from(packets.len())?.to_be_bytes();
                let from = (source, context.fresh_port());
                let send = || UdpSocket::bind(from)?.send_to(&number, to);
                netns.run(send)?.with_context(|| what.clone())?;
                packets.push(Packet { what, source, expected });
            }
        }
    }
    Ok(packets)
}

/// `explain` says what the matrix says.
fn explained(
    agent: &Agent,
    what: &str,
    (source, interface): (IpAddr, Option<&str>),
    (sender, local): (Sender, bool),
    (to, expected): (SocketAddr, Seen),
) -> Result<()> {
    let explained = agent.explain(source, interface, to, Protocol::Udp)?;
    assert_eq!(explained.local, local, "{what}: {explained:?}");
    let verdict = match (explained.verdict.as_str(), explained.masquerade) {
        ("forward" | "untouched", false) => Seen::Kept,
        ("forward" | "untouched", true) => Seen::Nodes,
        ("drop", _) => Seen::Nothing,
        _ => anyhow::bail!("{what}: {explained:?}"),
    };
    assert_eq!(verdict, expected, "{what}: {sender:?}: {explained:?}");
    Ok(())
}

/// What came of each packet: the source that the endpoint saw.
fn received(context: &MatrixContext, expected: usize) -> Result<BTreeMap<u32, IpAddr>> {
    let mut received = BTreeMap::new();
    let begun = Instant::now();
    let mut complete = None;
    while complete.is_none_or(|since: Instant| since.elapsed() < GRACE)
        && begun.elapsed() < PATIENCE
    {
        for listener in &context.listeners {
            listener.set_read_timeout(Some(Duration::from_millis(2)))?;
            let mut number = [0; 4];
            while let Ok((_, from)) = listener.recv_from(&mut number) {
                received.insert(u32::from_be_bytes(number), from.ip());
            }
        }
        if received.len() >= expected {
            complete.get_or_insert_with(Instant::now);
        }
    }
    Ok(received)
}

pub fn play(
    context: &MatrixContext,
    agent: &Agent,
    row: &Row,
    frontends: &[Frontend],
) -> Result<()> {
    let packets = send_all(context, agent, row, frontends)?;
    let expected = packets.iter().filter(|packet| packet.expected != Seen::Nothing).count();
    let received = received(context, expected)?;
    let mut wrong = Vec::new();
    for (number, packet) in (0..).zip(&packets) {
        let seen = match received.get(&number) {
            None => Seen::Nothing,
            // The node's own packets have its address, masqueraded or not.
            Some(_)
                if packet.expected == Seen::Nodes
                    && context.fixture.cluster.is_nodes(packet.source)? =>
            {
                Seen::Nodes
            }
            Some(from) if *from == packet.source => Seen::Kept,
            Some(from) => {
                ensure!(
                    context.fixture.cluster.is_nodes(*from)?,
                    "{}: seen as {from}",
                    packet.what
                );
                Seen::Nodes
            }
        };
        if seen != packet.expected {
            wrong.push(format!("{}: {seen:?}, not {:?}", packet.what, packet.expected));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} packets:\n{}",
        wrong.len(),
        packets.len(),
        wrong.join("\n")
    );
    Ok(())
}
