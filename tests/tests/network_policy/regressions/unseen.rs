//! TCP connections of which conntrack saw no beginning. A client chooses its port, may be on both
//! ends, and may have the node forget a connection.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::kernel::ctnetlink;
use denizen_tests::node::cni::POD_INTERFACE;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{
    ARP, FrameSocket, IPV6, Mac, arp, ether_type, frame, icmp, link_local, mac_of, tcp,
};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule};
use socket2::{Domain, Socket, Type};

use super::test_cluster::{TIMEOUT, TestCluster};
use crate::hosts;

/// Ports of clients and servers: by the custom of ports, and against it.
const PORTS: [(u16, u16); 3] = [(40_001, 7000), (1001, 50_051), (1002, 7000)];

/// Long enough for a packet to arrive.
const SILENCE: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(50);

fn of(pod: &str) -> LabelSelector {
    LabelSelector::label("pod", pod)
}

fn socket(own: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::for_address(own), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&own.into())?;
    Ok(socket)
}

fn listen(netns: &Netns, at: SocketAddr) -> Result<TcpListener> {
    let listener = netns.run(|| socket(at))??;
    listener.listen(8)?;
    Ok(listener.into())
}

/// A pod that sends as if it were two.
struct BothEnds {
    mac: Mac,
    via: Mac,
    socket: FrameSocket,
}

impl BothEnds {
    /// Says that it has an address, to a node that has just asked for it.
    fn claim(&self, address: IpAddr, gateway: IpAddr) -> Result<()> {
        let (kind, message) = match (address, gateway) {
            (IpAddr::V4(address), IpAddr::V4(gateway)) => {
                (ARP, arp(self.mac, address.octets(), (self.via, gateway.octets())))
            }
            (IpAddr::V6(v6), gateway) => {
                let body = [&[0x60, 0, 0, 0][..], &v6.octets(), &[2, 1], &self.mac].concat();
                let own = link_local(self.mac).into();
                (IPV6, icmp(own, gateway, 255, 136, 0, &body))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => unreachable!("one family"),
        };
        self.socket.send(&frame(self.mac, self.via, &[], kind, &message))
    }

    /// Plays a connection from its middle.
    fn play(&self, client: SocketAddr, server: SocketAddr, gateway: IpAddr) -> Result<()> {
        const ACK: u8 = 0x10;
        let send = |packet: &[u8]| {
            self.socket.send(&frame(self.mac, self.via, &[], ether_type(client.ip()), packet))
        };
        for _ in 0..3 {
            send(&tcp(client, server, ACK, 1000, 2000))?;
            sleep(PAUSE);
            self.claim(server.ip(), gateway)?;
            sleep(PAUSE);
            send(&tcp(server, client, ACK, 2000, 1000))?;
        }
        Ok(())
    }
}

/// Pods x/d admit nobody. y/a plays both ends of connections to the addresses that the next pod
/// will get.
#[test]
fn a_new_pod_is_not_reached_by_a_connection_that_another_prepared() -> Result<()> {
    let mut cluster = TestCluster::new("regression-prepared")?;
    let policy = || NetworkPolicy::new("x", "in", of("d")).ingress([]);
    cluster.put([policy()])?;
    let own = cluster.addresses("y/a");
    let next = ["10.10.2.3", "fd00:10:2::3"].map(ip);
    let gateways = ["10.10.2.1", "fd00:10:2::1"].map(ip);
    let ends = BothEnds {
        mac: mac_of(cluster.netns("y/a"), POD_INTERFACE)?,
        via: mac_of(cluster.node(1), BRIDGE)?,
        socket: FrameSocket::open(cluster.netns("y/a"), POD_INTERFACE)?,
    };
    // Its own kernel knows nothing of these connections, and would reset them.
    let quiet = "table inet quiet { chain output { type filter hook output priority 0; \
                 tcp flags & rst == rst drop; }; }";
    cluster.netns("y/a").nft(quiet)?;
    let mut prepared = Vec::new();
    for (client, server) in PORTS {
        for family in 0..2 {
            let client = SocketAddr::new(own[family], client);
            let server = SocketAddr::new(next[family], server);
            ends.play(client, server, gateways[family])?;
            prepared.push((client, server));
        }
    }
    let entries = tracked(cluster.node(1), Protocol::Tcp)?;
    let is_tracked = |(client, server): &(SocketAddr, SocketAddr)| {
        entries.iter().any(|entry| (entry.source, entry.destination) == (*client, *server))
    };
    ensure!(prepared.iter().all(is_tracked), "not all are prepared: {entries:#?}");
    let pod = hosts::pod(&mut cluster.play, "x", "d")?;
    let given: Vec<_> = pod.status.pod_ips.iter().map(|given| given.ip).collect();
    ensure!(given == next, "{given:?}");
    cluster.world.pods.push(pod);
    cluster.put([policy()])?;
    cluster.expect(cluster.netns("y/a"), "x/d", false)?;
    for (client, server) in prepared {
        let listener = listen(cluster.netns("x/d"), server)?;
        let connected = cluster.netns("y/a").run(|| -> Result<bool> {
            Ok(socket(client)?.connect_timeout(&server.into(), SILENCE).is_ok())
        })??;
        ensure!(!connected, "{client} is connected to {server}");
        drop(listener);
    }
    Ok(())
}

struct Talk {
    client: TcpStream,
    server: TcpStream,
}

impl Talk {
    fn open(from: &Netns, client: SocketAddr, to: &Netns, server: SocketAddr) -> Result<Self> {
        let listener = listen(to, server)?;
        let client = from.run(|| -> Result<TcpStream> {
            let socket = socket(client)?;
            socket.connect(&server.into())?;
            Ok(socket.into())
        })??;
        let (server, _) = listener.accept()?;
        Ok(Self { client, server })
    }

    /// Whether the server hears its client.
    fn is_heard(&mut self, within: Duration) -> Result<bool> {
        self.client.write_all(b"!")?;
        self.server.set_read_timeout(Some(within))?;
        Ok(self.server.read(&mut [0; 64]).is_ok_and(|length| length > 0))
    }
}

/// x/c and y/a talk to x/a, which admits y/a alone from now on. The node has forgotten all of these
/// connections, and the client sends first.
#[test]
fn a_forbidden_connection_that_began_unseen_ends_whatever_its_ports() -> Result<()> {
    let mut cluster = TestCluster::new("regression-unseen")?;
    let server = cluster.addresses("x/a");
    let mut talks = Vec::new();
    for (number, (low, port)) in (0..).zip(PORTS) {
        for family in 0..2 {
            let server = SocketAddr::new(server[family], port + number);
            for (from, is_permitted) in [("x/c", false), ("x/b", false), ("y/a", true)] {
                let client = SocketAddr::new(cluster.addresses(from)[family], low);
                let ends = (cluster.netns(from), cluster.netns("x/a"));
                let talk = Talk::open(ends.0, client, ends.1, server)
                    .with_context(|| format!("{from}, {server}"))?;
                talks.push((talk, is_permitted, format!("{from}, {client} to {server}")));
            }
        }
    }
    (0..2).try_for_each(|node| cluster.node(node).run(ctnetlink::forget)?)?;
    for (talk, _, name) in &mut talks {
        ensure!(talk.is_heard(TIMEOUT)?, "before the policy: {name}");
    }
    let from_y = PolicyPeer::both(LabelSelector::label("ns", "y"), of("a"));
    cluster.put([NetworkPolicy::new("x", "in", of("a")).ingress([PolicyRule::from([from_y])])])?;
    eventually("the forbidden ones have ended", TIMEOUT, || {
        let mut heard = false;
        for (talk, is_permitted, _) in &mut talks {
            heard |= !*is_permitted && talk.is_heard(PAUSE)?;
        }
        Ok(!heard)
    })?;
    for (talk, is_permitted, name) in &mut talks {
        let within = if *is_permitted { TIMEOUT } else { SILENCE };
        ensure!(talk.is_heard(within)? == *is_permitted, "{name} goes on: {}", !*is_permitted);
    }
    Ok(())
}
