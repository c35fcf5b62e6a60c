//! Facts that come in another order than they arose, or change.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_model::{ClusterPod, Event, Labels, NetworkPolicy as Decoded, PodName};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use denizen_tests::random;
use denizen_tests::test_length;

use super::small::{XA, XB, YA, YB, pod, tcp, world};
use crate::evaluated::EvaluatedWorld;
use crate::random::{Cluster, clusters, packets};

/// Says that in the end everything is as if it had always been so.
fn ends_well(world: &PolicyWorld, order: impl Fn(Vec<Event>) -> Vec<Vec<Event>>) -> Result<()> {
    let evaluated = EvaluatedWorld::in_order(world, order)?;
    packets(world).into_iter().try_for_each(|packet| evaluated.passes(packet).map(drop))
}

/// One after the other, last ones first: policies before their namespaces and pods, the end of a
/// list before what was in it. Then policies last, when everything else is known.
#[test]
fn facts_may_come_in_any_order() -> Result<()> {
    let worlds = u32::try_from(test_length::times(200, 15))?;
    let each = |events: Vec<Event>| events.into_iter().map(|event| vec![event]).collect();
    let is_policy = |event: &Event| matches!(event, Event::NetworkPolicy(..));
    random::run(worlds, random::seed()?, Duration::ZERO, clusters(), |Cluster(world)| {
        ends_well(world, |events| each(events.into_iter().rev().collect()))?;
        ends_well(world, |mut events| {
            events.sort_by_key(is_policy);
            each(events)
        })
    })
}

/// A policy for one direction becomes one for the other; what another policy said goes with it.
#[test]
fn an_edit_of_policy_types_changes_both_directions() -> Result<()> {
    let inward = NetworkPolicy::new("x", "in", LabelSelector::label("pod", "a")).ingress([]);
    let out = NetworkPolicy::new("x", "out", LabelSelector::label("pod", "a"))
        .egress([PolicyRule::to([PolicyPeer::pods(LabelSelector::default())])]);
    ends_well(&world([inward, out]), |events| {
        let other = |event: &Event| {
            let Event::NetworkPolicy(name, Some(policy)) = event else { return event.clone() };
            let Decoded { ingress, egress, .. } = policy.clone();
            let turned = Decoded { ingress: egress, egress: ingress, ..policy.clone() };
            Event::NetworkPolicy(name.clone(), Some(turned))
        };
        vec![events.iter().map(other).collect(), events]
    })
}

/// What the other policy permitted is permitted no more, and what it isolated is open.
#[test]
fn the_deletion_of_one_policy_leaves_the_other_direction_alone() -> Result<()> {
    let inward = NetworkPolicy::new("x", "in", LabelSelector::default()).ingress([]);
    let world = world([inward]);
    let name = denizen_model::PolicyName { namespace: "x".into(), name: "out".into() };
    ends_well(&world, |events| {
        let policy = Decoded {
            name: name.clone(),
            pods: Default::default(),
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
            is_understood: true,
        };
        let more = vec![Event::NetworkPolicy(name.clone(), Some(policy))];
        vec![events, more, vec![Event::NetworkPolicy(name.clone(), None)]]
    })
}

/// The object of a pod that had the address before is deleted late, and twice.
#[test]
fn a_late_deletion_takes_nothing_from_the_address_next_owner() -> Result<()> {
    let from_y =
        PolicyPeer::both(LabelSelector::label("ns", "y"), LabelSelector::label("pod", "a"));
    let mut world = world([NetworkPolicy::new("x", "in", LabelSelector::default())
        .ingress([PolicyRule::from([from_y])])]);
    world.pods[2] = pod("y", "a", 1, YA);
    let old = PodName { namespace: "y".into(), name: "old".into() };
    let pod = ClusterPod {
        labels: Labels::from_iter([("pod", "old")]),
        ips: super::small::addresses(YA).into(),
        ..ClusterPod::named(old.clone())
    };
    let claims = Event::ClusterPod(old.clone(), Some(pod.into()));
    let gone = || vec![Event::ClusterPod(old.clone(), None)];
    let before = |events: Vec<Event>| vec![vec![claims.clone()], events, gone(), gone()];
    let after = |events: Vec<Event>| vec![events, vec![claims.clone()], gone(), gone()];
    let meanwhile = |events: Vec<Event>| vec![vec![claims.clone()], gone(), events, gone()];
    ends_well(&world, before).context("before")?;
    ends_well(&world, after).context("after")?;
    ends_well(&world, meanwhile).context("meanwhile")
}

/// The kubelet gives a static pod's sandbox a UID that the API's object has as a hash. A sandbox
/// with a UID that is neither is another pod's, about which nothing is known.
#[test]
fn a_static_pod_is_known_by_its_hash() -> Result<()> {
    let from_b = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("pod", "b"))]);
    let world =
        world([NetworkPolicy::new("x", "in", LabelSelector::label("pod", "a")).ingress([from_b])]);
    let mirrored = |with_hash: bool| {
        move |mut events: Vec<Event>| {
            for event in &mut events {
                let Event::ClusterPod(_, Some(pod)) = event else { continue };
                let Some(here) = &mut Arc::make_mut(pod).here else { continue };
                let sandbox = std::mem::replace(&mut here.uid, "of-the-mirror".into());
                here.config_hash = with_hash.then_some(sandbox);
            }
            vec![events]
        }
    };
    ends_well(&world, mirrored(true))?;
    let evaluated = EvaluatedWorld::in_order(&world, mirrored(false))?;
    ensure!(evaluated.passes(tcp(XB[0], XA[0], 80)).is_err(), "it is pending");
    ensure!(!evaluated.passes(tcp(YB[0], XA[0], 80))?, "and drops what it would drop");
    Ok(())
}
