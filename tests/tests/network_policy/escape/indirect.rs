//! Packets in packets, which the node takes out, and errors about others' connections.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ctnetlink;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{ether_type, frame as framed, icmp, udp};
use denizen_tests::policy::{
    ClusterNetworkPolicy, LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld,
};
use serde_json::json;

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
            let own = match end {
                _ if end.is_unspecified() => *end,
                IpAddr::V4(_) => from.v4,
                IpAddr::V6(v6) if v6.is_unicast_link_local() => from.link_local,
                IpAddr::V6(_) => from.v6,
            };
            let datagram = [&[8, 0, 0, 0][..], &VNI, &packet].concat();
            let outer = udp(at(own), SocketAddr::new(*end, port), &datagram);
            framed(from.mac, via.mac, &[], ether_type(*end), &outer)
        });
    }
    attempts
}

/// As a network plugin's overlay has it.
fn tunnel(cluster: &TestCluster, port: u16) -> Result<()> {
    tunnel_at(cluster.node(0), "vx0", &format!("dstport {port} dev eth0"))
}

fn tunnel_at(node: &Netns, name: &str, options: &str) -> Result<()> {
    let mac = VTEP.map(|byte| format!("{byte:02x}")).join(":");
    node.ip(&format!(
        "link add {name} address {mac} type vxlan id 7 {options} nolearning\n\
         link set {name} up"
    ))
}

fn routes_anything(cluster: &TestCluster) -> Result<()> {
    for host in 0..2 {
        for key in ["all", "default", "eth0"] {
            cluster.node(host).sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
        }
    }
    Ok(())
}

/// x/a admits pods y/a. Pods x/b and x/c send it packets of y/a's, by addresses that are on none of
/// the node's links and at which it takes packets all the same.
#[test]
fn no_tunnel_is_reached_at_an_address_that_is_on_no_link() -> Result<()> {
    let mut cluster = TestCluster::new("escape-special")?;
    let [a, b, c] = ["x/a", "x/b", "x/c"].map(|pod| End::of(&cluster, pod));
    let (a, b, c) = (a?, b?, c?);
    let (bridge, gateway) = (End::bridge(&cluster)?, End::gateway(&cluster, "x/b")?);
    let [at_a, at_b, at_c] = ["x/a", "x/b", "x/c"].map(|pod| open(cluster.netns(pod)));
    let (at_a, at_b, at_c) = (at_a?, at_b?, at_c?);
    let inner = (cluster.addresses("y/a")[0], a.v4);
    routes_anything(&cluster)?;
    cluster.node(0).sysctl("net.ipv4.conf.all.route_localnet", "1")?;
    // Neither broadcast address is that of the address's own network.
    cluster.node(0).ip("addr add 10.77.0.1 peer 10.88.0.1/24 brd 10.99.0.9 dev eth0")?;
    tunnel(&cluster, PORTS[0])?;
    tunnel_at(cluster.node(0), "vx6", &format!("dstport {} local fd00:10:1::1", PORTS[1]))?;
    let v4 = ["0.0.0.0", "10.88.0.255", "10.99.0.9"].map(ip);
    let v6 = ["fd00:10:1::", "fe80::"].map(ip);
    // A broadcast address before Linux 5.14; and loopback, if nobody serves node ports there.
    let others = ["10.10.1.0", "127.0.0.1"].map(ip);
    let ways = [(c, bridge, &at_c), (b, gateway, &at_b)].map(|(from, via, socket)| {
        let to = |ends: &[IpAddr], port| tunnelled(from, via, ends, port, inner);
        (socket, [to(&v4, PORTS[0]), to(&v6, PORTS[1])], to(&others, PORTS[0]))
    });
    for (socket, ways, _) in &ways {
        for ways in ways {
            let lead = ways.lead_patiently(socket, &at_a)?;
            ensure!(lead == ways.names(), "without policies only {lead:#?}");
        }
    }
    put(&mut cluster, [admits("x", "y")])?;
    for (socket, ways, others) in &ways {
        for ways in ways.iter().chain([others]) {
            none_leads(ways, socket, &at_a, "the node")?;
        }
    }
    Ok(())
}

/// y/a admits pods x/a. x/c sends it packets of x/a's, by addresses that the other node has in the
/// ranges of its pods.
#[test]
fn no_tunnel_of_another_node_is_reached_in_the_ranges_of_its_pods() -> Result<()> {
    let mut cluster = TestCluster::new("escape-remote")?;
    let [c, y] = [End::of(&cluster, "x/c")?, End::of(&cluster, "y/a")?];
    let bridge = End::bridge(&cluster)?;
    let (at_c, at_y) = (open(cluster.netns("x/c"))?, open(cluster.netns("y/a"))?);
    let inner = (cluster.addresses("x/a")[0], y.v4);
    routes_anything(&cluster)?;
    // As flannel's tunnel has it.
    cluster.node(1).ip("addr add 10.10.2.0/32 dev eth0")?;
    for (node, own) in [(0, "fd00:10:1::1"), (1, "fd00:10:2::1")] {
        let node = cluster.node(node);
        tunnel_at(node, "vx0", &format!("dstport {} dev eth0", PORTS[0]))?;
        tunnel_at(node, "vx6", &format!("dstport {} local {own}", PORTS[1]))?;
    }
    let v4 = ["10.10.2.0", "10.10.2.1"].map(ip);
    let v6 = ["fd00:10:2::", "fd00:10:2::1"].map(ip);
    let ways = [(&v4, PORTS[0]), (&v6, PORTS[1])]
        .map(|(ends, port)| tunnelled(c, bridge, ends, port, inner));
    for ways in &ways {
        let lead = ways.lead_patiently(&at_c, &at_y)?;
        ensure!(lead == ways.names(), "without policies only {lead:#?}");
    }
    for (node, number) in cluster.world.nodes.iter_mut().zip(1..) {
        node.pod_cidrs = vec![format!("10.10.{number}.0/24"), format!("fd00:10:{number}::/64")];
    }
    // With a policy that selects nobody, without which Node objects are left out.
    let nobody = json!({ "namespaces": { "matchLabels": { "ns": "nobody" } } });
    cluster.world.tiers = vec![ClusterNetworkPolicy::new("Admin", 0, "p", nobody)];
    let (nodes, tiers) = (cluster.world.nodes.clone(), cluster.world.tiers.clone());
    let world = PolicyWorld { nodes, tiers, ..PolicyWorld::default() };
    cluster.play.nodes.manifests.put("nodes", &world.manifests())?;
    put(&mut cluster, [admits("y", "x")])?;
    ways.iter().try_for_each(|ways| none_leads(ways, &at_c, &at_y, "the other node"))
}

/// Pods a of a namespace admit pods a of another one.
fn admits(namespace: &str, from: &str) -> NetworkPolicy {
    let from = PolicyPeer::both(LabelSelector::label("ns", from), of("a"));
    NetworkPolicy::new(namespace, "in", of("a")).ingress([PolicyRule::from([from])])
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
    routes_anything(&cluster)?;
    tunnel(&cluster, PORTS[0])?;
    let lead = by_c(PORTS[0]).lead_patiently(&at_c, &at_a)?.len();
    ensure!(lead >= 3, "without policies {lead} ways lead there");
    let lead = by_b(PORTS[0]).lead_patiently(&at_b, &at_a)?.len();
    ensure!(lead == 2, "without policies {lead} ways lead there");
    put(&mut cluster, [admits("x", "y")])?;
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
