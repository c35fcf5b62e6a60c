//! Flows that a client keeps up, and what the node's connection tracking holds of them, read
//! through `conntrack`: independent of what the agent believes.

use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use socket2::Socket;

use crate::node::netns::Netns;
use crate::packets::probe::{Outcome, Probe, Protocol};

/// One entry of the node's connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tracked {
    /// The kernel's id of the entry, which no later entry gets.
    pub id: u64,
    /// The sender of the first packet.
    pub source: SocketAddr,
    /// The destination of the first packet.
    pub destination: SocketAddr,
    /// Where replies come from.
    pub reply_source: SocketAddr,
    /// Where replies go to: the sender, or the address that it is masqueraded as.
    pub reply_destination: SocketAddr,
}

/// Every entry of a protocol, of both families, sorted.
pub fn tracked(node: &Netns, protocol: Protocol) -> Result<Vec<Tracked>> {
    let name = protocol.to_string().to_lowercase();
    let mut found = Vec::new();
    for family in ["ipv4", "ipv6"] {
        let text = node.output("conntrack", &["-L", "-f", family, "-p", &name, "-o", "id"])?;
        for line in text.lines() {
            found.push(parse(line).with_context(|| format!("an entry that says {line:?}"))?);
        }
    }
    found.sort();
    Ok(found)
}

/// A line has two tuples: the original direction first, then the reply direction.
fn parse(line: &str) -> Option<Tracked> {
    let words = || line.split_whitespace().filter_map(|word| word.split_once('='));
    let nth = |key, n| {
        let values = words().filter(move |(name, _)| *name == key);
        values.map(|(_, value)| value).nth(n)
    };
    let end = |address, port, n| -> Option<SocketAddr> {
        let address: IpAddr = nth(address, n)?.parse().ok()?;
        Some(SocketAddr::new(address, nth(port, n)?.parse().ok()?))
    };
    Some(Tracked {
        id: nth("id", 0)?.parse().ok()?,
        source: end("src", "sport", 0)?,
        destination: end("dst", "dport", 0)?,
        reply_source: end("src", "sport", 1)?,
        reply_destination: end("dst", "dport", 1)?,
    })
}

/// Inserts an entry of UDP over IPv4, as if a packet had met rules that have changed since.
pub fn insert(
    node: &Netns,
    source: SocketAddr,
    destination: SocketAddr,
    reply_source: SocketAddr,
) -> Result<()> {
    let [source_ip, destination_ip, answerer_ip] =
        [source, destination, reply_source].map(|end| end.ip().to_string());
    let [source_port, destination_port, answerer_port] =
        [source, destination, reply_source].map(|end| end.port().to_string());
    let arguments = [
        ["-p", "udp"],
        ["-s", &source_ip],
        ["-d", &destination_ip],
        ["--sport", &source_port],
        ["--dport", &destination_port],
        ["-r", &answerer_ip],
        ["-q", &source_ip],
        ["--reply-port-src", &answerer_port],
        ["--reply-port-dst", &source_port],
        ["-t", "600"],
    ];
    let mut words = vec!["-I"];
    words.extend(arguments.iter().flatten());
    node.output("conntrack", &words)?;
    Ok(())
}

/// A client that sends again and again from one address and port, so that all its packets belong to
/// one conntrack entry.
#[derive(Debug)]
pub struct KeptFlow {
    socket: Socket,
    probe: Probe,
    port: u16,
}

impl KeptFlow {
    /// Opens the socket inside `namespace`, bound to `source`. Nothing is sent yet.
    pub fn open(
        namespace: &Netns,
        protocol: Protocol,
        source: IpAddr,
        to: SocketAddr,
    ) -> Result<Self> {
        let probe = Probe { protocol, ..Probe::tcp(to) };
        let (socket, port) = namespace
            .run(|| flow(probe.from(source)))?
            .with_context(|| format!("no flow to {to} over {protocol}"))?;
        Ok(Self { socket, probe, port })
    }

    /// Sends once more, and returns the outcome.
    pub fn send(&self) -> Outcome {
        self.probe.send_through(&self.socket, self.port)
    }

    /// The port it sends from.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The conntrack entry of this flow, if there is one.
    pub fn tracked(&self, node: &Netns) -> Result<Option<Tracked>> {
        let all = tracked(node, self.probe.protocol)?;
        let is_ours = |entry: &&Tracked| {
            entry.source.port() == self.port && entry.destination == self.probe.to
        };
        Ok(all.iter().find(is_ours).copied())
    }
}

/// A connected socket for repeated questions, and its source port.
fn flow(probe: Probe) -> io::Result<(Socket, u16)> {
    let socket = probe.connected()?;
    let port = match probe.protocol {
        Protocol::Sctp => Probe::sctp_port(),
        Protocol::Tcp | Protocol::Udp => {
            let local = socket.local_addr()?.as_socket();
            local.map(|local| local.port()).unwrap_or_default()
        }
    };
    Ok((socket, port))
}
