//! Who has an address, and which addresses a block holds.

use anyhow::Result;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

use super::small::{OTHER_NODE, OUTSIDE, XA, XB, YA, YB, expect, pod, world};

fn a() -> LabelSelector {
    LabelSelector::label("pod", "a")
}

fn from(peers: impl IntoIterator<Item = PolicyPeer>) -> NetworkPolicy {
    NetworkPolicy::new("x", "in", a()).ingress([PolicyRule::from(peers)])
}

/// A block of each family, with these exceptions.
fn blocks(cidrs: [&str; 2], except: [&[&str]; 2]) -> Vec<PolicyPeer> {
    let block = |family: usize| {
        PolicyPeer::block(cidrs[family], except[family].iter().map(|except| (*except).to_owned()))
    };
    vec![block(0), block(1)]
}

/// Pods `x/a` hears pods of its namespace.
fn own_namespace() -> PolicyWorld {
    world([from([PolicyPeer::pods(LabelSelector::default())])])
}

#[test]
fn a_completed_pods_address_is_not_its_own_any_more() -> Result<()> {
    for phase in ["Succeeded", "Failed"] {
        let mut world = own_namespace();
        world.pods[1].status.phase = phase.to_owned();
        expect(&world, &[(XB, XA, false)])?;
        // The pod that has it now.
        world.pods.push(pod("y", "new", 1, XB));
        expect(&world, &[(XB, XA, false)])?;
        world.pods[4].metadata.namespace = "x".to_owned();
        expect(&world, &[(XB, XA, true)])?;
    }
    Ok(())
}

#[test]
fn of_two_pods_with_one_address_the_younger_one_has_it() -> Result<()> {
    for (namespace, arrives) in [("x", true), ("y", false)] {
        let other = if namespace == "x" { "y" } else { "x" };
        let at = ["10.0.1.20", "fd00::1:20"];
        let (mut old, mut new) = (pod(other, "old", 1, at), pod(namespace, "new", 1, at));
        old.metadata.creation_timestamp = Some("2026-11-20T12:00:01Z".to_owned());
        new.metadata.creation_timestamp = Some("2026-11-20T12:00:02Z".to_owned());
        let mut world = own_namespace();
        world.pods.extend([old, new]);
        expect(&world, &[(at, XA, arrives)])?;
    }
    Ok(())
}

/// A pod of the host's network has its node's addresses, which stay the node's.
#[test]
fn a_pod_of_the_hosts_network_is_neither_subject_nor_peer() -> Result<()> {
    let everything = NetworkPolicy::new("x", "host", LabelSelector::label("pod", "host"));
    let mut world = own_namespace();
    world.policies.push(everything.ingress([]).egress([]));
    let mut host = pod("x", "host", 1, OTHER_NODE);
    host.spec.host_network = true;
    world.pods.push(host);
    expect(
        &world,
        &[(OTHER_NODE, XA, false), (XB, XA, true), (OTHER_NODE, YA, true), (YA, OTHER_NODE, true)],
    )
}

#[test]
fn a_pod_without_addresses_and_a_policy_that_is_wrong_spare_the_others() -> Result<()> {
    let wrong = LabelSelector::requires("pod", "Like", &["a"]);
    let mut world = own_namespace();
    world.policies.push(NetworkPolicy::new("x", "wrong", wrong).ingress([PolicyRule::all()]));
    let mut unscheduled = pod("x", "unscheduled", 0, XA);
    unscheduled.status.pod_ips.clear();
    unscheduled.spec.node_name.clear();
    world.pods.push(unscheduled);
    // The wrong policy isolates x/b too, and permits nothing.
    expect(&world, &[(XB, XA, true), (YA, XA, false), (XA, XB, false), (XA, YA, true)])
}

/// kube-router approximates ::/0 by two blocks, which miss the third and the fourth of these.
#[test]
fn a_block_of_everything_is_everything() -> Result<()> {
    let world = world([from(blocks(["0.0.0.0/0", "::/0"], [&[], &[]]))]);
    let odd = [
        ["0.0.0.1", "::2"],
        ["255.255.255.254", "ffff::1"],
        ["169.254.1.1", "fe80::1"],
        ["100.64.0.1", "fc00::1"],
        ["192.0.2.1", "64:ff9b::1"],
    ];
    for from in odd.into_iter().chain([OUTSIDE, OTHER_NODE]) {
        expect(&world, &[(from, XA, true)])?;
    }
    Ok(())
}

/// Whoever means "outside" by it must say so with `except`.
#[test]
fn a_block_of_everything_holds_pods_too() -> Result<()> {
    let world = world([from(blocks(["0.0.0.0/0", "::/0"], [&["10.0.0.0/16"], &["fd00::/16"]]))]);
    expect(&world, &[(YA, XA, false), (XB, XA, false), (OUTSIDE, XA, true)])?;
    let world = self::world([from(blocks(["0.0.0.0/0", "::/0"], [&[], &[]]))]);
    expect(&world, &[(YA, XA, true), (XB, XA, true), (OUTSIDE, XA, true)])
}

/// 10.161.0.0/8 is 10.0.0.0/8.
#[test]
fn blocks_with_host_bits_are_the_blocks_that_hold_them() -> Result<()> {
    let one =
        from(blocks(["10.161.7.9/8", "fd61::7:9/8"], [&["10.0.1.99/24"], &["fd00::1:99/112"]]));
    let mut same =
        from(blocks(["10.0.0.0/8", "fd00::/8"], [&["10.0.1.11/32"], &["fd00::1:11/128"]]));
    expect(&world([one.clone()]), &[(XB, XA, true), (YA, XA, false), (YB, XA, false)])?;
    // One excludes the block of y, the other y/b alone: what one permits is permitted.
    same.metadata.name = "same".to_owned();
    expect(&world([one, same]), &[(XB, XA, true), (YA, XA, true), (YB, XA, false)])
}

/// What a block excepts, another rule may permit, by a block or by a label.
#[test]
fn except_takes_from_its_own_block_alone() -> Result<()> {
    let excepting = blocks(["10.0.0.0/8", "fd00::/8"], [&["10.0.1.0/24"], &["fd00::1:0/112"]]);
    let mut peers = excepting.clone();
    peers.extend(blocks(["10.0.1.10/32", "fd00::1:10/128"], [&[], &[]]));
    expect(&world([from(peers)]), &[(XB, XA, true), (YA, XA, true), (YB, XA, false)])?;
    let mut peers = excepting;
    peers.push(PolicyPeer::both(LabelSelector::default(), LabelSelector::label("pod", "b")));
    expect(&world([from(peers)]), &[(XB, XA, true), (YA, XA, false), (YB, XA, true)])
}

/// An interval set refuses ranges that overlap; these are nested, equal, adjacent and crossed by
/// exceptions. (The reader of the rules refuses them too.)
#[test]
fn overlapping_blocks_become_ranges_that_do_not_overlap() -> Result<()> {
    let mut peers = blocks(["0.0.0.0/0", "::/0"], [&["10.0.0.0/8"], &["fd00::/8"]]);
    for cidrs in [
        ["10.0.0.0/16", "fd00::/48"],
        ["10.0.0.0/24", "fd00::/112"],
        ["10.0.0.0/24", "fd00::/112"],
        ["10.0.1.0/25", "fd00::1:0/121"],
        ["10.0.1.128/25", "fd00::1:80/121"],
    ] {
        peers.extend(blocks(cidrs, [&[], &[]]));
    }
    let other = NetworkPolicy::new("x", "other", LabelSelector::label("pod", "b")).ingress([
        PolicyRule::from(blocks(
            ["10.0.1.8/29", "fd00::1:10/124"],
            [&["10.0.1.11/32"], &["fd00::1:11/128"]],
        )),
    ]);
    let world = world([from(peers), other]);
    expect(&world, &[(YA, XA, true), (YB, XA, true), (OUTSIDE, XA, true)])?;
    expect(&world, &[(YA, XB, true), (YB, XB, false), (XA, XB, false), (OUTSIDE, XB, false)])
}
