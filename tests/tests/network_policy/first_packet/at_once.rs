//! A policy and a pod that are applied at once.

use anyhow::{Context, Result};
use denizen_tests::peers::api::Api;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

use super::reuse::{OneAddress, mute, unmute};
use super::{add, attach, detach, each, isolate, pods, wiring};
use crate::newcomers::{Newcomer, Newcomers, nothing_wrong};

/// The watch of policies lags behind that of pods: nothing orders the two.
#[test]
fn a_policy_that_was_stored_before_its_pod_holds_from_the_first_packet_on() -> Result<()> {
    let newcomers = Newcomers::with_api("first-policy-at-once", &isolate("10s"))?;
    let api = newcomers.api.as_ref().context("there is one")?;
    api.behave(|behaviour| behaviour.late.push("networkpolicies"));
    each(pods(8), |number| {
        let (name, role) = (format!("p{number}"), format!("role-{number}"));
        let policy = PolicyWorld { policies: vec![friends_only(&role)], ..PolicyWorld::default() };
        newcomers.put(&name, &policy)?;
        let pod = add(&newcomers, &name, &role, wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        let mut wrong = newcomers
            .verify(&newcomer, |exchange| exchange.peer.is_friend && exchange.is_heard())?;
        wrong.extend(newcomers.leaks(&newcomer));
        detach(&newcomers, newcomer)?;
        // ADD waits a second at most for the list of the namespace's policies: it stays short.
        policy.manifests().iter().try_for_each(|policy| api.delete(policy))?;
        Ok(wrong)
    })
}

/// As [`super::reuse::what_waits_for_a_new_pods_mac_address_does_not_arrive`], of a pod that no
/// policy isolates until those of its namespace have been read.
#[test]
fn what_waits_for_an_open_pod_does_not_arrive_once_a_policy_isolates_it() -> Result<()> {
    let newcomers = Newcomers::with_api("first-opens", &isolate("10s"))?;
    let api = newcomers.api.as_ref().context("there is one")?;
    api.behave(|behaviour| behaviour.late.push("networkpolicies"));
    let mut wrong = Vec::new();
    for number in 0..2 {
        let OneAddress { chain, addresses } = OneAddress::new(&newcomers, number)?;
        newcomers.aim(|targets| targets.extend(addresses));
        let (name, role) = (format!("p{number}"), format!("role-{number}"));
        let policy = PolicyWorld { policies: vec![friends_only(&role)], ..PolicyWorld::default() };
        newcomers.put(&name, &policy)?;
        let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
        mute(&netns)?;
        newcomers.announce(&format!("new/{name}"), netns.name(), &role)?;
        let newcomer = Newcomer::start(attach(&newcomers, netns, &format!("new/{name}"), &chain)?)?;
        unmute(&newcomer)?;
        wrong.extend(
            newcomers
                .verify(&newcomer, |exchange| exchange.peer.is_friend && exchange.is_heard())?,
        );
        wrong.extend(newcomers.leaks(&newcomer));
    }
    nothing_wrong(2, &wrong)
}

/// Pods of a role may talk to friends alone.
fn friends_only(role: &str) -> NetworkPolicy {
    let friends =
        || PolicyPeer::both(LabelSelector::default(), LabelSelector::label("role", "friend"));
    NetworkPolicy::new("new", role, LabelSelector::label("role", role))
        .ingress([PolicyRule::from([friends()])])
        .egress([PolicyRule::to([friends()])])
}
