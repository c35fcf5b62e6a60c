//! Packets in packets, which the node takes out, and errors about others' connections.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ctnetlink;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{ether_type, frame as framed, icmp, udp};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule};

use super::{End, EscapeAttempts, PORT, at, none_leads, open, put};
use crate::regressions::test_cluster::{TIMEOUT, TestCluster};

/// The node's end of a tunnel to other nodes: its ports, its Ethernet address, its number.
const PORTS: [u16; 2] = [8472, 4789];
const VTEP: [u8; 6] = [0x02, 0, 0, 0, 0x99, 0x01];
const VNI: [u8; 4] = [0, 0, 7, 0];

fn of(pod: &str) -> LabelSelector {
    LabelSelector::label("pod", pod)
}

/// A packet of a pod elsewhere to `to`, in a tunnel's packet to an address of a node.
fn tunnelled(
    from: End,
    via: End,
    ends: &[IpAddr],
    port: u16,
    (source, to): (IpAddr, IpAddr),
) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    for end in ends {
        attempts.add(format!("VXLAN to {end}"), |marker| {
            let packet = udp(at(source), at(to), marker);
            let packet = framed([2, 0, 0, 0, 0x99, 2], VTEP, &[], ether_type(to), &packet);
            let own = if end.is_ipv4() { from.v4 } else { from.v6 };
            let datagram = [&[8, 0, 0, 0][..], &VNI, &packet].concat();
            let outer = udp(at(own), SocketAddr::new(*end, port), &datagram);
            framed(from.mac, via.mac, &[], ether_type(*end), &outer)
        });
    }
    attempts
}

/// As a network plugin's overlay has it.
fn tunnel(cluster: &TestCluster, port: u16) -> Result<()> {
    let mac = VTEP.map(|byte| format!("{byte:02x}")).join(":");
    cluster.node(0).ip(&format!(
        "link add vx0 address {mac} type vxlan id 7 dstport {port} dev eth0 nolearning\n\
         link set vx0 up"
    ))
}

/// x/a admits pods y/a. Pods x/b and x/c, which no policy selects, send it packets of y/a's.
#[test]
fn no_pod_reaches_another_by_a_tunnel_of_its_node() -> Result<()> {
    let mut cluster = TestCluster::new("escape-tunnel")?;
    let [a, b, c] =
        [End::of(&cluster, "x/a")?, End::of(&cluster, "x/b")?, End::of(&cluster, "x/c")?];
    let (bridge, gateway) = (End::bridge(&cluster)?, End::gateway(&cluster, "x/b")?);
    let [at_a, at_b, at_c] = ["x/a", "x/b", "x/c"].map(|pod| open(cluster.netns(pod)));
    let (at_a, at_b, at_c) = (at_a?, at_b?, at_c?);
    let inner = (cluster.addresses("y/a")[0], a.v4);
    let node = ip("192.168.0.1");
    let by_c = |port| {
        let ends = [bridge.v4, node, ip("10.10.1.255"), ip("255.255.255.255"), ip("224.0.0.1")];
        tunnelled(c, bridge, &ends, port, inner)
    };
    let by_b = |port| tunnelled(b, gateway, &[gateway.v4, node], port, inner);
    for key in ["all", "default", "eth0"] {
        cluster.node(0).sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
    }
    tunnel(&cluster, PORTS[0])?;
    let lead = by_c(PORTS[0]).lead_patiently(&at_c, &at_a)?.len();
    ensure!(lead >= 3, "without policies {lead} ways lead there");
    let lead = by_b(PORTS[0]).lead_patiently(&at_b, &at_a)?.len();
    ensure!(lead == 2, "without policies {lead} ways lead there");
    let from_y = || PolicyPeer::both(LabelSelector::label("ns", "y"), of("a"));
    let policy = || NetworkPolicy::new("x", "in", of("a")).ingress([PolicyRule::from([from_y()])]);
    put(&mut cluster, [policy()])?;
    none_leads(&by_c(PORTS[0]), &at_c, &at_a, "bridged")?;
    none_leads(&by_b(PORTS[0]), &at_b, &at_a, "routed")?;
    // The agent follows what comes later, whatever pods may send to their node.
    let host = &mut cluster.play.nodes.hosts[0];
    host.agent = None;
    let objects = Objects::Manifests(cluster.play.nodes.manifests.folder().to_owned());
    cluster.play.nodes.hosts[0].start_agent(objects, &["--policy-to-node=allow"])?;
    cluster.node(0).ip("link del vx0")?;
    tunnel(&cluster, PORTS[1])?;
    eventually("the new tunnel is known", TIMEOUT, || {
        let rules = cluster
            .node(0)
            .output("nft", &["list", "set", "ip", "denizen-firewall", "tunnel-ports"])?;
        Ok(rules.contains(&PORTS[1].to_string()))
    })?;
    cluster.node(0).run(ctnetlink::forget)??;
    none_leads(&by_c(PORTS[1]), &at_c, &at_a, "bridged, another port")?;
    none_leads(&by_b(PORTS[1]), &at_b, &at_a, "routed, another port")
}

/// x/c speaks with y/a. x/a, which may send nothing, says that y/a does not listen.
#[test]
fn an_isolated_pod_ends_no_connection_of_another() -> Result<()> {
    let mut cluster = TestCluster::new("escape-errors")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let bridge = End::bridge(&cluster)?;
    let from = open(cluster.netns("x/a"))?;
    put(&mut cluster, [NetworkPolicy::new("x", "out", of("a")).egress([])])?;
    for (family, code) in [(0, (3, 3)), (1, (1, 4))] {
        let target = SocketAddr::new(cluster.addresses("y/a")[family], PORT);
        let own = [c.v4, c.v6][family];
        let server = cluster.netns("y/a").run(|| UdpSocket::bind(target))??;
        let client = cluster.netns("x/c").run(|| {
            let socket = UdpSocket::bind(SocketAddr::new(own, PORT))?;
            socket.connect(target)?;
            Ok::<_, std::io::Error>(socket)
        })??;
        client.send(b"question")?;
        let mut buffer = [0; 64];
        server.set_read_timeout(Some(Duration::from_secs(5)))?;
        let (_, seen) = server.recv_from(&mut buffer)?;
        server.send_to(b"answer", seen)?;
        client.set_read_timeout(Some(Duration::from_secs(5)))?;
        client.recv(&mut buffer)?;
        // About what the client sent, as if it had come to nobody.
        let about = udp(at(own), target, b"question");
        let body = [&[0; 4][..], &about].concat();
        let source = [a.v4, a.v6][family];
        for mac in [c.mac, bridge.mac] {
            let error = icmp(source, own, 64, code.0, code.1, &body);
            from.send(&framed(a.mac, mac, &[], ether_type(own), &error))?;
        }
        std::thread::sleep(super::ARRIVAL_TIMEOUT);
        ensure!(client.send(b"goes on").is_ok(), "family {family}: the connection has ended");
    }
    Ok(())
}
