//! The same under ClusterNetworkPolicies. Unlike a NetworkPolicy, one may deny by labels: whoever
//! is not known yet must not pass for somebody who is not denied.

use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::eventually::eventually;
use denizen_tests::node::pod::Wiring;
use denizen_tests::peers::api::Api;
use denizen_tests::policy::{ClusterNetworkPolicy, NodeObject, PolicyWorld};
use serde_json::{Value, json};

use super::{add, detach, each, each_awaited, isolate, pods, remove, wiring};
use crate::newcomers::{Exchange, Newcomer, Newcomers, nothing_wrong};

/// How often an agent asks whether ClusterNetworkPolicies are served, and some time.
const REDISCOVERY: Duration = Duration::from_secs(80);

fn role(namespace: &str, role: &str) -> Value {
    json!({ "pods": {
        "namespaceSelector": { "matchLabels": { "ns": namespace } },
        "podSelector": { "matchLabels": { "role": role } },
    } })
}

fn rule(action: &str, way: &str, peer: Value) -> Value {
    json!({ "action": action, way: [peer] })
}

fn foes(way: &str) -> Value {
    rule("Deny", way, role("peers", "foe"))
}

/// New pods and foes: nothing passes between them, in either direction. Nobody else is denied
/// anything.
fn no_foes(role_of_pods: &str) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy::new("Admin", 7, role_of_pods, role("new", role_of_pods))
        .ingress([foes("from")])
        .egress([foes("to")])
}

fn tiers(tiers: impl IntoIterator<Item = ClusterNetworkPolicy>) -> PolicyWorld {
    PolicyWorld { tiers: tiers.into_iter().collect(), ..PolicyWorld::default() }
}

/// Without NetworkPolicies. The Node objects say from which ranges pods have their addresses: where
/// somebody may be who is not known yet.
fn prepare(newcomers: &Newcomers, policies: Vec<ClusterNetworkPolicy>) -> Result<()> {
    let with_ranges = |(number, node): (usize, &NodeObject)| NodeObject {
        pod_cidrs: ["10", "11"]
            .iter()
            .flat_map(|kind| {
                [format!("10.{kind}.{number}.0/24"), format!("fd00:{kind}:{number}::/64")]
            })
            .collect(),
        ..node.clone()
    };
    let nodes = newcomers.nodes.hosts.iter().map(|host| &host.node);
    let nodes = (1..).zip(nodes).map(with_ranges).collect();
    newcomers.put("nodes", &PolicyWorld { nodes, ..tiers(policies) })?;
    newcomers.put("policies", &PolicyWorld::default())?;
    newcomers.nodes.settled(|_, status| {
        let policy = &status["networkPolicy"];
        policy["policies"] == 0 && policy["clusterPolicies"] == 1
    })
}

/// Who sends to it since before it had its address, and whom it sends to first.
#[test]
fn of_a_new_pod_that_a_label_keeps_from_foes() -> Result<()> {
    let newcomers = Newcomers::new("cnp-first", &isolate("10s"))?;
    // It selects a pod of each node from the start: a node that counts it has read both.
    let seen = ClusterNetworkPolicy::new("Baseline", 0, "seen", role("peers", "foe"))
        .egress([rule("Accept", "to", json!({ "namespaces": {} }))]);
    prepare(&newcomers, vec![no_foes("new"), seen])?;
    each(pods(16), |number| {
        let name = format!("p{number}");
        let pod = add(&newcomers, &name, "new", wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        let found = newcomers.first_packets(&newcomer);
        newcomers.aim_no_more_at(&newcomer.pod.addresses);
        remove(&newcomers, &name, newcomer)?;
        found
    })
}

/// The sender's node denies nothing. The receiver's does, and has not heard of the sender when its
/// first packet comes.
#[test]
fn of_a_new_pod_to_one_of_another_node_that_denies_its_label() -> Result<()> {
    let newcomers = Newcomers::new("cnp-far", &isolate("10s"))?;
    let denies = ClusterNetworkPolicy::new("Admin", 0, "denies", role("peers", "foe"))
        .ingress([rule("Deny", "from", role("new", "new"))])
        .egress([rule("Deny", "to", role("new", "new"))]);
    prepare(&newcomers, vec![denies])?;
    each_awaited(&newcomers, pods(8))
}

/// The watch of policies lags behind that of pods: nothing orders the two.
#[test]
fn of_a_pod_whose_policy_was_stored_just_before() -> Result<()> {
    let newcomers = Newcomers::with_api("cnp-at-once", &isolate("10s"))?;
    let api = newcomers.api.as_ref().context("there is one")?;
    let before = Newcomer::start(add(&newcomers, "before", "role-x", Wiring::Bridged)?)?;
    api.behave(|behaviour| behaviour.tiers = true);
    newcomers.put("first", &tiers([no_foes("role-x")]))?;
    let agent = newcomers.nodes.hosts[0].agent()?;
    eventually("it is served", REDISCOVERY, || {
        Ok(agent.status()?["networkPolicy"]["clusterPolicies"] == 1)
    })?;
    let heard_friends = |exchange: &Exchange<'_>| exchange.peer.is_friend && exchange.is_heard();
    nothing_wrong(1, &newcomers.verify(&before, heard_friends)?)?;
    api.behave(|behaviour| behaviour.late.push("clusternetworkpolicies"));
    each(pods(8), |number| {
        let (name, role) = (format!("p{number}"), format!("role-{number}"));
        let policy = tiers([no_foes(&role)]);
        newcomers.put(&name, &policy)?;
        let pod = add(&newcomers, &name, &role, wiring(number))?;
        newcomers.aim(|targets| targets.extend(&pod.addresses));
        let newcomer = Newcomer::start(pod)?;
        let mut wrong = newcomers.verify(&newcomer, heard_friends)?;
        wrong.extend(newcomers.leaks(&newcomer));
        newcomers.aim_no_more_at(&newcomer.pod.addresses);
        detach(&newcomers, newcomer)?;
        policy.manifests().iter().try_for_each(|policy| api.delete(policy))?;
        Ok(wrong)
    })
}
