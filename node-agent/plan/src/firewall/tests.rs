use crate::fixture::{CAPABLE, policy};
use crate::{
    FirewallChanges, FirewallSettings, IdentityChange, Planner, Policy, PolicyFlow, PolicyResult,
    PolicyStep,
};
use denizen_fixture::{ip, port};
use denizen_model::{
    ClusterPod, Event, Labels, Listing, NamedPort, NetworkPolicy, Operator, Peers, PodName,
    PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports, Protocol, Requirement,
    Selector,
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
