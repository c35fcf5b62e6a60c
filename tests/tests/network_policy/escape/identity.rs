//! A pod that passes for another pod, for its node or for a router. No policy selects it: that one
//! exists anywhere is enough.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{
    ARP, BROADCAST, FrameSocket, IPV4, IPV6, Mac, arp, ether_type, frame as framed, group, icmp,
    udp,
};
use denizen_tests::policy::{LabelSelector, NetworkPolicy};
use serde_json::Value;

use super::{End, EscapeAttempts, at, none_leads, open, put};
use crate::regressions::test_cluster::TestCluster;

/// A group of 802.1D, to which no bridge sends on.
const LLDP: Mac = [0x01, 0x80, 0xc2, 0, 0, 0x0e];

/// A policy that selects none of the pods here.
fn elsewhere() -> NetworkPolicy {
    NetworkPolicy::new("y", "deny", LabelSelector::label("pod", "b")).ingress([])
}

fn bytes(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => unreachable!("an IPv4 address"),
    }
}

fn target(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V6(ip) => ip.octets().into(),
        IpAddr::V4(_) => unreachable!("an IPv6 address"),
    }
}

/// Flags and target of an advertisement, and the sender's Ethernet address (RFC 4861, 4.4 and
/// 4.6.1).
fn advertised(address: IpAddr, mac: Mac) -> Vec<u8> {
    [&[0x20, 0, 0, 0][..], &target(address), &[2, 1], &mac].concat()
}

/// What says that `from` is `as_if`.
fn claims(from: End, as_if: End, to: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let ethernet = [("its own", from.mac), ("the other's", as_if.mac)];
    for (whose, mac) in ethernet {
        for (source, target) in
            [(as_if.v4, to.v4), (as_if.v6, to.v6), (as_if.link_local, to.link_local)]
        {
            attempts.add(format!("UDP from {source}, {whose} Ethernet address"), |marker| {
                let packet = udp(at(source), at(target), marker);
                framed(mac, to.mac, &[], ether_type(target), &packet)
            });
        }
        attempts.add(format!("ARP, {whose} Ethernet address"), |marker| {
            let answer = arp(mac, bytes(as_if.v4), (to.mac, bytes(to.v4)));
            framed(mac, to.mac, &[], ARP, &[&answer, marker].concat())
        });
        for address in [as_if.v6, as_if.link_local] {
            attempts.add(
                format!("an advertisement of {address}, {whose} Ethernet address"),
                |marker| {
                    let body = [advertised(address, mac), marker.to_vec()].concat();
                    let packet = icmp(from.link_local, to.link_local, 255, 136, 0, &body);
                    framed(mac, to.mac, &[], IPV6, &packet)
                },
            );
            attempts.add(format!("a claim of {address}, {whose} Ethernet address"), |marker| {
                let body = [&[0; 4][..], &target(address), marker].concat();
                let packet = icmp(ip("::"), to.link_local, 255, 135, 0, &body);
                framed(mac, to.mac, &[], IPV6, &packet)
            });
        }
    }
    attempts.add("another EtherType, the other's Ethernet address", |marker| {
        framed(as_if.mac, to.mac, &[], 0x88b5, marker)
    });
    attempts.add("the other's Ethernet address", |marker| {
        let packet = udp(at(from.v4), at(to.v4), marker);
        framed(as_if.mac, to.mac, &[], IPV4, &packet)
    });
    attempts.add("an answer about its own address with the other's Ethernet address", |marker| {
        let answer = arp(as_if.mac, bytes(from.v4), (to.mac, bytes(to.v4)));
        framed(from.mac, to.mac, &[], ARP, &[&answer, marker].concat())
    });
    attempts
}

/// What routers alone announce.
fn announcements(from: End, to: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    for (name, kind) in [("a router advertisement", 134), ("a redirect", 137)] {
        for (whom, mac, address) in
            [("the neighbour", to.mac, to.link_local), ("all", group(ip("ff02::1")), ip("ff02::1"))]
        {
            attempts.add(format!("{name} to {whom}"), |marker| {
                let body = [&[64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0][..], marker].concat();
                let packet = icmp(from.link_local, address, 255, kind, 0, &body);
                framed(from.mac, mac, &[], IPV6, &packet)
            });
        }
    }
    attempts
}

/// A pod speaks, and its bridge knows again where it is.
fn speaks(cluster: &TestCluster, pod: &str) -> Result<()> {
    let end = End::of(cluster, pod)?;
    open(cluster.netns(pod))?.send(&framed(end.mac, BROADCAST, &[], 0x88b5, b"here"))
}

/// Those of the other's Ethernet address are told apart: it is a node's or a local pod's.
#[test]
fn a_pod_that_no_policy_selects_passes_for_no_other_and_for_no_router() -> Result<()> {
    let mut cluster = TestCluster::new("escape-identity")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let (node, remote) = (End::bridge(&cluster)?, End::of(&cluster, "y/a")?);
    // Its link-local address is of another link.
    let remote = End { mac: a.mac, link_local: remote.v6, ..remote };
    let (from, at_c) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/c"))?);
    let at_node = FrameSocket::open(cluster.node(0), BRIDGE)?;
    let tries = [
        ("a router", announcements(a, c), &at_c),
        ("the node, to a neighbour", claims(a, node, c), &at_c),
        ("a neighbour, to the node", claims(a, c, node), &at_node),
    ];
    let of_remote = claims(a, remote, c).without("the other's");
    for (whom, attempts, to) in &tries {
        speaks(&cluster, "x/c")?;
        let lead = attempts.lead_patiently(&from, to)?;
        ensure!(lead == attempts.names(), "as {whom}, only {lead:#?}");
    }
    speaks(&cluster, "x/c")?;
    ensure!(of_remote.lead_patiently(&from, &at_c)? == of_remote.names());
    put(&mut cluster, [elsewhere()])?;
    speaks(&cluster, "x/c")?;
    none_leads(&of_remote, &from, &at_c, "as a pod elsewhere")?;
    tries.iter().try_for_each(|(whom, attempts, to)| none_leads(attempts, &from, to, whom))
}

/// A bridge learns who is behind a port from frames that it does not send on.
#[test]
fn a_bridge_does_not_learn_a_neighbours_address_from_a_pod() -> Result<()> {
    let mut cluster = TestCluster::new("escape-learn")?;
    let c = End::of(&cluster, "x/c")?;
    let ports = ["x/a", "x/c"].map(|pod| cluster.play.pod(pod).0.host_interface().to_owned());
    let from = open(cluster.netns("x/a"))?;
    let steal = || from.send(&framed(c.mac, LLDP, &[], 0x88cc, b"stolen"));
    speaks(&cluster, "x/c")?;
    ensure!(port_of(&cluster, c.mac)? == ports[1]);
    steal()?;
    ensure!(port_of(&cluster, c.mac)? == ports[0], "without policies nothing keeps a pod from it");
    put(&mut cluster, [elsewhere()])?;
    speaks(&cluster, "x/c")?;
    steal()?;
    ensure!(port_of(&cluster, c.mac)? == ports[1], "a policy is in force");
    Ok(())
}

/// Behind which port the first node's bridge thinks an Ethernet address to be.
fn port_of(cluster: &TestCluster, mac: Mac) -> Result<String> {
    let shown = cluster.node(0).output("bridge", &["-j", "fdb", "show", "br", BRIDGE])?;
    let shown: Value = serde_json::from_str(&shown)?;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut rows = shown.as_array().context("rows")?.iter().filter(|row| row["mac"] == *mac);
    Ok(rows.find_map(|row| row["ifname"].as_str()).unwrap_or_default().to_owned())
}
