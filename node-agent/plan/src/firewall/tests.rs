use crate::fixture::{CAPABLE, policy};
use crate::{FirewallChanges, FirewallSettings, IdentityChange, Planner, Policy};
use denizen_fixture::ip;
use denizen_model::{
    ClusterPod, Event, Labels, Listing, NetworkPolicy, Operator, Peers, PodName, PolicyName,
    PolicyPeer, PolicyRule, Ports, Requirement, Selector,
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

/// Others plan everything anew for each pod of the cluster that comes.
#[test]
fn one_more_remote_pod_is_one_more_identity() {
    let with_firewall = Policy { firewall: Some(FirewallSettings::default()), ..policy() };
    let mut planner = Planner::new(with_firewall, CAPABLE);
    let recorded = recorded();
    let Event::Pods(set) = &recorded else { panic!("the recorded pods") };
    let own = set.pods[0].pod.clone().expect("the runtime passed its name");
    let operator = Operator::In(["web".into()].into());
    let web = Selector { requirements: [Requirement { key: "app".into(), operator }].into() };
    let peer = PolicyPeer::Pods {
        namespaces: denizen_model::Namespaces::Selected(Selector::default()),
        pods: web,
    };
    let rule = PolicyRule { index: 0, peers: Peers::These(vec![peer]), ports: Ports::All };
    let name = PolicyName { namespace: own.namespace, name: "p".into() };
    let policy = NetworkPolicy {
        name: name.clone(),
        pods: Selector::default(),
        ingress: Some(vec![rule]),
        egress: None,
        is_understood: true,
    };
    planner.apply(vec![recorded, Event::NetworkPolicy(name, Some(policy))]);
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
