//! Packets that the node routes to another pod, or answers itself.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{IPV6, ether_type, frame as framed, icmp, packet, udp};
use denizen_tests::policy::{LabelSelector, NetworkPolicy};

use super::switched::DISCOVERY;
use super::{End, EscapeAttempts, at, deny_all, long, none_leads, open, put};
use crate::regressions::test_cluster::TestCluster;

/// Through `via`.
fn attempts(from: End, via: End, to: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let sent = |packet: &[u8], to: IpAddr| framed(from.mac, via.mac, &[], ether_type(to), packet);
    for (source, target) in [(from.v4, to.v4), (from.v6, to.v6)] {
        attempts.add(format!("UDP to {target}"), |marker| {
            sent(&udp(at(source), at(target), marker), target)
        });
        for protocol in [2, 253] {
            attempts.add(format!("IP protocol {protocol} to {target}"), |marker| {
                sent(&packet(source, target, protocol, 64, marker), target)
            });
        }
    }
    for kind in DISCOVERY {
        for hop_limit in [2, 64, 255] {
            attempts.add(format!("ICMPv6 {kind}, hop limit {hop_limit}"), |marker| {
                sent(&icmp(from.v6, to.v6, hop_limit, kind, 0, &long(marker)), to.v6)
            });
        }
    }
    attempts
}

/// What is answered carries the question, or a part of it.
fn questions(from: End, node: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let sent = |packet: &[u8], to: IpAddr| framed(from.mac, node.mac, &[], ether_type(to), packet);
    for (source, target) in [
        (from.v4, node.v4),
        (from.v6, node.v6),
        (from.v6, node.link_local),
        (from.link_local, node.v6),
        (from.link_local, node.link_local),
    ] {
        let echo = if target.is_ipv4() { 8 } else { 128 };
        attempts.add(format!("a ping from {source} to {target}"), |marker| {
            sent(&icmp(source, target, 64, echo, 0, marker), target)
        });
        attempts.add(format!("UDP from {source} to {target}"), |marker| {
            sent(&udp(at(source), at(target), marker), target)
        });
    }
    attempts
}

#[test]
fn nothing_is_routed_between_pods_that_deny_everything() -> Result<()> {
    let mut cluster = TestCluster::new("escape-routed")?;
    let [a, b] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/b")?];
    let to_b = attempts(a, End::bridge(&cluster)?, b);
    let to_a = attempts(b, End::gateway(&cluster, "x/b")?, a);
    let (at_a, at_b) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/b"))?);
    for (attempts, from, to) in [(&to_b, &at_a, &at_b), (&to_a, &at_b, &at_a)] {
        let lead = attempts.lead_patiently(from, to)?;
        ensure!(lead == attempts.names(), "only {lead:#?}");
    }
    put(&mut cluster, [deny_all()])?;
    none_leads(&to_b, &at_a, &at_b, "from the bridge")?;
    none_leads(&to_a, &at_b, &at_a, "to the bridge")
}

#[test]
fn the_node_answers_nothing_of_a_pod_that_may_send_nothing() -> Result<()> {
    let mut cluster = TestCluster::new("escape-node")?;
    // Every answer counts.
    cluster.node(0).sysctl("net.ipv4.icmp_ratelimit", "0")?;
    cluster.node(0).sysctl("net.ipv6.icmp.ratelimit", "0")?;
    let [a, b] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/b")?];
    let bridged = questions(a, End::bridge(&cluster)?);
    let routed = questions(b, End::gateway(&cluster, "x/b")?);
    let (at_a, at_b) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/b"))?);
    for (attempts, pod) in [(&bridged, &at_a), (&routed, &at_b)] {
        let lead = attempts.lead_patiently(pod, pod)?;
        ensure!(lead == attempts.names(), "only {lead:#?}");
    }
    put(&mut cluster, [deny_all()])?;
    none_leads(&bridged, &at_a, &at_a, "bridged")?;
    none_leads(&routed, &at_b, &at_b, "routed")
}

/// Discovery is for hosts on the link. The node would also route it back to the link that it comes
/// from, whatever its source is.
#[test]
fn no_discovery_is_routed_to_a_neighbour() -> Result<()> {
    let mut cluster = TestCluster::new("escape-discovery")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let via = End::bridge(&cluster)?;
    let mut attempts = EscapeAttempts::default();
    for source in [a.link_local, ip("fe80::bad"), ip("::"), a.v6] {
        for target in [c.v6, c.link_local] {
            for kind in DISCOVERY {
                for hop_limit in [2, 64, 255] {
                    let name =
                        format!("ICMPv6 {kind} from {source} to {target}, hop limit {hop_limit}");
                    attempts.add(name, |marker| {
                        let packet = icmp(source, target, hop_limit, kind, 0, &long(marker));
                        framed(a.mac, via.mac, &[], IPV6, &packet)
                    });
                }
            }
        }
    }
    let (from, to) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/c"))?);
    let lead = attempts.lead_patiently(&from, &to)?;
    for kind in DISCOVERY {
        let name = format!("ICMPv6 {kind} ");
        ensure!(lead.iter().any(|lead| lead.starts_with(&name)), "without policies: {lead:#?}");
    }
    put(&mut cluster, [deny_all()])?;
    none_leads(&attempts, &from, &to, "both deny everything")?;
    let of = |pod| LabelSelector::label("pod", pod);
    put(&mut cluster, [NetworkPolicy::new("x", "in", of("c")).ingress([])])?;
    none_leads(&attempts, &from, &to, "the receiver denies ingress")?;
    put(&mut cluster, [NetworkPolicy::new("x", "out", of("a")).egress([])])?;
    none_leads(&attempts, &from, &to, "the sender is denied egress")
}
