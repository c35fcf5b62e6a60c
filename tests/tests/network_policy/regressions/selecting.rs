//! Whom policies select: labels, namespaces, named ports, and names that look alike.

use anyhow::Result;
use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use denizen_tests::policy::{
    LabelSelector, NetworkPolicy, PolicyPeer, PolicyPort, PolicyRule, PortNumber,
};

use super::small::{OUTSIDE, XA, XB, YA, YB, container, expect, namespace, pod, tcp, world};
use crate::evaluated::EvaluatedWorld;

fn label(value: &str) -> LabelSelector {
    LabelSelector::label("pod", value)
}

fn named(name: &str) -> PolicyPort {
    PolicyPort { protocol: None, port: Some(PortNumber::Name(name.to_owned())), end_port: None }
}

/// ("ab", "c") and ("a", "bc") are two pods, two policies and two namespaces with a pod each.
#[test]
fn names_that_are_alike_when_written_in_a_row_are_told_apart() -> Result<()> {
    let from_x = [PolicyRule::from([PolicyPeer::namespaces(LabelSelector::label("ns", "x"))])];
    let for_x = NetworkPolicy::new("ab", "c", LabelSelector::default()).ingress(from_x);
    let for_nobody = NetworkPolicy::new("a", "bc", LabelSelector::default()).ingress([]);
    let mut world = world([for_x, for_nobody]);
    world.namespaces.extend([namespace("ab"), namespace("a")]);
    let (one, other) = (["10.0.0.20", "fd00::20"], ["10.0.0.21", "fd00::21"]);
    world.pods.extend([pod("ab", "c", 0, one), pod("a", "bc", 0, other)]);
    expect(&world, &[(XA, one, true), (YA, one, false), (XA, other, false), (one, other, false)])
}

/// The destination's ports count, each pod's own: not the sender's, not those of the first pod.
#[test]
fn named_ports_are_resolved_on_the_destination_pod_by_pod() -> Result<()> {
    let ingress = NetworkPolicy::new("x", "in", LabelSelector::default())
        .ingress([PolicyRule::all().at([named("web")])]);
    let mut world = world([ingress]);
    for (number, port) in [(0, 80), (1, 81), (2, 81)] {
        world.pods[number].spec.containers = vec![container(&[("web", port)])];
    }
    let evaluated = EvaluatedWorld::new(&world)?;
    for family in 0..2 {
        let passes = |to: [&str; 2], port| evaluated.passes(tcp(YA[family], to[family], port));
        assert!(passes(XA, 80)? && !passes(XA, 81)?, "x/a has it at 80");
        assert!(!passes(XB, 80)? && passes(XB, 81)?, "x/b has it at 81; the sender too");
    }
    Ok(())
}

/// Without `to`, a named port is that of any pod anywhere, at both of its addresses; nobody knows
/// which ports others have.
#[test]
fn a_named_port_without_peers_is_that_of_pods_of_every_namespace() -> Result<()> {
    let egress =
        NetworkPolicy::new("x", "out", label("a")).egress([PolicyRule::all().at([named("web")])]);
    let mut world = world([egress]);
    world.pods[2].spec.containers = vec![container(&[("web", 80)])];
    expect(&world, &[(XA, YA, true), (XA, YB, false), (XA, XB, false), (XA, OUTSIDE, false)])
}

/// Name and protocol must both match.
#[test]
fn a_named_port_of_another_protocol_permits_nothing() -> Result<()> {
    let at = PolicyPort::named(Udp, "web");
    let ingress = NetworkPolicy::new("x", "in", label("a")).ingress([PolicyRule::all().at([at])]);
    let mut world = world([ingress]);
    world.pods[0].spec.containers = vec![container(&[("web", 80)])];
    expect(&world, &[(YA, XA, false), (YA, XB, true)])
}

/// `NotIn [a, b]` is neither a nor b, not "not a, or not b", which is everybody.
#[test]
fn not_in_several_values_excludes_each_of_them() -> Result<()> {
    let peers = LabelSelector::requires("pod", "NotIn", &["a", "b"]);
    let ingress = NetworkPolicy::new("x", "in", LabelSelector::default())
        .ingress([PolicyRule::from([PolicyPeer::both(LabelSelector::default(), peers)])]);
    let mut world = world([ingress]);
    let without = ["10.0.1.12", "fd00::1:12"];
    world.pods.push(pod("y", "c", 1, without));
    world.pods[4].metadata.labels.clear();
    expect(&world, &[(YA, XA, false), (YB, XA, false), (XB, XA, false), (without, XA, true)])
}

/// One that `DoesNotExist` asks for, above all.
#[test]
fn namespaces_without_labels_are_selected_too() -> Result<()> {
    let lacking = LabelSelector::requires("ns", "DoesNotExist", &[]);
    let ingress = NetworkPolicy::new("x", "in", label("a"))
        .ingress([PolicyRule::from([PolicyPeer::namespaces(lacking)])]);
    let mut world = world([ingress]);
    world.namespaces[1].metadata.labels.clear();
    expect(&world, &[(YA, XA, true), (YB, XA, true), (XB, XA, false)])
}

/// A rule whose peers are nobody is not a rule for everybody.
#[test]
fn peers_that_match_nobody_permit_nobody() -> Result<()> {
    let nobody = [
        PolicyPeer::pods(label("nobody")),
        PolicyPeer::namespaces(LabelSelector::label("ns", "nowhere")),
    ];
    let rule = PolicyRule::from(nobody).at([PolicyPort::every(Tcp)]);
    let ingress = NetworkPolicy::new("x", "in", label("a")).ingress([rule]);
    expect(&world([ingress]), &[(YA, XA, false), (XB, XA, false), (OUTSIDE, XA, false)])
}

/// What the sender's policies permit, the receiver's may forbid, on one node as on two.
#[test]
fn egress_that_is_permitted_leaves_the_receivers_ingress_to_judge() -> Result<()> {
    let out = NetworkPolicy::new("x", "out", label("a")).egress([PolicyRule::all()]);
    let inward = NetworkPolicy::new("x", "in", label("b")).ingress([]);
    let there = NetworkPolicy::new("y", "in", label("a")).ingress([]);
    expect(
        &world([out, inward, there]),
        &[(XA, XB, false), (XA, YA, false), (XA, YB, true), (YB, XB, false)],
    )
}
