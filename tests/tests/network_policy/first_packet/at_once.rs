//! A policy and a pod that are applied at once.

use anyhow::{Context, Result};
use denizen_tests::policy::{NetworkPolicy, Peer, Rule, Selector, World};

use super::{add, detach, each, isolate, pods, wiring};
use crate::newcomers::{Newcomer, Newcomers};

/// The watch of policies lags behind that of pods: nothing orders the two.
#[test]
fn a_policy_that_was_stored_before_its_pod_holds_from_the_first_packet_on() -> Result<()> {
    let newcomers = Newcomers::with_api("first-policy-at-once", &isolate("10s"))?;
    let api = newcomers.api.as_ref().context("there is one")?;
    api.behave(|manners| manners.late.push("networkpolicies"));
    each(pods(8), |number| {
        let (name, role) = (format!("p{number}"), format!("role-{number}"));
        newcomers.put(&name, &World { policies: vec![friends_only(&role)], ..World::default() })?;
        let pod = add(&newcomers, &name, &role, wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        let mut wrong = newcomers.judge(&newcomer, |it| it.peer.is_friend && it.is_heard())?;
        wrong.extend(newcomers.leaks(&newcomer));
        detach(&newcomers, newcomer)?;
        Ok(wrong)
    })
}

/// Pods of a role may talk to friends alone.
fn friends_only(role: &str) -> NetworkPolicy {
    let friends = || Peer::both(Selector::default(), Selector::label("role", "friend"));
    NetworkPolicy::new("new", role, Selector::label("role", role))
        .ingress([Rule::from([friends()])])
        .egress([Rule::to([friends()])])
}
