//! A node that knows the pods of the needed namespaces alone decides like one that knows all.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::{AllPodsReason, PodNeeds};
use crate::fixture::{CAPABLE, policy};
use crate::{FirewallSettings, KnownPods, Planner, Policy, PolicyFlow};
use denizen_fixture::ip;
use denizen_model::{
    Action, Block, ClusterNetworkPolicy, ClusterPod, CoveredNamespaces, Event, Labels, Listing,
    NamedPort, Namespace, Namespaces, NetworkPolicy, Operator, OwnPodFacts, Peers, PodCoverage,
    PodName, PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports, Protocol,
    Requirement, Selector, Tier, TierPeer, TierPeers, TierPorts, TierRule,
};

const NAMESPACES: [&str; 5] = ["default", "a", "b", "c", "d"];

/// The recorded pods of this node, which are in namespace `default`.
const OWN: [&str; 2] = ["10.1.0.1", "10.1.0.2"];

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("not 0")
}

fn labelled(key: &str, operator: Operator) -> Selector {
    Selector { requirements: [Requirement { key: key.into(), operator }].into() }
}

fn is(key: &str, value: &str) -> Selector {
    labelled(key, Operator::In([value.into()].into()))
}

fn namespace(name: &str, labels: &[(&str, &str)]) -> Event {
    let own = [("kubernetes.io/metadata.name", name)];
    let labels = own.iter().chain(labels).copied().collect();
    let namespace = Namespace { name: name.into(), labels, is_ending: false };
    Event::Namespace(name.into(), Some(namespace))
}

fn pod(namespace: &str, name: &str, address: &str, app: &str, http: u16, is_here: bool) -> Event {
    let name = PodName { namespace: namespace.into(), name: name.into() };
    let here = is_here.then(|| OwnPodFacts::new("u".into()).into());
    let named = NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: port(http) };
    let pod = ClusterPod {
        labels: Labels::from_iter([("app", app)]),
        ips: [ip(address)].into(),
        ports: [named].into(),
        here,
        ..ClusterPod::named(name.clone())
    };
    Event::ClusterPod(name, Some(pod.into()))
}

fn own_pods() -> Vec<Event> {
    let set = denizen_fixture::pods(1, &[(OWN[0], "veth1"), (OWN[1], "veth2")]);
    let pods = [("pod-0", OWN[0], "p"), ("pod-1", OWN[1], "q")];
    let pods = pods.map(|(name, address, app)| pod("default", name, address, app, 80, true));
    [vec![Event::Pods(set)], pods.into()].concat()
}

fn of_default(name: &str, pods: Selector, rules: [Option<Vec<PolicyRule>>; 2]) -> Event {
    let name = PolicyName { namespace: "default".into(), name: name.into() };
    let [ingress, egress] = rules;
    let policy = NetworkPolicy { name: name.clone(), pods, ingress, egress, is_understood: true };
    Event::NetworkPolicy(name, Some(policy))
}

fn planner(events: Vec<Event>) -> Planner {
    planner_with(&[], events)
}

fn planner_with(pod_ranges: &[&str], events: Vec<Event>) -> Planner {
    let settings = FirewallSettings { pods: KnownPods::Some, ..FirewallSettings::default() };
    let pod_ranges = pod_ranges.iter().map(|range| range.parse().unwrap()).collect();
    let policy = Policy { firewall: Some(settings), pod_ranges, ..policy() };
    let mut planner = Planner::new(policy, CAPABLE);
    planner.apply(events);
    planner.apply(Listing::FIREWALL.map(Event::Listed).into());
    planner.update();
    planner
}

fn needs(planner: &Planner) -> PodNeeds {
    planner.plan().firewall().expect("it is on").pod_needs().clone()
}

fn these(names: &[&str]) -> PodNeeds {
    PodNeeds::Namespaces(names.iter().map(|name| Arc::from(*name)).collect())
}

fn rule(peers: Vec<PolicyPeer>, ports: Ports) -> PolicyRule {
    PolicyRule { index: 0, peers: Peers::These(peers), ports }
}

fn pods_of(namespaces: Selector) -> PolicyPeer {
    PolicyPeer::Pods { namespaces: Namespaces::Selected(namespaces), pods: Selector::default() }
}

fn block(range: &str) -> PolicyPeer {
    PolicyPeer::Block(Block { range: range.parse().unwrap(), except: Vec::new() })
}

fn named() -> Ports {
    let port = PortMatch::Named("http".into());
    Ports::These(vec![PolicyPort { protocol: Protocol::Tcp, port }])
}

#[test]
fn each_kind_of_peer_needs_its_pods() {
    let own = PolicyPeer::Pods { namespaces: Namespaces::Own, pods: is("app", "p") };
    let name = || PolicyName { namespace: "default".into(), name: "x".into() };
    let everybody = |ports| PolicyRule { index: 0, peers: Peers::All, ports };
    let (every, by_name) = (
        PodNeeds::All(AllPodsReason::EveryNamespace(name())),
        PodNeeds::All(AllPodsReason::NamedPorts(name())),
    );
    let both = |needs: PodNeeds| [needs.clone(), needs];
    let of_a = || pods_of(is("team", "1"));
    // A rule, and what it needs in ingress and in egress.
    let cases = [
        ("its own namespace", rule(vec![own], Ports::All), both(these(&["default"]))),
        ("by labels", rule(vec![of_a()], Ports::All), [these(&["a"]), these(&["a"])]),
        ("by labels and name", rule(vec![of_a()], named()), [these(&["a"]), these(&["a"])]),
        (
            "all but some",
            rule(vec![pods_of(labelled("team", Operator::NotIn(["1".into()].into())))], Ports::All),
            both(these(&["b", "c", "d", "default"])),
        ),
        (
            "no such label",
            rule(vec![pods_of(labelled("team", Operator::DoesNotExist))], Ports::All),
            both(these(&["b", "c", "d", "default"])),
        ),
        ("a block", rule(vec![block("10.0.0.0/8")], Ports::All), both(these(&[]))),
        (
            "named ports of a block",
            rule(vec![block("10.0.0.0/8")], named()),
            [these(&[]), by_name.clone()],
        ),
        ("everybody", everybody(Ports::All), both(these(&[]))),
        ("named ports of everybody", everybody(named()), [these(&[]), by_name]),
        ("nobody", rule(Vec::new(), named()), both(these(&[]))),
        (
            "every namespace",
            rule(vec![pods_of(Selector::default())], Ports::All),
            [every.clone(), every],
        ),
    ];
    for (what, rule, [ingress, egress]) in cases {
        let namespaces: Vec<_> = NAMESPACES
            .iter()
            .map(|name| match *name {
                "a" => namespace("a", &[("team", "1")]),
                name => namespace(name, &[]),
            })
            .collect();
        for (rules, expected) in
            [([Some(vec![rule.clone()]), None], ingress), ([None, Some(vec![rule])], egress)]
        {
            let policy = of_default("x", Selector::default(), rules);
            let planner = planner([namespaces.clone(), own_pods(), vec![policy]].concat());
            assert_eq!(needs(&planner), expected, "{what}");
        }
    }
}

/// With ranges that pods alone have addresses in, an empty selector needs no pod, unless something
/// of each pod matters beside its address.
#[test]
fn pod_ranges_stand_for_every_pod() {
    let every = || pods_of(Selector::default());
    let labelled = PolicyPeer::Pods {
        namespaces: Namespaces::Selected(Selector::default()),
        pods: is("app", "p"),
    };
    let name = PolicyName { namespace: "default".into(), name: "x".into() };
    let all = || PodNeeds::All(AllPodsReason::EveryNamespace(name.clone()));
    let ingress = |rule| [Some(vec![rule]), None];
    let egress = |rule| [None, Some(vec![rule])];
    for (what, rules, expected) in [
        ("every pod", ingress(rule(vec![every()], Ports::All)), these(&[])),
        ("named ports of this pod", ingress(rule(vec![every()], named())), these(&[])),
        ("named ports of each", egress(rule(vec![every()], named())), all()),
        ("by labels", ingress(rule(vec![labelled], Ports::All)), all()),
    ] {
        let policy = of_default("x", Selector::default(), rules);
        let events = [vec![namespace("default", &[])], own_pods(), vec![policy]].concat();
        assert_eq!(needs(&planner_with(&["10.2.0.0/16"], events)), expected, "{what}");
    }

    let rules = ingress(rule(vec![every()], Ports::All));
    let policy = of_default("x", Selector::default(), rules);
    let events = [vec![namespace("default", &[])], own_pods(), vec![policy]].concat();
    let planner = planner_with(&["10.2.0.0/16"], events);
    let firewall = planner.plan().firewall().expect("it is on");
    for (source, passes) in [("10.2.200.1", true), ("10.3.0.1", false), (OWN[1], true)] {
        let flow = PolicyFlow {
            source: ip(source),
            destination: ip(OWN[0]),
            protocol: Some(Protocol::Tcp),
            port: Some(port(80)),
        };
        assert_eq!(firewall.rejection(&flow).is_none(), passes, "{source}");
    }
}

/// What selects no pod of this node needs nothing, until a pod comes whose labels nobody knows.
#[test]
fn only_policies_of_own_pods_need_pods() {
    let rules = || [Some(vec![rule(vec![pods_of(is("team", "1"))], Ports::All)]), None];
    let of_r = of_default("x", is("app", "r"), rules());
    let base = [vec![namespace("a", &[("team", "1")]), of_r], own_pods()].concat();
    let mut planner = planner(base);
    assert_eq!(needs(&planner), these(&[]));
    let more = [(OWN[0], "veth1"), (OWN[1], "veth2"), ("10.1.0.3", "veth3")];
    planner.apply(vec![Event::Pods(denizen_fixture::pods(2, &more))]);
    planner.update();
    assert_eq!(needs(&planner), these(&["a"]), "it may be selected");
    planner.apply(vec![pod("default", "pod-2", "10.1.0.3", "s", 80, true)]);
    planner.update();
    assert_eq!(needs(&planner), these(&[]));
    planner.apply(vec![pod("default", "pod-2", "10.1.0.3", "r", 80, true)]);
    planner.update();
    assert_eq!(needs(&planner), these(&["a"]));
}

#[test]
fn needs_follow_namespaces() {
    let selector = labelled("team", Operator::NotIn(["1".into()].into()));
    let rules = [Some(vec![rule(vec![pods_of(selector)], Ports::All)]), None];
    let policy = of_default("x", Selector::default(), rules);
    let base = [vec![namespace("a", &[("team", "1")]), policy], own_pods()].concat();
    let mut planner = planner(base);
    let steps = [
        (namespace("b", &[]), these(&["b"])),
        (namespace("a", &[("team", "2")]), these(&["a", "b"])),
        (namespace("b", &[("team", "1")]), these(&["a"])),
        (Event::Namespace("a".into(), None), these(&[])),
    ];
    for (event, expected) in steps {
        planner.apply(vec![event]);
        planner.update();
        assert_eq!(needs(&planner), expected);
    }
}

/// An ADD waits for what its pod's policies need, and for nothing that cannot be had.
#[test]
fn needs_are_covered_by_what_is_complete_or_cannot_be_had() {
    let set = |names: &[&str]| -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    };
    let some = |complete: &[&str], failed: &[&str]| {
        PodCoverage::Some(CoveredNamespaces { complete: set(complete), failed: set(failed) })
    };
    let all = PodNeeds::All(AllPodsReason::ClusterNetworkPolicies);
    let cases = [
        (these(&["a", "b"]), some(&["a"], &[]), false),
        (these(&["a", "b"]), some(&["a"], &["b"]), true),
        (these(&[]), some(&[], &[]), true),
        (all.clone(), some(&["a"], &["b"]), false),
        (all, PodCoverage::All, true),
        (PodNeeds::Unknown, some(&[], &[]), false),
    ];
    for (needs, coverage, expected) in cases {
        assert_eq!(needs.are_covered(&coverage), expected, "{needs:?} {coverage:?}");
    }
}

fn selectors() -> impl Strategy<Value = Selector> {
    let value = || select(vec!["p", "q"]);
    let key = || select(vec!["team", "app"]);
    prop_oneof![
        1 => Just(Selector::default()),
        4 => (key(), value()).prop_map(|(key, value)| is(key, value)),
        2 => (key(), value()).prop_map(|(key, value)| {
            labelled(key, Operator::NotIn([value.into()].into()))
        }),
        1 => key().prop_map(|key| labelled(key, Operator::Exists)),
        1 => key().prop_map(|key| labelled(key, Operator::DoesNotExist)),
    ]
}

fn peers() -> impl Strategy<Value = PolicyPeer> {
    let ranges = select(vec!["10.2.0.0/24", "10.2.1.0/29", "192.0.2.0/24"]);
    prop_oneof![
        selectors().prop_map(|pods| PolicyPeer::Pods { namespaces: Namespaces::Own, pods }),
        (selectors(), selectors()).prop_map(|(namespaces, pods)| PolicyPeer::Pods {
            namespaces: Namespaces::Selected(namespaces),
            pods,
        }),
        ranges.prop_map(block),
    ]
}

fn rules() -> impl Strategy<Value = Option<Vec<PolicyRule>>> {
    let peers = prop_oneof![
        1 => Just(Peers::All),
        5 => prop::collection::vec(peers(), 0..3).prop_map(Peers::These),
    ];
    let number = PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(port(80), port(81)) };
    let ports = prop_oneof![
        3 => Just(Ports::All),
        1 => Just(named()),
        1 => Just(Ports::These(vec![number])),
    ];
    let rule = (peers, ports).prop_map(|(peers, ports)| PolicyRule { index: 0, peers, ports });
    prop::option::of(prop::collection::vec(rule, 0..3))
}

fn policies() -> impl Strategy<Value = Vec<Event>> {
    let policy = (selectors(), rules(), rules());
    prop::collection::vec(policy, 0..4).prop_map(|policies| {
        let named = policies.into_iter().enumerate();
        named
            .map(|(n, (pods, ingress, egress))| of_default(&n.to_string(), pods, [ingress, egress]))
            .collect()
    })
}

fn namespaces() -> impl Strategy<Value = Vec<Event>> {
    let labels = prop::collection::vec(select(vec!["", "p", "q", "r"]), NAMESPACES.len());
    labels.prop_map(|labels| {
        let with = |(name, label): (&&str, &str)| match label {
            "" => namespace(name, &[]),
            label => namespace(name, &[("team", label)]),
        };
        NAMESPACES.iter().zip(labels).map(with).collect()
    })
}

/// Pods of other nodes: the namespace of each, and how it is labelled.
fn others() -> impl Strategy<Value = Vec<Event>> {
    let apps = select(vec!["p", "q", "r"]);
    prop::collection::vec((select(&NAMESPACES[..]), apps, select(vec![80, 8080])), 0..8).prop_map(
        |pods| {
            let numbered = pods.into_iter().enumerate();
            numbered
                .map(|(n, (namespace, app, http))| {
                    let address = format!("10.2.{}.{}", n % 2, n + 5);
                    pod(namespace, &format!("other-{n}"), &address, app, http, false)
                })
                .collect()
        },
    )
}

fn tiers() -> impl Strategy<Value = Vec<Event>> {
    let peer = prop_oneof![
        3 => (selectors(), selectors())
            .prop_map(|(namespaces, pods)| TierPeer::Pods { namespaces, pods }),
        1 => select(vec!["0.0.0.0/0", "10.2.0.0/24"])
            .prop_map(|range| TierPeer::Network(range.parse().unwrap())),
    ];
    let action = select(vec![Action::Accept, Action::Deny, Action::Pass]);
    let rule = (action, prop::collection::vec(peer, 1..3)).prop_map(|(action, peers)| TierRule {
        index: 0,
        name: "".into(),
        action,
        peers: TierPeers::These(peers),
        ports: TierPorts::All,
    });
    let rules = || prop::collection::vec(rule.clone(), 0..4);
    let policy = (select(Tier::BOTH.to_vec()), rules(), rules());
    prop::collection::vec(policy, 1..3).prop_map(|policies| {
        let named = policies.into_iter().enumerate();
        named
            .map(|(n, (tier, ingress, egress))| {
                let name: Arc<str> = n.to_string().into();
                let policy = ClusterNetworkPolicy {
                    name: name.clone(),
                    tier,
                    priority: n as u16,
                    namespaces: Selector::default(),
                    pods: Selector::default(),
                    ingress,
                    egress,
                    is_understood: true,
                };
                Event::ClusterNetworkPolicy(name, Some(policy))
            })
            .collect()
    })
}

/// Every connection that concerns this node's pods: with pods, known or not, and with others.
fn flows() -> Vec<PolicyFlow> {
    let others = (0..8).map(|n| ip(&format!("10.2.{}.{}", n % 2, n + 5)));
    let others: Vec<IpAddr> =
        others.chain([ip("192.0.2.1"), ip("10.2.1.2")]).chain(OWN.map(ip)).collect();
    let mut flows = Vec::new();
    for own in OWN.map(ip) {
        for other in others.iter().copied().filter(|other| *other != own) {
            for (source, destination) in [(own, other), (other, own)] {
                let of = |port| {
                    let protocol = Some(Protocol::Tcp);
                    PolicyFlow { source, destination, protocol, port }
                };
                flows.extend([Some(port(80)), Some(port(8080))].map(of));
                flows.push(PolicyFlow { source, destination, protocol: None, port: None });
            }
        }
    }
    flows
}

fn passes(planner: &Planner, flow: &PolicyFlow) -> bool {
    planner.plan().firewall().expect("it is on").rejection(flow).is_none()
}

fn only(others: &[Event], names: &BTreeSet<Arc<str>>) -> Vec<Event> {
    let is_known = |event: &&Event| {
        let Event::ClusterPod(name, _) = event else { return false };
        names.contains(&name.namespace)
    };
    others.iter().filter(is_known).cloned().collect()
}

fn covered(complete: &BTreeSet<Arc<str>>) -> Event {
    let covered = CoveredNamespaces { complete: complete.clone(), failed: BTreeSet::new() };
    Event::PodCoverage(PodCoverage::Some(covered))
}

proptest! {
    /// The same verdict about everybody, wherever their pods are; and with fewer pods, never a
    /// wider one. What is needed does not depend on which pods are known, nor on the way to it.
    #[test]
    fn the_needed_pods_decide_as_all(
        namespaces in namespaces(),
        policies in policies(),
        others in others(),
        fewer in subsequence(NAMESPACES.to_vec(), 0..NAMESPACES.len()),
    ) {
        let base = [namespaces.clone(), own_pods(), policies.clone()].concat();
        let all = planner([base.clone(), others.clone()].concat());
        let fewer: BTreeSet<Arc<str>> = fewer.into_iter().map(Arc::from).collect();
        let less = planner([base.clone(), only(&others, &fewer), vec![covered(&fewer)]].concat());
        prop_assert_eq!(needs(&all), needs(&less));
        for flow in flows() {
            prop_assert!(passes(&all, &flow) || !passes(&less, &flow), "wider: {flow:?}");
        }
        let mut late = planner(own_pods());
        late.apply([policies, namespaces].concat());
        late.update();
        prop_assert_eq!(needs(&all), needs(&late));
        let PodNeeds::Namespaces(needed) = needs(&all) else { return Ok(()) };
        let some = planner([base, only(&others, &needed), vec![covered(&needed)]].concat());
        for flow in flows() {
            prop_assert_eq!(passes(&all, &flow), passes(&some, &flow), "{:?}", flow);
        }
    }

    /// A ClusterNetworkPolicy that comes while not all pods are known denies all that it would deny
    /// if they were, and accepts no more. When they are known, it decides by what they are.
    #[test]
    fn a_missing_pod_is_denied_what_any_pod_is_denied(
        namespaces in namespaces(),
        policies in policies(),
        tiers in tiers(),
        others in others(),
        known in subsequence(NAMESPACES.to_vec(), 0..NAMESPACES.len()),
    ) {
        let base = [namespaces, own_pods(), policies].concat();
        let all = planner([base.clone(), others.clone(), tiers.clone()].concat());
        let known: BTreeSet<Arc<str>> = known.into_iter().map(Arc::from).collect();
        let mut less = planner([base, only(&others, &known), vec![covered(&known)]].concat());
        less.apply(tiers);
        less.update();
        prop_assert_eq!(needs(&less), PodNeeds::All(AllPodsReason::ClusterNetworkPolicies));
        for flow in flows() {
            prop_assert!(passes(&all, &flow) || !passes(&less, &flow), "wider: {flow:?}");
        }
        less.apply([others, vec![Event::PodCoverage(PodCoverage::All)]].concat());
        less.update();
        for flow in flows() {
            prop_assert_eq!(passes(&all, &flow), passes(&less, &flow), "{:?}", flow);
        }
    }
}
