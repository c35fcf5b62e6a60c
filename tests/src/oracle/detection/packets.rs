//! The packets: each is sent, explained, and received or not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::node::fixture::service_ips;
use crate::node::pod::Wiring;
use crate::packets::probe::Protocol;
use crate::peers::kube_proxy::ipvs;
use anyhow::{Context, Result, ensure};

use super::context::MatrixContext;
use super::frontend::{Frontend, Seen};
use super::table::{DetectedSender, Row, SENDERS};

/// How long an expected packet may take to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to go on listening after the last expected packet, for packets that should not arrive.
const GRACE: Duration = Duration::from_millis(200);

/// How many packets were checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckedPackets {
    /// Packets sent.
    pub packets: usize,
    /// Of those, the ones that IPVS carries.
    pub by_ipvs: usize,
}

impl CheckedPackets {
    pub(super) fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.by_ipvs += other.by_ipvs;
    }
}

/// One packet.
struct Packet {
    what: String,
    source: IpAddr,
    expected: Seen,
    /// Whether `explain` says that IPVS carries it.
    by_ipvs: bool,
}

/// Sends every packet, with its number in it. Each packet of a test has a source port of its own:
/// otherwise it would belong to another packet's connection.
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
                let by_ipvs = explained(
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
                packets.push(Packet { what, source, expected, by_ipvs });
            }
        }
    }
    Ok(packets)
}

/// `explain` says what the matrix says. Returns whether it says that IPVS carries the packet.
fn explained(
    agent: &Agent,
    what: &str,
    (source, interface): (IpAddr, Option<&str>),
    (sender, local): (DetectedSender, bool),
    (to, expected): (SocketAddr, Seen),
) -> Result<bool> {
    let explained = agent.explain(source, interface, to, Protocol::Udp)?;
    ensure!(explained.local == local, "{what}, local: {local}, but {explained:?}");
    let verdict = match (explained.verdict.as_str(), explained.masquerade) {
        ("forward" | "untouched", false) => Seen::Kept,
        ("forward" | "untouched", true) => Seen::Nodes,
        ("drop", _) => Seen::Nothing,
        _ => anyhow::bail!("{what}: {explained:?}"),
    };
    ensure!(verdict == expected, "{what}: {expected:?} for {sender:?}, but {explained:?}");
    Ok(explained.virtual_server.is_some())
}

/// The source that the endpoint saw of each packet that arrived.
fn received(context: &MatrixContext, expected: usize) -> Result<BTreeMap<u32, IpAddr>> {
    let mut received = BTreeMap::new();
    let begun = Instant::now();
    let mut complete = None;
    while complete.is_none_or(|since: Instant| since.elapsed() < GRACE)
        && begun.elapsed() < ARRIVAL_TIMEOUT
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

/// Sends a packet for every combination with this row, whose mode the agent has. Fails with all
/// packets that arrived with a wrong source.
pub fn check_row(
    context: &MatrixContext,
    agent: &Agent,
    row: &Row,
    frontends: &[Frontend],
) -> Result<CheckedPackets> {
    let count = || ipvs::taken_if_there(&context.fixture.cluster.world.node);
    let before = count()?;
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
    let (taken, by_ipvs) =
        (count()? - before, packets.iter().filter(|packet| packet.by_ipvs).count());
    ensure!(taken == by_ipvs as u64, "IPVS took {taken} packets, and should {by_ipvs}");
    Ok(CheckedPackets { packets: packets.len(), by_ipvs })
}
