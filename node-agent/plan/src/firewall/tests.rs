use crate::fixture::{CAPABLE, policy};
use crate::{
    FirewallChanges, FirewallSettings, IdentityChange, Planner, Policy, PolicyFlow, PolicyResult,
    PolicyStep,
};
use denizen_fixture::{ip, port};
use denizen_model::{
    Action, ClusterNetworkPolicy, ClusterPod, Event, Labels, Listing, NamedPort, NetworkPolicy,
    Operator, Peers, PodName, PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports,
    Protocol, Requirement, Selector, Tier, TierPeer, TierPeers, TierPorts, TierRule,
};

fn pod(number: u32) -> Event {
    let name = PodName { namespace: "x".into(), name: format!("pod-{number}").into() };
    let pod = ClusterPod {
        labels: Labels::from_iter([("app", "web"), ("pod-template-hash", &*number.to_string())]),
        ips: [ip(&format!("10.64.{}.{}", number / 256, number % 256))].into(),
        ..ClusterPod::named(name.clone())
    };
    Event::ClusterPod(name, Some(pod.into()))
}

fn recorded() -> Event {
    Event::Pods(denizen_fixture::pods(1, &[("10.1.2.3", "veth1")]))
}

/// A planner that knows a recorded pod, and a policy of its namespace with these rules.
fn planner(ingress: Option<PolicyRule>, egress: Option<PolicyRule>) -> Planner {
    let with_firewall = Policy { firewall: Some(FirewallSettings::default()), ..policy() };
    let mut planner = Planner::new(with_firewall, CAPABLE);
    let recorded = recorded();
    let Event::Pods(set) = &recorded else { panic!("the recorded pods") };
    let own = set.pods[0].pod.clone().expect("the runtime passed its name");
    let name = PolicyName { namespace: own.namespace, name: "p".into() };
    let policy = NetworkPolicy {
        name: name.clone(),
        pods: Selector::default(),
        ingress: ingress.map(|rule| vec![rule]),
        egress: egress.map(|rule| vec![rule]),
        is_understood: true,
    };
    planner.apply(vec![recorded, Event::NetworkPolicy(name, Some(policy))]);
    planner
}

/// A NetworkPolicy may name a port by its number and by its name.
#[test]
fn the_entry_that_covers_a_packet_is_named() {
    let entry = |port| PolicyPort { protocol: Protocol::Tcp, port };
    let number = |number| PortMatch::Range(port(number), port(number));
    let name = |name: &str| PortMatch::Named(name.into());
    let entries = [number(8080), name("metrics"), name("http"), number(80)].map(entry);
    let rule = PolicyRule { index: 0, peers: Peers::All, ports: Ports::These(entries.into()) };
    let mut planner = planner(None, Some(rule));
    let named = |name: &str, number| NamedPort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port: port(number),
    };
    let name = PodName { namespace: "x".into(), name: "web".into() };
    let pod = ClusterPod {
        ips: [ip("10.64.0.1")].into(),
        ports: [named("http", 80), named("metrics", 9090)].into(),
        ..ClusterPod::named(name.clone())
    };
    planner.apply(vec![Event::ClusterPod(name, Some(pod.into()))]);
    planner.apply(Listing::FIREWALL.map(Event::Listed).into());
    planner.update();
    let explained = |number| {
        let (source, destination) = (ip("10.1.2.3"), ip("10.64.0.1"));
        let (protocol, port) = (Some(Protocol::Tcp), Some(port(number)));
        let flow = PolicyFlow { source, destination, protocol, port };
        let steps = planner.plan().firewall().expect("it is on").explain(&flow);
        match &steps[..] {
            [PolicyStep { result: PolicyResult::Permitted { ports, .. }, .. }] => ports.clone(),
            [PolicyStep { result: PolicyResult::Refused, .. }] => None,
            steps => panic!("{steps:?}"),
        }
    };
    let cases = [
        (8080, Some("tcp port 8080")),
        (9090, Some("tcp port \"metrics\"")),
        (80, Some("tcp port \"http\"")),
        (81, None),
    ];
    for (number, expected) in cases {
        assert_eq!(explained(number).as_deref(), expected, "{number}");
    }
}

/// Others plan everything anew for each pod of the cluster that comes.
#[test]
fn one_more_remote_pod_is_one_more_identity() {
    let operator = Operator::In(["web".into()].into());
    let web = Selector { requirements: [Requirement { key: "app".into(), operator }].into() };
    let peer = PolicyPeer::Pods {
        namespaces: denizen_model::Namespaces::Selected(Selector::default()),
        pods: web,
    };
    let rule = PolicyRule { index: 0, peers: Peers::These(vec![peer]), ports: Ports::All };
    let mut planner = planner(Some(rule), None);
    planner.apply((0..500).map(pod).collect());
    planner.apply(Listing::FIREWALL.map(Event::Listed).into());
    assert!(planner.update().firewall.identities.len() >= 500);
    planner.apply(vec![pod(500)]);
    let FirewallChanges {
        state,
        pod_rules,
        identities,
        blocks,
        taken,
        owners,
        surroundings,
        forgotten,
        narrowed,
        departed,
    } = planner.update().firewall;
    let [IdentityChange { of, before: None, after: Some(_) }] = identities[..] else {
        panic!("{identities:?}")
    };
    assert_eq!(of, ip("10.64.1.244"));
    assert_eq!((&taken[..], surroundings), (&[(of, true)][..], false));
    assert!(owners.is_empty(), "{owners:?}");
    assert!(!state && pod_rules.is_empty() && blocks.is_empty() && forgotten.is_empty());
    assert!(narrowed.is_empty() && departed.is_empty());
}

/// A policy that selects no pod of this node, but may deny something to one of another node.
#[test]
fn a_pod_has_only_its_own_addresses_while_a_policy_of_the_cluster_denies_or_passes() {
    let mut planner =
        Planner::new(Policy { firewall: Some(FirewallSettings::default()), ..policy() }, CAPABLE);
    planner.apply([vec![recorded()], Listing::FIREWALL.map(Event::Listed).into()].concat());
    let peer = TierPeer::Pods { namespaces: Selector::default(), pods: Selector::default() };
    let selects = |value: &str| {
        let operator = Operator::In([value.into()].into());
        Selector { requirements: [Requirement { key: "app".into(), operator }].into() }
    };
    let tier = |action| ClusterNetworkPolicy {
        name: "p".into(),
        tier: Tier::Admin,
        priority: 0,
        namespaces: selects("none"),
        pods: Selector::default(),
        ingress: vec![TierRule {
            index: 0,
            name: "".into(),
            action,
            peers: TierPeers::These(vec![peer.clone()]),
            ports: TierPorts::All,
        }],
        egress: Vec::new(),
        is_understood: true,
    };
    let cases = [
        (None, false),
        (Some(Action::Accept), false),
        (Some(Action::Deny), true),
        (Some(Action::Pass), true),
        (None, false),
    ];
    let mut was_confined = false;
    for (action, is_confined) in cases {
        planner.apply(vec![Event::ClusterNetworkPolicy("p".into(), action.map(tier))]);
        let changes = planner.update().firewall;
        let plan = planner.plan();
        let (firewall, pod) = (plan.firewall().expect("it is on"), &plan.recorded()[0]);
        for free in ["203.0.113.9", "2001:db8:9::9", "fe80::bad"] {
            assert_eq!(firewall.is_forged(pod, ip(free)), is_confined, "{action:?}: {free}");
        }
        assert!(!firewall.is_forged(pod, ip("10.1.2.3")), "{action:?}");
        assert!(changes.state || is_confined == was_confined, "{action:?}: pods are not rendered");
        was_confined = is_confined;
    }
}
