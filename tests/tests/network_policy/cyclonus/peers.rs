//! Who is a peer: nobody in particular, ten kinds, and every pair of kinds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyWorld};

use super::{DIRECTIONS, Direction, label, one, rule_for, with};
use crate::case::Case;

pub fn cases(world: &PolicyWorld) -> Vec<Case> {
    DIRECTIONS.into_iter().flat_map(|direction| of(direction, world)).collect()
}

fn of(direction: Direction, world: &PolicyWorld) -> Vec<Case> {
    let kinds = kinds(world);
    let case = |name: String, peers| {
        one(format!("{direction:?}: {name}"), with(direction, rule_for(direction, peers)))
    };
    let mut cases = vec![case("no peers".to_owned(), vec![])];
    for (number, (name, peers)) in kinds.iter().enumerate() {
        cases.push(case((*name).to_owned(), peers.clone()));
        for (other, others) in &kinds[number + 1..] {
            cases.push(case(format!("{name}, {other}"), [&peers[..], others].concat()));
        }
    }
    cases
}

/// Each with a name; a block is there once for each family.
fn kinds(world: &PolicyWorld) -> Vec<(&'static str, Vec<PolicyPeer>)> {
    let all = LabelSelector::default;
    let (pod_c, ns_x) = (|| label("pod", "c"), || label("ns", "x"));
    vec![
        ("all pods", vec![PolicyPeer::pods(all())]),
        ("pods c", vec![PolicyPeer::pods(pod_c())]),
        ("all namespaces", vec![PolicyPeer::namespaces(all())]),
        ("all pods of all namespaces", vec![PolicyPeer::both(all(), all())]),
        ("pods c of all namespaces", vec![PolicyPeer::both(all(), pod_c())]),
        ("namespace x", vec![PolicyPeer::namespaces(ns_x())]),
        ("all pods of namespace x", vec![PolicyPeer::both(ns_x(), all())]),
        ("pods c of namespace x", vec![PolicyPeer::both(ns_x(), pod_c())]),
        ("a block", blocks(world, false)),
        ("a block with an exception", blocks(world, true)),
    ]
}

/// The 256 addresses around pod z/c's; the exception is the 16 around it.
pub fn blocks(world: &PolicyWorld, except: bool) -> Vec<PolicyPeer> {
    let pod = world.pod("z", "c").expect("one of the nine");
    let block = |ip: IpAddr| {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let except = except.then(|| cidr(ip, longest - 4));
        PolicyPeer::block(cidr(ip, longest - 8), except)
    };
    pod.status.pod_ips.iter().map(|pod_ip| block(pod_ip.ip)).collect()
}

/// The block of this length around an address, without host bits.
fn cidr(ip: IpAddr, length: u8) -> String {
    let base = match ip {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (32 - length))).to_string()
        }
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - length))).to_string()
        }
    };
    format!("{base}/{length}")
}

/// A pod's own addresses, and no others.
pub fn alone(world: &PolicyWorld, namespace: &str, name: &str) -> Vec<PolicyPeer> {
    let pod = world.pod(namespace, name).expect("one of the nine");
    let block = |ip: IpAddr| cidr(ip, if ip.is_ipv4() { 32 } else { 128 });
    pod.status.pod_ips.iter().map(|pod_ip| PolicyPeer::block(block(pod_ip.ip), [])).collect()
}
