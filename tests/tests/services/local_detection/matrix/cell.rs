//! Every cell is a packet: sent, explained, and heard or not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::fixture::service_ips;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::Protocol;

use super::context::MatrixContext;
use super::door::{Door, Seen};
use super::table::{Row, SENDERS, Sender};

/// What is expected has come by then, or never will.
const PATIENCE: Duration = Duration::from_secs(30);
/// What else was sent before the last expected packet has come by then.
const GRACE: Duration = Duration::from_millis(200);

/// One packet.
struct Cell {
    what: String,
    source: IpAddr,
    expected: Seen,
}

/// Sends every cell's packet, the number of the cell in it. No two packets of a test have the same
/// source port: one would be taken for the other's connection.
fn send_all(
    context: &MatrixContext,
    agent: &Agent,
    row: &Row,
    doors: &[Door],
) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for wiring in [Wiring::Bridged, Wiring::Routed] {
        for (sender, like) in SENDERS.iter().flat_map(|s| service_ips(10).map(|like| (*s, like))) {
            let local = row.takes_for_local(wiring, sender);
            let (netns, source, interface) = context.sender(wiring, sender, like)?;
            for door in doors {
                let (to, expected) = (door.at(like), door.expected(sender, local));
                let what = format!("{}, {wiring:?} pods: {sender:?} to {door:?} {to}", row.mode);
                explained(
                    agent,
                    &what,
                    (source, interface.as_deref()),
                    (sender, local),
                    (to, expected),
                )?;
                let number = u32::try_from(cells.len())?.to_be_bytes();
                let from = (source, context.fresh_port());
                let send = || UdpSocket::bind(from)?.send_to(&number, to);
                netns.run(send)?.with_context(|| what.clone())?;
                cells.push(Cell { what, source, expected });
            }
        }
    }
    Ok(cells)
}

/// `explain` says what the matrix says.
fn explained(
    agent: &Agent,
    what: &str,
    (source, interface): (IpAddr, Option<&str>),
    (sender, local): (Sender, bool),
    (to, expected): (SocketAddr, Seen),
) -> Result<()> {
    let told = agent.explain(source, interface, to, Protocol::Udp)?;
    assert_eq!(told.local, local, "{what}: {told:?}");
    let verdict = match (told.verdict.as_str(), told.masquerade) {
        ("forward" | "untouched", false) => Seen::Kept,
        ("forward" | "untouched", true) => Seen::Nodes,
        ("drop", _) => Seen::Nothing,
        _ => anyhow::bail!("{what}: {told:?}"),
    };
    assert_eq!(verdict, expected, "{what}: {sender:?}: {told:?}");
    Ok(())
}

/// What came of each packet: the source that the endpoint saw.
fn heard(context: &MatrixContext, expected: usize) -> Result<BTreeMap<u32, IpAddr>> {
    let mut heard = BTreeMap::new();
    let begun = Instant::now();
    let mut complete = None;
    while complete.is_none_or(|since: Instant| since.elapsed() < GRACE)
        && begun.elapsed() < PATIENCE
    {
        for ear in &context.ears {
            ear.set_read_timeout(Some(Duration::from_millis(2)))?;
            let mut number = [0; 4];
            while let Ok((_, from)) = ear.recv_from(&mut number) {
                heard.insert(u32::from_be_bytes(number), from.ip());
            }
        }
        if heard.len() >= expected {
            complete.get_or_insert_with(Instant::now);
        }
    }
    Ok(heard)
}

pub fn play(context: &MatrixContext, agent: &Agent, row: &Row, doors: &[Door]) -> Result<()> {
    let cells = send_all(context, agent, row, doors)?;
    let expected = cells.iter().filter(|cell| cell.expected != Seen::Nothing).count();
    let heard = heard(context, expected)?;
    let mut wrong = Vec::new();
    for (number, cell) in (0..).zip(&cells) {
        let seen = match heard.get(&number) {
            None => Seen::Nothing,
            // The node's own packets have its address, masqueraded or not.
            Some(_)
                if cell.expected == Seen::Nodes
                    && context.fixture.cluster.is_nodes(cell.source)? =>
            {
                Seen::Nodes
            }
            Some(from) if *from == cell.source => Seen::Kept,
            Some(from) => {
                ensure!(context.fixture.cluster.is_nodes(*from)?, "{}: seen as {from}", cell.what);
                Seen::Nodes
            }
        };
        if seen != cell.expected {
            wrong.push(format!("{}: {seen:?}, not {:?}", cell.what, cell.expected));
        }
    }
    ensure!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), cells.len(), wrong.join("\n"));
    Ok(())
}
