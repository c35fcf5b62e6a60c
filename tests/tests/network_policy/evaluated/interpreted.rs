//! The tables of one node, read and walked: what they do with a packet that comes to that node.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::oracle::reader::{self, HookFamily, HookVisit, PacketType, Reader};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{PolicyPacket, PolicyWorld, Transport};

use super::planned::{Link, has_network, links};
use crate::random::addresses;

/// The node's link to others.
const UPLINK: &str = "eth0";
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ECHO_REQUEST: u8 = 128;
/// What of an ICMP message lies where others have their destination port: bytes of its checksum.
const CHECKSUM: u16 = 80;

/// One node's tables, and what its packets come through.
#[derive(Debug)]
pub struct Interpreted {
    reader: Reader,
    own: Vec<IpAddr>,
    links: Vec<Link>,
}

/// A packet's place outside of the node's IP stack.
#[derive(Debug, Clone, Copy)]
enum End<'a> {
    Pod(&'a Link),
    Node,
    Elsewhere,
}

impl Interpreted {
    /// Of `node`, which has these rules.
    pub fn new(world: &PolicyWorld, node: &str, rules: &str) -> Result<Self> {
        let own = world.nodes.iter().find(|other| other.name == node).context("no such node")?;
        let own = own.addresses.clone();
        let reader = Reader::new(rules, &own)?;
        let links = links(world, node).into_iter().map(|(_, link)| link).collect();
        Ok(Self { reader, own, links })
    }

    /// Whether a first packet passes the node.
    pub fn passes(&self, packet: PolicyPacket) -> Result<bool> {
        self.passes_as(packet, false)
    }

    /// Whether a packet of a connection does that was permitted.
    pub fn passes_established(&self, packet: PolicyPacket) -> Result<bool> {
        self.passes_as(packet, true)
    }

    fn passes_as(&self, packet: PolicyPacket, established: bool) -> Result<bool> {
        let (from, to) = (self.end(packet.from), self.end(packet.to));
        let (way, is_switched) = way(from, to);
        let ether = match from {
            End::Pod(link) => Some(link.mac),
            End::Node | End::Elsewhere => None,
        };
        let packet = reader::ReadPacket {
            established,
            ether,
            packet_type: Some(if is_switched { PacketType::Other } else { PacketType::Host }),
            ..as_read(packet)
        };
        self.reader.passes(&packet, &way)
    }

    /// No pod's packets come in with another pod's address, or a node's.
    pub fn drops_forged(&self, world: &PolicyWorld) -> Result<()> {
        let pods = world.pods.iter().filter(|pod| has_network(pod));
        let pods = pods.flat_map(|pod| &pod.status.pod_ips).map(|found| found.ip);
        let taken: BTreeSet<IpAddr> = pods.chain(self.own.iter().copied()).collect();
        for link in &self.links {
            for from in addresses(world).into_iter().filter(|from| taken.contains(from)) {
                let to = self.own.iter().find(|to| to.is_ipv4() == from.is_ipv4());
                let to = *to.context("a node has addresses of both versions")?;
                let packet = PolicyPacket { from, to, transport: Transport::Other };
                let (way, _) = way(End::Pod(link), End::Elsewhere);
                let packet = reader::ReadPacket {
                    packet_type: Some(PacketType::Host),
                    ether: Some(link.mac),
                    ..as_read(packet)
                };
                let enters = self.reader.passes(&packet, &way[..entrance(link)])?;
                ensure!(enters == link.ips.contains(&from), "{from} enters by {link:?}: {enters}");
            }
        }
        Ok(())
    }

    fn end(&self, address: IpAddr) -> End<'_> {
        let link = self.links.iter().find(|link| link.ips.contains(&address));
        match link {
            Some(link) => End::Pod(link),
            None if self.own.contains(&address) => End::Node,
            None => End::Elsewhere,
        }
    }
}

fn as_read(packet: PolicyPacket) -> reader::ReadPacket {
    let PolicyPacket { from, to, transport } = packet;
    let (protocol, port) = match transport {
        Transport::Port(Protocol::Tcp, port) => (6, port),
        Transport::Port(Protocol::Udp, port) => (17, port),
        Transport::Port(Protocol::Sctp, port) => (132, port),
        Transport::Other => (if to.is_ipv4() { ICMP } else { ICMPV6 }, CHECKSUM),
    };
    let icmpv6_type = (protocol == ICMPV6).then_some(ECHO_REQUEST);
    let first = reader::ReadPacket::new(from, SocketAddr::new(to, port), protocol);
    reader::ReadPacket { icmpv6_type, ..first }
}

/// How many hooks of a way belong to coming in.
fn entrance(link: &Link) -> usize {
    if link.bridge.is_some() { 3 } else { 1 }
}

/// The hooks between two ends, in order, and whether a bridge hands the frame from port to port.
/// Bridge netfilter is on where a restricted pod is: IP hooks see the frames of bridges.
fn way(from: End<'_>, to: End<'_>) -> (Vec<HookVisit>, bool) {
    let stop = |family, hook, input: &str, output: Option<&str>| {
        let output = output.map(ToOwned::to_owned);
        HookVisit { family, hook, input: input.to_owned(), output }
    };
    let ip = |hook, input, output| stop(HookFamily::Inet, hook, input, output);
    let frame = |hook, input, output| stop(HookFamily::Bridge, hook, input, output);
    if let (End::Pod(Link { bridge: Some(a), veth: one, .. }), End::Pod(link)) = (from, to)
        && link.bridge == Some(a)
    {
        let way = vec![
            frame("prerouting", one, None),
            ip("prerouting", a, None),
            frame("forward", one, Some(&link.veth)),
            ip("forward", a, Some(a)),
            frame("postrouting", "", Some(&link.veth)),
            ip("postrouting", "", Some(a)),
        ];
        return (way, true);
    }
    let mut way = Vec::new();
    let input = match from {
        End::Pod(Link { bridge: Some(bridge), veth, .. }) => {
            way.extend([frame("prerouting", veth, None), frame("input", veth, None)]);
            bridge
        }
        End::Pod(Link { bridge: None, veth, .. }) => veth.as_str(),
        End::Elsewhere => UPLINK,
        End::Node => "",
    };
    let output = match to {
        End::Pod(Link { bridge, veth, .. }) => bridge.unwrap_or(veth),
        End::Elsewhere => UPLINK,
        End::Node => "lo",
    };
    match (from, to) {
        (End::Node, _) => way.push(ip("output", "", Some(output))),
        (_, End::Node) => way.extend([ip("prerouting", input, None), ip("input", input, None)]),
        (_, End::Pod(_) | End::Elsewhere) => {
            way.extend([ip("prerouting", input, None), ip("forward", input, Some(output))]);
        }
    }
    if !matches!(to, End::Node) {
        way.push(ip("postrouting", "", Some(output)));
    }
    if let End::Pod(Link { bridge: Some(_), veth, .. }) = to {
        way.extend([frame("output", "", Some(veth)), frame("postrouting", "", Some(veth))]);
    }
    (way, false)
}
