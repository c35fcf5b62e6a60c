//! Packets that the node, or a neighbour, hands to another pod than their address says: the
//! Ethernet address decides who gets a packet, and the IP address what policies say about it.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{
    ARP, BROADCAST, FrameSocket, IPV6, Mac, TAGS, arp, ether_type, frame as framed, group, icmp,
    mac_of, udp,
};
use denizen_tests::packets::probe::{Outcome, Probe, SILENCE};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule};

use super::{End, EscapeAttempts, at, none_leads, open, put};
use crate::regressions::test_cluster::{TestCluster, expect_at};

/// An Ethernet address that nobody has.
const STRANGE: Mac = [0x02, 0xde, 0xad, 0, 0, 1];
/// A pod's link-local address that is not made of its Ethernet address.
const STRANGE_LINK_LOCAL: &str = "fe80::5";
/// How long the node takes to ask who has an address, and to read the answer.
const PAUSE: Duration = Duration::from_millis(50);

fn of(pod: &str) -> LabelSelector {
    LabelSelector::label("pod", pod)
}

/// x/a admits nobody.
fn isolating() -> NetworkPolicy {
    NetworkPolicy::new("x", "in", of("a")).ingress([])
}

/// Of the two addresses, IPv4 first, the one of this version.
fn like(target: IpAddr, [v4, v6]: [&str; 2]) -> IpAddr {
    ip(if target.is_ipv4() { v4 } else { v6 })
}

/// An answer that `address` is at `mac`, to the node's interface.
fn claim(from: End, address: IpAddr, mac: Mac, node: End) -> Vec<u8> {
    match (address, node.v4) {
        (IpAddr::V4(address), IpAddr::V4(asks)) => {
            let answer = arp(mac, address.octets(), (node.mac, asks.octets()));
            framed(from.mac, node.mac, &[], ARP, &answer)
        }
        (IpAddr::V6(v6), _) => {
            let body = [&[0x60, 0, 0, 0][..], &v6.octets(), &[2, 1], &mac].concat();
            framed(from.mac, node.mac, &[], IPV6, &icmp(address, node.v6, 255, 136, 0, &body))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => unreachable!("IPv4 first"),
    }
}

/// An address that a pod says is at an Ethernet address.
struct ClaimedAddress {
    address: IpAddr,
    mac: Mac,
    /// The node's interface that asks.
    at: End,
}

/// x/a admits nobody. x/c, which no policy selects, says that an address is behind a strange
/// Ethernet address, or behind x/a's, and sends to that address through the node: on the node's own
/// bridge, and where the node is behind a port of the bridge.
#[test]
fn the_node_is_not_led_to_an_isolated_neighbour() -> Result<()> {
    let mut cluster = TestCluster::new("escape-led")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let via = End::bridge(&cluster)?;
    cluster.node(0).ip(&format!(
        "link add nv0 type veth peer name nv1\n\
         link set nv0 master {BRIDGE} up\n\
         link set nv1 up\n\
         addr add 10.20.0.1/24 dev nv1\n\
         addr add fd00:20::1/64 dev nv1 nodad"
    ))?;
    let behind = End {
        mac: mac_of(cluster.node(0), "nv1")?,
        v4: ip("10.20.0.1"),
        v6: ip("fd00:20::1"),
        ..via
    };
    let mut claimed = vec![ClaimedAddress { address: c.v6, mac: STRANGE, at: via }];
    for (number, mac) in [STRANGE, BROADCAST, a.mac].into_iter().enumerate() {
        for (at, networks) in [(via, ["10.10.1", "fd00:10:1:"]), (behind, ["10.20.0", "fd00:20:"])]
        {
            let last = 201 + number;
            let [v4, v6] = networks;
            for address in [format!("{v4}.{last}"), format!("{v6}:{last}")] {
                claimed.push(ClaimedAddress { address: ip(&address), mac, at });
            }
        }
    }
    let mut attempts = EscapeAttempts::default();
    let packet = |target: IpAddr, payload: &[u8]| {
        let source = like(target, ["10.10.1.222", "fd00:10:1::222"]);
        framed(c.mac, via.mac, &[], ether_type(target), &udp(at(source), at(target), payload))
    };
    for ClaimedAddress { address, mac, .. } in &claimed {
        attempts.add(format!("{address} behind {mac:02x?}"), |marker| packet(*address, marker));
    }
    let (from, to) = (open(cluster.netns("x/c"))?, open(cluster.netns("x/a"))?);
    let claim_all = |cluster: &TestCluster| -> Result<()> {
        cluster.node(0).ip("neigh flush all")?;
        claimed.iter().try_for_each(|of| from.send(&packet(of.address, b"asks")))?;
        sleep(PAUSE);
        claimed.iter().try_for_each(|of| from.send(&claim(c, of.address, of.mac, of.at)))?;
        sleep(PAUSE);
        Ok(())
    };
    claim_all(&cluster)?;
    let lead = attempts.lead_patiently(&from, &to)?;
    ensure!(lead == attempts.names(), "without policies, only {lead:#?}");
    put(&mut cluster, [isolating()])?;
    claim_all(&cluster)?;
    none_leads(&attempts, &from, &to, "the pod admits nobody")
}

/// What the node sends to an isolated pod itself, with or without being asked.
fn own(node: End, pod: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    for (source, target) in
        [(node.v4, pod.v4), (node.v6, pod.v6), (node.link_local, pod.link_local)]
    {
        for mac in [pod.mac, STRANGE] {
            attempts.add(format!("UDP to {target} at {mac:02x?}"), |marker| {
                let packet = udp(at(source), at(target), marker);
                framed(node.mac, mac, &[], ether_type(target), &packet)
            });
        }
    }
    for (target, mac) in [
        (ip("255.255.255.255"), BROADCAST),
        (ip("224.0.0.251"), group(ip("224.0.0.251"))),
        (ip("ff02::fb"), group(ip("ff02::fb"))),
    ] {
        attempts.add(format!("UDP to {target}"), |marker| {
            let source = if target.is_ipv4() { node.v4 } else { node.v6 };
            framed(node.mac, mac, &[], ether_type(target), &udp(at(source), at(target), marker))
        });
    }
    for (kind, hop_limit, target) in [
        (130, 1, "ff02::1"),
        (134, 255, "ff02::1"),
        (134, 255, STRANGE_LINK_LOCAL),
        (135, 255, "ff02::1:ff00:2"),
        (136, 255, STRANGE_LINK_LOCAL),
        (137, 255, STRANGE_LINK_LOCAL),
    ] {
        attempts.add(format!("ICMPv6 {kind} to {target}"), |marker| {
            let packet = icmp(node.link_local, ip(target), hop_limit, kind, 0, marker);
            framed(node.mac, pod.mac, &[], IPV6, &packet)
        });
    }
    attempts.add("ARP", |marker| {
        let answer = arp(node.mac, [10, 10, 1, 1], (pod.mac, [10, 10, 1, 2]));
        framed(node.mac, pod.mac, &[], ARP, &[&answer, marker].concat())
    });
    attempts.add("another EtherType", |marker| framed(node.mac, pod.mac, &[], 0x88b5, marker));
    attempts
}

/// What the node may have been led to send.
fn strange(node: End, pod: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let tags = TAGS.map(|tag| vec![(tag, 5)]);
    for target in ["10.10.1.201", "fd00:10:1::201", STRANGE_LINK_LOCAL, "239.1.2.3", "ff05::2"] {
        let target = ip(target);
        let source = if target.is_ipv4() { node.v4 } else { node.v6 };
        for tags in [&[][..], &tags[0], &tags[1]] {
            attempts.add(format!("UDP to {target}, tags {tags:x?}"), |marker| {
                let packet = udp(at(source), at(target), marker);
                framed(node.mac, pod.mac, tags, ether_type(target), &packet)
            });
        }
    }
    attempts.add("a solicitation that came through a router", |marker| {
        let packet = icmp(node.v6, ip("fd00:10:1::201"), 254, 135, 0, marker);
        framed(node.mac, pod.mac, &[], IPV6, &packet)
    });
    attempts
}

#[test]
fn the_nodes_own_packets_reach_an_isolated_pod() -> Result<()> {
    let mut cluster = TestCluster::new("escape-own")?;
    let (a, node) = (End::of(&cluster, "x/a")?, End::bridge(&cluster)?);
    let (from, to) = (FrameSocket::open(cluster.node(0), BRIDGE)?, open(cluster.netns("x/a"))?);
    let (own, strange) = (own(node, a), strange(node, a));
    put(&mut cluster, [isolating()])?;
    let lead = own.lead_patiently(&from, &to)?;
    let names = own.names();
    let lost: Vec<_> = names.difference(&lead).collect();
    ensure!(lost.is_empty(), "{lost:#?}");
    none_leads(&strange, &from, &to, "for another address")?;
    // It asks for the pod's Ethernet address first.
    cluster.node(0).ip("neigh flush all")?;
    cluster.expect(cluster.node(0), "x/a", true)
}

/// Where x/c may send to, and where x/a is said to be.
const NETWORKS: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/48"];
const ALIASES: [&str; 2] = ["203.0.113.5", "2001:db8:113::5"];

/// x/c may send to these ranges alone.
fn permitting(ranges: &[&str]) -> NetworkPolicy {
    let peers = ranges.iter().map(|range| PolicyPeer::block(*range, []));
    NetworkPolicy::new("x", "out", of("c")).egress([PolicyRule::to(peers)])
}

/// An alias of x/a on its interface, which x/c believes to be there.
fn alias(cluster: &TestCluster, address: IpAddr, mac: Mac) -> Result<()> {
    let length = if address.is_ipv4() { 32 } else { 128 };
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let nodad = if address.is_ipv4() { "" } else { "nodad" };
    cluster.netns("x/a").ip(&format!("addr add {address}/{length} dev eth0 {nodad}"))?;
    cluster.netns("x/c").ip(&format!(
        "route add {address}/{length} dev eth0\n\
         neigh replace {address} lladdr {mac} dev eth0 nud permanent"
    ))
}

fn connects(from: &Netns, to: SocketAddr) -> bool {
    let outcome = Probe::tcp(to).timeout(SILENCE).send_in(from);
    // Nobody speaks there: to be connected is enough.
    !matches!(outcome, Outcome::Dropped | Outcome::Unreachable | Outcome::Refused)
}

/// x/c may send to a network outside of the cluster alone. x/a, its neighbour, which no policy
/// selects, takes an address of that network, and x/c knows x/a's Ethernet address.
#[test]
fn a_neighbour_under_a_permitted_address_is_not_reached() -> Result<()> {
    let mut cluster = TestCluster::new("escape-alias")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let (from, to) = (open(cluster.netns("x/c"))?, open(cluster.netns("x/a"))?);
    let mut attempts = EscapeAttempts::default();
    for target in ALIASES.map(ip) {
        for mac in [a.mac, STRANGE, BROADCAST] {
            attempts.add(format!("UDP to {target} at {mac:02x?}"), |marker| {
                let source = if target.is_ipv4() { c.v4 } else { c.v6 };
                let packet = udp(at(source), at(target), marker);
                framed(c.mac, mac, &[], ether_type(target), &packet)
            });
        }
    }
    let aliases = ALIASES.map(|alias| SocketAddr::new(ip(alias), 7777));
    for address in aliases {
        alias(&cluster, address.ip(), a.mac)?;
    }
    let listen = || aliases.map(TcpListener::bind).into_iter().collect::<Result<Vec<_>, _>>();
    let _listeners = cluster.netns("x/a").run(listen)?.context("x/a listens")?;
    put(&mut cluster, [permitting(&NETWORKS)])?;
    none_leads(&attempts, &from, &to, "outside of the cluster alone")?;
    for address in aliases {
        ensure!(!connects(cluster.netns("x/c"), address), "{address}");
    }
    // Everything is permitted to everybody, for whom policies have no word.
    let lead = |attempts: &EscapeAttempts| -> Result<()> {
        let lead = attempts.lead_patiently(&from, &to)?;
        ensure!(lead == attempts.names(), "only {lead:#?}");
        Ok(())
    };
    put(&mut cluster, [NetworkPolicy::new("x", "in", of("c")).ingress([])])?;
    lead(&attempts)?;
    // A group is permitted by its address: whoever is in it hears it.
    let mut to_groups = EscapeAttempts::default();
    for target in ["239.1.2.3", "ff05::1:3"].map(ip) {
        to_groups.add(format!("UDP to {target}"), |marker| {
            let source = if target.is_ipv4() { c.v4 } else { c.v6 };
            let packet = udp(at(source), at(target), marker);
            framed(c.mac, group(target), &[], ether_type(target), &packet)
        });
    }
    put(&mut cluster, [permitting(&["239.1.2.0/24", "ff05::/16"])])?;
    lead(&to_groups)?;
    // The neighbour itself, and by an annotation its further addresses.
    let [v4, v6] = cluster.addresses("x/a").map(|ip| ip.to_string());
    put(&mut cluster, [permitting(&[&format!("{v4}/32"), &format!("{v6}/128")])])?;
    cluster.expect(cluster.netns("x/c"), "x/a", true)?;
    for service in cluster.play.pod("x/a").1 {
        expect_at(cluster.netns("x/c"), SocketAddr::new(service, 80), true)?;
    }
    let pods = cluster.world.pods.iter_mut();
    let annotated = pods.filter(|pod| pod.metadata.namespace == "x" && pod.metadata.name == "a");
    annotated.for_each(|pod| {
        let key = "denizen.io/additional-addresses".to_owned();
        pod.metadata.annotations.insert(key, ALIASES.join(", "));
    });
    put(&mut cluster, [permitting(&NETWORKS)])?;
    lead(&attempts)
}
