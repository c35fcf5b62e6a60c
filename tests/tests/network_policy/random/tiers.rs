//! Random ClusterNetworkPolicies of both tiers, beside random NetworkPolicies.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use denizen_model::Event;
use denizen_tests::node::world::host_length;
use denizen_tests::policy::{self, ClusterNetworkPolicy, LabelSelector, PolicyPacket, PolicyWorld};
use denizen_tests::random::{self, Draw};
use denizen_tests::test_length;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use super::played::worlds;
use super::{
    Cluster, KEYS, NAMES, NODES, SHRINKING, VALUES, addresses, both_are_common, clusters, labels,
    packets_at, policies, sample,
};
use crate::evaluated::{EvaluatedWorld, Planned, at_once};
use crate::packets::half;
use crate::play::{Play, Via};

/// How many numbers decide about a policy.
const A_POLICY: usize = 300;
/// What is wrong in so many of a hundred parts.
const WRONG: usize = 3;
/// 0 is the first of all, and 1000 the last; two are equal.
const PRIORITIES: [u16; 4] = [0, 5, 5, 1000];
/// On the edges of ranges of ports.
const PORTS: [u16; 9] = [0, 1, 52, 53, 79, 80, 81, 82, u16::MAX];

/// The clusters of others, with tiers.
pub fn tiered() -> impl Strategy<Value = Cluster> {
    let tiers = vec(vec(any::<u16>(), A_POLICY), 0..=6);
    (clusters(), vec(any::<u16>(), 20), tiers).prop_map(|(Cluster(mut world), nodes, tiers)| {
        let draw = &mut Draw::new(&nodes);
        world.policies.truncate(3);
        for node in &mut world.nodes {
            node.labels = labels(draw);
        }
        let addresses = addresses(&world);
        for (number, numbers) in tiers.iter().enumerate() {
            world.tiers.push(policy(&mut Draw::new(numbers), number, &addresses));
        }
        Cluster(world)
    })
}

pub fn policy(draw: &mut Draw<'_>, number: usize, addresses: &[IpAddr]) -> ClusterNetworkPolicy {
    let tier = draw.one(&["Admin", "Admin", "Baseline"]);
    let subject = match draw.below(3) {
        0 => json!({ "namespaces": selector(draw, true) }),
        _ => json!({ "pods": pods(draw) }),
    };
    let subject = if draw.percent(WRONG) { json!({ "nodes": {} }) } else { subject };
    let priority = draw.one(&PRIORITIES);
    let policy = ClusterNetworkPolicy::new(tier, priority, &format!("tier-{number}"), subject);
    let mut rules = |peers: &str| {
        let count = draw.below(5);
        (0..count).map(|_| rule(draw, peers, addresses)).collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    policy.ingress(ingress).egress(egress)
}

fn rule(draw: &mut Draw<'_>, peers: &str, addresses: &[IpAddr]) -> Value {
    let action = draw.one(&["Accept", "Accept", "Deny", "Deny", "Pass"]);
    let action = if draw.percent(WRONG) { "Log" } else { action };
    let count = 1 + draw.below(3);
    let is_egress = peers == "to";
    let all: Vec<Value> = (0..count).map(|_| peer(draw, is_egress, addresses)).collect();
    let mut rule = json!({ "action": action });
    rule[peers] = all.into();
    if draw.percent(50) {
        let count = 1 + draw.below(2);
        rule["protocols"] = (0..count).map(|_| port(draw)).collect();
    }
    if draw.percent(WRONG) {
        rule["log"] = true.into();
    }
    rule
}

fn peer(draw: &mut Draw<'_>, is_egress: bool, addresses: &[IpAddr]) -> Value {
    match draw.below(if is_egress { 6 } else { 3 }) {
        _ if draw.percent(WRONG) => json!({}),
        _ if draw.percent(WRONG) => json!({ "domainNames": ["kubernetes.io"] }),
        0 => json!({ "namespaces": selector(draw, true) }),
        1 | 2 => json!({ "pods": pods(draw) }),
        3 => json!({ "nodes": selector(draw, false) }),
        _ => {
            let count = 1 + draw.below(2);
            json!({ "networks": (0..count).map(|_| network(draw, addresses)).collect::<Vec<_>>() })
        }
    }
}

fn pods(draw: &mut Draw<'_>) -> Value {
    let mut pods = json!({ "podSelector": selector(draw, false) });
    if draw.percent(60) {
        pods["namespaceSelector"] = selector(draw, true);
    }
    pods
}

/// Half of them select everything.
fn selector(draw: &mut Draw<'_>, of_namespaces: bool) -> Value {
    let mut selector = LabelSelector::default();
    if draw.percent(50) {
        selector.match_labels.insert(draw.one(&KEYS).to_owned(), draw.one(&VALUES).to_owned());
    }
    if draw.percent(15) {
        selector = policies::selector(draw, of_namespaces);
    }
    serde_json::to_value(selector).unwrap_or_default()
}

/// Around an address of the cluster, with its host bits.
fn network(draw: &mut Draw<'_>, addresses: &[IpAddr]) -> String {
    let address = draw.one(addresses);
    let longest = host_length(address);
    let length = match draw.below(4) {
        0 => 0,
        1 => longest,
        _ => draw.below(usize::from(longest) + 1) as u8,
    };
    if draw.percent(WRONG) { address.to_string() } else { format!("{address}/{length}") }
}

fn port(draw: &mut Draw<'_>) -> Value {
    let range = |start: u16, end: u16| json!({ "range": { "start": start, "end": end } });
    let port = match draw.below(6) {
        0 | 1 => json!({ "number": 80 }),
        2 => range(53, 81),
        3 => range(80, 81),
        4 => range(81, 82),
        _ => range(1, u16::MAX),
    };
    match draw.below(5) {
        _ if draw.percent(WRONG) => json!({}),
        0 | 1 => json!({ "tcp": { "destinationPort": port } }),
        2 => json!({ "udp": { "destinationPort": port } }),
        3 => json!({ "sctp": { "destinationPort": port } }),
        _ => json!({ "destinationNamedPort": draw.one(&NAMES) }),
    }
}

fn packets(world: &PolicyWorld) -> impl Iterator<Item = PolicyPacket> {
    sample(packets_at(world, &PORTS))
}

#[test]
fn the_plans_of_both_nodes_say_of_tiers_what_the_oracle_says() -> Result<()> {
    let worlds = u32::try_from(test_length::times(4_000, 400))?;
    let (allowed, denied) = (Cell::new(0_u64), Cell::new(0_u64));
    random::run(worlds, random::seed()?, SHRINKING, tiered(), |Cluster(world)| {
        let folder = tempfile::tempdir()?;
        let planned = NODES.map(|node| Planned::new(world, node, folder.path(), at_once));
        for packet in packets(world) {
            let mut passes = true;
            for planned in &planned {
                let planned = planned.as_ref().map_err(|error| anyhow!("{error:#}"))?;
                passes &= planned.passes(packet)?.unwrap_or(true);
            }
            let expected = policy::allowed(world, packet);
            let counted = if expected { &allowed } else { &denied };
            counted.set(counted.get() + 1);
            ensure!(passes == expected, "{packet:?}: the oracle says {expected}");
        }
        Ok(())
    })?;
    both_are_common(allowed.get(), denied.get())
}

/// The tables as they are rendered, walked packet by packet.
#[test]
fn the_rules_of_both_nodes_do_with_tiers_what_the_oracle_says() -> Result<()> {
    let worlds = u32::try_from(test_length::times(300, 30))?;
    random::run(worlds, random::seed()?, SHRINKING, tiered(), |Cluster(world)| {
        let evaluated = EvaluatedWorld::new(world)?;
        packets(world).try_for_each(|packet| evaluated.passes(packet).map(drop))?;
        Ok(())
    })
}

/// One after the other, last ones first; then all policies last, when everything else is known.
#[test]
fn facts_about_tiers_may_come_in_any_order() -> Result<()> {
    let worlds = u32::try_from(test_length::times(100, 10))?;
    let each = |events: Vec<Event>| events.into_iter().map(|event| vec![event]).collect();
    let is_policy =
        |event: &Event| matches!(event, Event::NetworkPolicy(..) | Event::ClusterNetworkPolicy(..));
    random::run(worlds, random::seed()?, Duration::ZERO, tiered(), |Cluster(world)| {
        let ends_well = |order: &dyn Fn(Vec<Event>) -> Vec<Vec<Event>>| {
            let evaluated = EvaluatedWorld::in_order(world, order)?;
            packets(world).try_for_each(|packet| evaluated.passes(packet).map(drop))
        };
        ends_well(&|events| each(events.into_iter().rev().collect()))?;
        ends_well(&|mut events| {
            events.sort_by_key(is_policy);
            each(events)
        })
    })
}

/// The pods and namespaces that there are, with random labels, ports and policies of both kinds.
fn played(there: PolicyWorld) -> impl Strategy<Value = Cluster> {
    let tiers = vec(vec(any::<u16>(), A_POLICY), 1..=5);
    (worlds(there, 0..=3), tiers).prop_map(|(Cluster(mut world), tiers)| {
        let addresses = addresses(&world);
        for (number, numbers) in tiers.iter().enumerate() {
            world.tiers.push(policy(&mut Draw::new(numbers), number, &addresses));
        }
        Cluster(world)
    })
}

/// Pods of both kinds on both nodes, in both families, by pod IP and by service.
#[test]
fn packets_and_explain_do_with_tiers_what_the_oracle_says() -> Result<()> {
    let (play, world) = Play::new("tiers", half)?;
    let play = std::cell::RefCell::new(play);
    let count = u32::try_from(test_length::times(50, 8))?;
    for seed in [1, random::seed()?] {
        random::run(count, seed, Duration::ZERO, played(world.clone()), |cluster| {
            play.borrow_mut().verify(&cluster.0, &[Via::PodIp, Via::ClusterIp])
        })?;
    }
    Ok(())
}
