//! Which rule of which policy of which tier decides.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use denizen_model::Event;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use serde_json::{Value, json};

use super::{PING, TCP_80, admin, at, baseline, everybody, expect, from, pods_of, to, world};
use crate::evaluated::{Planned, at_once};
use crate::random::NODES;
use crate::regressions::small::{XA, XB, YA, YB};

/// Pods of x may be reached by namespace y alone.
fn from_y() -> NetworkPolicy {
    let y = PolicyPeer::namespaces(LabelSelector::label("ns", "y"));
    NetworkPolicy::new("x", "from-y", LabelSelector::default()).ingress([PolicyRule::from([y])])
}

#[test]
fn the_lower_priority_wins() -> Result<()> {
    let a = || {
        json!({ "pods": {
        "namespaceSelector": { "matchLabels": { "ns": "y" } },
        "podSelector": { "matchLabels": { "pod": "a" } },
    } })
    };
    let policies = [
        admin(1000, "a-last", "x")
            .ingress([from("Accept", pods_of("y")), from("Deny", everybody())]),
        admin(1, "b-second", "x").ingress([from("Deny", pods_of("y"))]),
        admin(0, "c-first", "x").ingress([from("Accept", a())]),
    ];
    expect(
        &world(policies, []),
        &[(YA, XA, TCP_80, true), (YB, XA, TCP_80, false), (XB, XA, TCP_80, false)],
    )
}

/// On both nodes, and in whichever order they are listed.
#[test]
fn equal_priorities_are_ordered_by_name_everywhere() -> Result<()> {
    let policies = [
        admin(5, "b", "x").ingress([from("Accept", pods_of("y"))]),
        admin(5, "a", "x").ingress([from("Deny", pods_of("y"))]),
        admin(5, "d", "y").ingress([from("Deny", pods_of("x"))]),
        admin(5, "c", "y").ingress([from("Accept", pods_of("x"))]),
    ];
    let mut world = world(policies, []);
    let expected = [(YA, XA, TCP_80, false), (XA, YA, TCP_80, true)];
    expect(&world, &expected)?;
    world.tiers.reverse();
    expect(&world, &expected)
}

#[test]
fn the_first_rule_wins_whatever_it_does() -> Result<()> {
    let rules = [from("Accept", pods_of("y")), from("Deny", everybody())];
    let accepts = world([admin(5, "p", "x").ingress(rules.clone())], []);
    expect(&accepts, &[(YA, XA, TCP_80, true), (XB, XA, TCP_80, false)])?;
    let denies = world([admin(5, "p", "x").ingress(rules.into_iter().rev())], []);
    expect(&denies, &[(YA, XA, TCP_80, false), (XB, XA, TCP_80, false)])
}

#[test]
fn what_no_rule_is_about_stays_as_it_was() -> Result<()> {
    let egress = admin(0, "egress", "x").egress([to("Deny", pods_of("y"))]);
    let expected = [
        (XA, YA, TCP_80, false),
        (YA, XA, TCP_80, true),
        (YA, XA, PING, true),
        (XA, XB, TCP_80, true),
    ];
    expect(&world([egress], []), &expected)?;
    let expected = [(XA, YA, TCP_80, true), (YA, XA, TCP_80, true)];
    expect(&world([admin(0, "empty", "x"), baseline(0, "empty-too", "x")], []), &expected)
}

#[test]
fn network_policies_are_final_for_their_direction_alone() -> Result<()> {
    let denies = baseline(0, "deny", "x")
        .ingress([from("Deny", everybody())])
        .egress([to("Deny", everybody())]);
    let ingress = world([denies.clone()], [from_y()]);
    expect(&ingress, &[(YA, XA, TCP_80, true), (XA, YA, TCP_80, false)])?;
    let y = PolicyPeer::namespaces(LabelSelector::label("ns", "y"));
    let to_y = NetworkPolicy::new("x", "to-y", LabelSelector::default());
    let egress = world([denies], [to_y.egress([PolicyRule::to([y])])]);
    expect(&egress, &[(YA, XA, TCP_80, false), (XA, YA, TCP_80, true)])
}

#[test]
fn pass_goes_on_behind_the_tier() -> Result<()> {
    let passes = || {
        [
            admin(0, "pass", "x").ingress([from("Pass", pods_of("y"))]),
            admin(1, "deny", "x").ingress([from("Deny", everybody())]),
        ]
    };
    let denies = baseline(0, "deny-80", "x").ingress([at(80, from("Deny", pods_of("y")))]);
    let in_baseline = world(passes().into_iter().chain([denies.clone()]), []);
    expect(&in_baseline, &[(YA, XA, TCP_80, false), (YA, XA, PING, true), (XB, XA, PING, false)])?;
    // NetworkPolicies come first.
    let by_network_policy = world(passes().into_iter().chain([denies]), [from_y()]);
    expect(&by_network_policy, &[(YA, XA, TCP_80, true), (XB, XA, PING, false)])?;
    let baseline_passes = [
        baseline(0, "pass", "x").ingress([from("Pass", pods_of("y"))]),
        baseline(1, "deny", "x").ingress([from("Deny", everybody())]),
    ];
    expect(&world(baseline_passes, []), &[(YA, XA, TCP_80, true), (XB, XA, TCP_80, false)])
}

#[test]
fn accept_beats_network_policies_and_opens_no_other_direction() -> Result<()> {
    let closed = |namespace| NetworkPolicy::new(namespace, "closed", LabelSelector::default());
    let accepts = admin(0, "accept", "x")
        .ingress([from("Accept", pods_of("y"))])
        .egress([to("Accept", pods_of("y"))]);
    let policies = [closed("x").ingress([]).egress([]), closed("y").ingress([])];
    expect(
        &world([accepts], policies),
        &[(YA, XA, TCP_80, true), (XA, YA, TCP_80, false), (XB, XA, TCP_80, false)],
    )
}

/// What the agent of a node reads of the ClusterNetworkPolicies of a world.
fn read(world: &PolicyWorld, node: &str) -> Result<Vec<Event>> {
    let folder = tempfile::tempdir()?;
    let read = RefCell::new(Vec::new());
    Planned::new(world, node, folder.path(), |events| {
        let is_of_tiers = |event: &&Event| matches!(event, Event::ClusterNetworkPolicy(..));
        read.borrow_mut().extend(events.iter().filter(is_of_tiers).cloned());
        at_once(events)
    })?;
    Ok(read.into_inner())
}

/// Another name, another order of equal actions, a rule in two parts: no element differs, and no
/// identity has another number.
#[test]
fn other_words_for_the_same_change_no_rule() -> Result<()> {
    let deny = |name: &str, namespaces: &[&str]| {
        let peers: Vec<_> = namespaces.iter().map(|namespace| pods_of(namespace)).collect();
        json!({ "action": "Deny", "name": name, "from": peers })
    };
    let last = || at(80, from("Accept", everybody()));
    let policy = |rules: Vec<Value>| world([admin(5, "p", "x").ingress(rules)], []);
    let before = policy(vec![deny("old", &["x", "y"]), last()]);
    let folder = tempfile::tempdir()?;
    for node in NODES {
        let mut planned = Planned::new(&before, node, folder.path(), at_once)?;
        let rules = planned.rules();
        for same in [
            vec![deny("new", &["x", "y"]), last()],
            vec![deny("", &["x"]), deny("", &["y"]), last()],
            vec![deny("", &["y"]), deny("", &["x"]), last()],
        ] {
            let changes = planned.change(read(&policy(same.clone()), node)?);
            ensure!(changes.firewall.is_empty(), "{same:?}: {:?}", changes.firewall);
            ensure!(planned.rules() == rules, "{same:?}: other rules than before");
        }
        // Pods of x are on the first node alone.
        let other = read(&policy(vec![deny("", &["y"]), last()]), node)?;
        let changes = planned.change(other);
        ensure!(changes.firewall.is_empty() == (node != NODES[0]), "{:?}", changes.firewall);
    }
    Ok(())
}
