//! What a pod that no policy selects may do although policies exist, and what an annotation permits
//! one that a policy selects.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{ARP, IPV6, Mac, arp, ether_type, frame as framed, icmp, udp};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule};

use super::{End, EscapeAttempts, at, none_leads, open, put};
use crate::regressions::test_cluster::TestCluster;

/// keepalived's with `use_vmac` (RFC 5798, 7.3).
const VRRP_MAC: Mac = [0, 0, 0x5e, 0, 1, 7];

/// Addresses that nobody has: a virtual one, and one of a machine inside the pod.
const VIRTUAL: [&str; 2] = ["10.10.1.200", "fd00:10:1::200"];
const NESTED: [&str; 2] = ["192.168.122.5", "2001:db8:122::5"];

/// What such pods do every day.
fn ordinary(from: End, to: End) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    let like = |source: IpAddr| if source.is_ipv4() { to.v4 } else { to.v6 };
    for source in VIRTUAL.into_iter().chain(NESTED).map(ip) {
        attempts.add(format!("UDP from {source}"), |marker| {
            let packet = udp(at(source), at(like(source)), marker);
            framed(from.mac, to.mac, &[], ether_type(source), &packet)
        });
    }
    for (source, mac) in [(from.v4, VRRP_MAC), (ip(VIRTUAL[0]), VRRP_MAC), (from.v6, VRRP_MAC)] {
        attempts.add(format!("UDP from {source} with a virtual Ethernet address"), |marker| {
            let packet = udp(at(source), at(like(source)), marker);
            framed(mac, to.mac, &[], ether_type(source), &packet)
        });
    }
    for target in [to.link_local, to.v6] {
        attempts.add(format!("UDP from its link-local address to {target}"), |marker| {
            let packet = udp(at(from.link_local), at(target), marker);
            framed(from.mac, to.mac, &[], IPV6, &packet)
        });
    }
    attempts.add("ARP of a virtual address", |marker| {
        let answer = arp(from.mac, [10, 10, 1, 200], (to.mac, [10, 10, 1, 3]));
        framed(from.mac, to.mac, &[], ARP, &[&answer, marker].concat())
    });
    attempts.add("an advertisement of a virtual address", |marker| {
        let IpAddr::V6(target) = ip(VIRTUAL[1]) else { unreachable!("an IPv6 address") };
        let body = [&[0x20, 0, 0, 0][..], &target.octets(), &[2, 1], &from.mac, marker].concat();
        let packet = icmp(from.link_local, to.link_local, 255, 136, 0, &body);
        framed(from.mac, to.mac, &[], IPV6, &packet)
    });
    attempts.add("another EtherType", |marker| framed(from.mac, to.mac, &[], 0x88b5, marker));
    attempts
}

/// A policy that selects none of the pods of namespace x.
fn elsewhere() -> NetworkPolicy {
    NetworkPolicy::new("y", "deny", LabelSelector::default()).ingress([]).egress([])
}

#[test]
fn a_pod_that_no_policy_selects_loses_nothing_because_of_others_policies() -> Result<()> {
    let mut cluster = TestCluster::new("escape-open")?;
    let [a, b, c] =
        [End::of(&cluster, "x/a")?, End::of(&cluster, "x/b")?, End::of(&cluster, "x/c")?];
    let (at_a, at_b) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/b"))?);
    let at_c = open(cluster.netns("x/c"))?;
    let switched = ordinary(a, c);
    // Nothing is known of the neighbours of another link.
    let gateway = End { v4: c.v4, v6: c.v6, ..End::gateway(&cluster, "x/b")? };
    let routed = ordinary(b, gateway).without("advertisement").without("ARP").without("EtherType");
    let routed = routed.without("Ethernet").without("link-local");
    for host in 0..2 {
        cluster.node(host).sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    }
    put(&mut cluster, [elsewhere()])?;
    for (attempts, from, to) in [(&switched, &at_a, &at_c), (&routed, &at_b, &at_c)] {
        let lead = attempts.lead_patiently(from, to)?;
        let names = attempts.names();
        let lost: Vec<_> = names.difference(&lead).collect();
        ensure!(lost.is_empty(), "{lost:#?}");
    }
    Ok(())
}

/// The sender may send to namespace y alone, and the additional addresses are judged as its own.
#[test]
fn an_annotation_permits_addresses_and_the_pods_policies_hold_for_them() -> Result<()> {
    let mut cluster = TestCluster::new("escape-annotated")?;
    let [a, c] = [End::of(&cluster, "x/a")?, End::of(&cluster, "x/c")?];
    let (from, at_c) = (open(cluster.netns("x/a"))?, open(cluster.netns("x/c"))?);
    let of = |pod| LabelSelector::label("pod", pod);
    let to_c = || {
        NetworkPolicy::new("x", "out", of("a"))
            .egress([PolicyRule::to([PolicyPeer::pods(of("c"))])])
    };
    let nowhere = || NetworkPolicy::new("x", "out", of("a")).egress([]);
    let attempts = || {
        let mut attempts = EscapeAttempts::default();
        for source in VIRTUAL.map(ip) {
            attempts.add(format!("UDP from {source}"), |marker| {
                let target = if source.is_ipv4() { c.v4 } else { c.v6 };
                let packet = udp(at(source), at(target), marker);
                framed(a.mac, c.mac, &[], ether_type(source), &packet)
            });
        }
        attempts
    };
    put(&mut cluster, [to_c()])?;
    none_leads(&attempts(), &from, &at_c, "without the annotation")?;
    let key = "denizen.io/additional-addresses".to_owned();
    // The last one is another pod's.
    let value = format!("{}, {}/128, {}", VIRTUAL[0], VIRTUAL[1], cluster.addresses("y/a")[0]);
    let pod = cluster.world.pods.iter_mut().find(|pod| pod.metadata.name == "a");
    let pod = pod.filter(|pod| pod.metadata.namespace == "x");
    pod.into_iter().for_each(|pod| {
        pod.metadata.annotations.insert(key.clone(), value.clone());
    });
    put(&mut cluster, [to_c()])?;
    let (permitted, lead) = (attempts(), attempts().lead_patiently(&from, &at_c)?.len());
    ensure!(lead == permitted.names().len(), "{lead}");
    let mut stolen = EscapeAttempts::default();
    let foreign = cluster.addresses("y/a")[0];
    stolen.add("another pod's", |marker| {
        framed(a.mac, c.mac, &[], ether_type(foreign), &udp(at(foreign), at(c.v4), marker))
    });
    none_leads(&stolen, &from, &at_c, "another pod's address")?;
    put(&mut cluster, [nowhere()])?;
    none_leads(&attempts(), &from, &at_c, "the pod may send nothing")
}
