//! ClusterNetworkPolicies among the changes, and those that are about nobody here.

use super::*;
use crate::firewall::render;
use denizen_model::{
    Action, ClusterNetworkPolicy, Tier, TierPeer, TierPeers, TierPort, TierPorts, TierRule,
};

fn peer(kind: u8, label: u8) -> TierPeer {
    match kind {
        0 | 1 => TierPeer::Pods {
            namespaces: selector(if kind == 0 { 0 } else { label % 3 }),
            pods: selector(label),
        },
        2 => TierPeer::Network(format!("10.{}.0.0/30", label % 2).parse().unwrap()),
        _ => TierPeer::Network(format!("10.{}.0.{label}/32", label % 2).parse().unwrap()),
    }
}

fn ports(kind: u8) -> TierPorts {
    let tcp = |first, last| TierPort::Range(Protocol::Tcp, port(first), port(last));
    TierPorts::These(match kind {
        0 => return TierPorts::All,
        1 => vec![tcp(80, 80)],
        2 => vec![tcp(70, 80), TierPort::Named("web".into())],
        _ => vec![TierPort::Named("web".into())],
    })
}

fn rules() -> impl Strategy<Value = Vec<TierRule>> {
    let peers = proptest::collection::vec((0..4_u8, 0..5_u8), 0..3);
    let rule = (0..3_u8, peers, 0..4_u8).prop_map(|(action, peers, kind)| TierRule {
        index: 0,
        name: "".into(),
        action: [Action::Accept, Action::Deny, Action::Pass][usize::from(action)],
        peers: match peers.is_empty() {
            true => TierPeers::All,
            false => TierPeers::These(peers.into_iter().map(|(k, label)| peer(k, label)).collect()),
        },
        ports: ports(kind),
    });
    proptest::collection::vec(rule, 0..4)
}

/// One of two ClusterNetworkPolicies changes.
pub(super) fn event() -> impl Strategy<Value = Vec<Event>> {
    let content = (any::<bool>(), 0..3_u8, 0..5_u8, rules(), rules());
    (0..2_u8, proptest::option::weighted(0.8, content)).prop_map(|(number, content)| {
        let name: Arc<str> = NAMES[usize::from(number)].into();
        let policy = content.map(|(is_admin, of_namespace, label, ingress, egress)| {
            let tier = if is_admin { Tier::Admin } else { Tier::Baseline };
            let (namespaces, pods) = (selector(of_namespace), selector(label));
            about(name.clone(), tier, namespaces, pods, [ingress, egress])
        });
        vec![Event::ClusterNetworkPolicy(name, policy)]
    })
}

fn about(
    name: Arc<str>,
    tier: Tier,
    namespaces: Selector,
    pods: Selector,
    [ingress, egress]: [Vec<TierRule>; 2],
) -> ClusterNetworkPolicy {
    let is_understood = true;
    ClusterNetworkPolicy {
        name,
        tier,
        priority: 7,
        namespaces,
        pods,
        ingress,
        egress,
        is_understood,
    }
}

fn deny(peers: Vec<TierPeer>) -> TierRule {
    TierRule {
        index: 0,
        name: "".into(),
        action: Action::Deny,
        peers: TierPeers::These(peers),
        ports: TierPorts::All,
    }
}

/// Only those about one direction of one pod, and of one tier.
#[test]
fn policies_of_one_priority_are_named() {
    let mut planner = Planner::new(with_firewall(), CAPABLE);
    planner.apply(listed());
    planner.apply(vec![Event::Pods(recorded(1))]);
    planner.apply(vec![Event::ClusterPod(pod_name(0, 0), Some(cluster_pod(0, 0, 1, 0).into()))]);
    let some = || vec![deny(vec![peer(2, 0)])];
    for (name, tier, label, rules) in [
        ("d", Tier::Admin, 0, [some(), some()]),
        ("c", Tier::Admin, 1, [some(), Vec::new()]),
        ("of-egress", Tier::Baseline, 1, [Vec::new(), some()]),
        ("of-ingress", Tier::Baseline, 1, [some(), Vec::new()]),
        ("of-others", Tier::Admin, 2, [some(), some()]),
    ] {
        let policy = about(name.into(), tier, selector(0), selector(label), rules);
        planner.apply(vec![Event::ClusterNetworkPolicy(name.into(), Some(policy))]);
    }
    planner.update();
    let ties = planner.plan().firewall().unwrap().ties();
    let texts: Vec<String> = ties.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["ClusterNetworkPolicies c, d select one pod and have one priority, Admin 7: their names \
             decide which comes first"]
    );
}

/// Not even for an identity that they alone could tell from others.
#[test]
fn policies_about_no_pod_of_this_node_change_no_byte() {
    let mut planner = Planner::new(with_firewall(), CAPABLE);
    planner.apply(listed());
    planner.apply(vec![isolating(), Event::Pods(recorded(7))]);
    for (namespace, name) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] {
        let pod = cluster_pod(namespace, name, name, 1);
        planner.apply(vec![Event::ClusterPod(pod_name(namespace, name), Some(pod.into()))]);
    }
    for name in NAMESPACES {
        let namespace =
            Namespace { name: name.into(), labels: Labels::default(), is_ending: false };
        planner.apply(vec![Event::Namespace(name.into(), Some(namespace))]);
    }
    planner.update();
    let before = render(planner.plan()).to_string();
    let with = |namespaces| {
        let rules = [(), ()].map(|()| vec![deny(vec![peer(0, 1), peer(2, 0)])]);
        let name: Arc<str> = "deny".into();
        let policy = about(name.clone(), Tier::Admin, namespaces, selector(0), rules);
        Event::ClusterNetworkPolicy(name, Some(policy))
    };
    planner.apply(vec![with(selector(1))]);
    planner.update();
    assert_eq!(render(planner.plan()).to_string(), before);
    // It is about all of them now.
    planner.apply(vec![with(selector(0))]);
    planner.update();
    assert_ne!(render(planner.plan()).to_string(), before);
}
