//! Frames that a bridge hands from one pod's port to another's.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{
    self, ARP, BROADCAST, IPV4, TAGS, arp, ether_type, frame as framed, group, icmp, packet, udp,
};
use denizen_tests::policy::{LabelSelector, NetworkPolicy};

use super::{End, EscapeAttempts, at, deny_all, long, none_leads, open, put};
use crate::regressions::test_cluster::TestCluster;

/// Neighbour discovery and multicast listener discovery (RFC 4861, RFC 2710, RFC 3810).
pub(super) const DISCOVERY: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];

fn attempts(from: End, to: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let plain = |from_ip: IpAddr, to_ip: IpAddr| {
        move |marker: &[u8]| {
            let packet = udp(at(from_ip), at(to_ip), marker);
            framed(from.mac, to.mac, &[], ether_type(to_ip), &packet)
        }
    };
    attempts.add("UDP, IPv4", plain(from.v4, to.v4));
    attempts.add("UDP, IPv6", plain(from.v6, to.v6));
    attempts.add("UDP to the link-local address", plain(from.v6, to.link_local));
    attempts.add("UDP from the link-local address", plain(from.link_local, to.v6));
    attempts.add("UDP, link-local", plain(from.link_local, to.link_local));
    attempts.add("UDP to an address that nobody has", plain(from.v4, ip("203.0.113.99")));
    attempts.add("UDP to an IPv6 address that nobody has", plain(from.v6, ip("2001:db8:99::9")));
    for other in ["255.255.255.255", "10.10.1.255", "224.0.0.1", "239.1.2.3"].map(ip) {
        attempts.add(format!("UDP to {other} in a unicast frame"), plain(from.v4, other));
    }
    for other in ["ff02::1", "ff05::1:3"].map(ip) {
        attempts.add(format!("UDP to {other} in a unicast frame"), plain(from.v6, other));
        attempts.add(format!("UDP to {other}"), |marker| {
            let packet = udp(at(from.v6), at(other), marker);
            framed(from.mac, group(other), &[], frame::IPV6, &packet)
        });
    }
    for (other, mac) in [("255.255.255.255", BROADCAST), ("224.0.0.1", group(ip("224.0.0.1")))] {
        attempts.add(format!("UDP to {other}"), |marker| {
            framed(from.mac, mac, &[], IPV4, &udp(at(from.v4), at(ip(other)), marker))
        });
    }
    tagged(&mut attempts, from, to);
    other_protocols(&mut attempts, from, to);
    messages(&mut attempts, from, to);
    attempts
}

fn tagged(attempts: &mut EscapeAttempts, from: End, to: End) {
    let foreign = SocketAddr::new(ip("192.0.2.1"), 1);
    let mut stacks: Vec<Vec<(u16, u16)>> = Vec::new();
    for kind in TAGS {
        stacks.extend([vec![(kind, 0)], vec![(kind, 5)]]);
        stacks.extend(TAGS.map(|inner| vec![(kind, 0), (inner, 0)]));
        stacks.push(vec![(kind, 0), (kind, 7), (kind, 0)]);
    }
    for tags in &stacks {
        for (source, target) in [(at(from.v4), to.v4), (at(from.v6), to.v6), (foreign, to.v4)] {
            attempts.add(format!("tags {tags:x?} from {source}"), |marker| {
                let packet = udp(source, at(target), marker);
                framed(from.mac, to.mac, tags, ether_type(target), &packet)
            });
        }
        attempts.add(format!("ARP behind tags {tags:x?}"), |marker| {
            framed(from.mac, to.mac, tags, ARP, &[claim(from, to), marker.to_vec()].concat())
        });
    }
}

/// An answer about the sender's own address.
fn claim(from: End, to: End) -> Vec<u8> {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => unreachable!("an IPv4 address"),
    };
    arp(from.mac, bytes(from.v4), (to.mac, bytes(to.v4)))
}

fn other_protocols(attempts: &mut EscapeAttempts, from: End, to: End) {
    let inner = |marker: &[u8]| udp(at(from.v4), at(to.v4), marker);
    attempts.add("PPPoE", |marker| {
        let packet = inner(marker);
        let length = (packet.len() as u16 + 2).to_be_bytes();
        let header = [&[0x11, 0, 0, 1][..], &length, &[0, 0x21]].concat();
        framed(from.mac, to.mac, &[], 0x8864, &[header, packet].concat())
    });
    attempts.add("LLC and SNAP", |marker| {
        let packet = [vec![0xaa, 0xaa, 3, 0, 0, 0, 8, 0], inner(marker)].concat();
        framed(from.mac, to.mac, &[], packet.len() as u16, &packet)
    });
    for kind in [0x88b5, 0x8847, 0x86dc, 0x9100] {
        attempts.add(format!("EtherType {kind:#x}"), |marker| {
            framed(from.mac, to.mac, &[], kind, &inner(marker))
        });
    }
    for protocol in [2, 4, 41, 47, 50, 115, 253] {
        attempts.add(format!("IP protocol {protocol}"), |marker| {
            let packet = packet(from.v4, to.v4, protocol, 64, marker);
            framed(from.mac, to.mac, &[], IPV4, &packet)
        });
    }
    for protocol in [0, 43, 44, 59, 60] {
        attempts.add(format!("IPv6's next header {protocol}"), |marker| {
            let packet = packet(from.v6, to.v6, protocol, 64, &[&[59; 8], marker].concat());
            framed(from.mac, to.mac, &[], frame::IPV6, &packet)
        });
    }
    attempts.add("ARP with more behind it", |marker| {
        framed(from.mac, to.mac, &[], ARP, &[claim(from, to), long(marker)].concat())
    });
}

fn messages(attempts: &mut EscapeAttempts, from: End, to: End) {
    attempts.add("an echo request", |marker| {
        framed(from.mac, to.mac, &[], IPV4, &icmp(from.v4, to.v4, 64, 8, 0, marker))
    });
    let message = |source: IpAddr, target: IpAddr, hop_limit, kind| {
        move |marker: &[u8]| {
            let packet = icmp(source, target, hop_limit, kind, 0, &long(marker));
            framed(from.mac, to.mac, &[], frame::IPV6, &packet)
        }
    };
    for (name, source, target) in [
        ("global", from.v6, to.v6),
        ("link-local", from.link_local, to.link_local),
        ("to link-local", from.v6, to.link_local),
        ("to all", from.link_local, ip("ff02::1")),
    ] {
        attempts.add(format!("ICMPv6 echo, {name}"), message(source, target, 64, 128));
        for kind in DISCOVERY {
            for hop_limit in [1, 64, 255] {
                let name = format!("ICMPv6 {kind}, {name}, hop limit {hop_limit}");
                attempts.add(name, message(source, target, hop_limit, kind));
            }
        }
    }
}

fn of(pod: &str) -> LabelSelector {
    LabelSelector::label("pod", pod)
}

#[test]
fn nothing_passes_from_port_to_port_where_either_pod_denies_everything() -> Result<()> {
    let mut cluster = TestCluster::new("escape-switched")?;
    let attempts = attempts(End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?);
    let (from, to) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/c"))?);
    let lead = attempts.lead_patiently(&from, &to)?;
    // Without connection tracking nobody puts fragments together.
    let shut: Vec<_> = attempts.names().difference(&lead).copied().collect();
    ensure!(shut.iter().all(|name| name.starts_with("IPv6's next header")), "{shut:#?}");
    put(&mut cluster, [deny_all()])?;
    none_leads(&attempts, &from, &to, "both deny everything")?;
    put(&mut cluster, [NetworkPolicy::new("x", "in", of("c")).ingress([])])?;
    none_leads(&attempts, &from, &to, "the receiver denies ingress")?;
    put(&mut cluster, [NetworkPolicy::new("x", "out", of("a")).egress([])])?;
    none_leads(&attempts, &from, &to, "the sender is denied egress")
}
