//! Small worlds. `tests/tests/network_policy/impact.rs` compares random ones with an oracle.

use std::collections::BTreeMap;

use super::{AccessChange, Impact, ImpactEnd, ImpactRow, impact};
use crate::{Decider, Direction, PermittedPorts};
use denizen_fixture::ip;
use denizen_model::{
    Block, ClusterPod, Event, Family, Labels, Namespaces, NetworkPolicy, Operator, OtherNode,
    Peers, PodName, PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports, Protocol,
    Requirement, Selector,
};

fn pod(name: &str, address: &str, app: &str) -> Event {
    let name = PodName { namespace: "shop".into(), name: name.into() };
    let pod = ClusterPod {
        labels: Labels::from_iter([("app", app), ("pod-index", address)]),
        ips: [ip(address)].into(),
        ..ClusterPod::named(name.clone())
    };
    Event::ClusterPod(name, Some(pod.into()))
}

fn app(value: &str) -> Selector {
    let operator = Operator::In([value.into()].into());
    Selector { requirements: [Requirement { key: "app".into(), operator }].into() }
}

fn policy(pods: Selector, ingress: Vec<PolicyRule>) -> Event {
    let name = PolicyName { namespace: "shop".into(), name: "p".into() };
    let (ingress, egress, is_understood) = (Some(ingress), None, true);
    let policy = NetworkPolicy { name: name.clone(), pods, ingress, egress, is_understood };
    Event::NetworkPolicy(name, Some(policy))
}

fn pods(app_of_peer: &str) -> PolicyPeer {
    PolicyPeer::Pods { namespaces: Namespaces::Own, pods: app(app_of_peer) }
}

fn rule(index: usize, peers: Vec<PolicyPeer>, ports: &[(u16, u16)]) -> PolicyRule {
    let number = |port: u16| port.try_into().expect("a port");
    let range = |(first, last): &(u16, u16)| PolicyPort {
        protocol: Protocol::Tcp,
        port: PortMatch::Range(number(*first), number(*last)),
    };
    let ports = match ports.is_empty() {
        true => Ports::All,
        false => Ports::These(ports.iter().map(range).collect()),
    };
    PolicyRule { index, peers: Peers::These(peers), ports }
}

fn world() -> Vec<Event> {
    vec![
        pod("db-0", "10.0.0.1", "db"),
        pod("db-1", "10.0.0.2", "db"),
        pod("web", "10.0.0.3", "web"),
        pod("other", "10.0.0.4", "other"),
    ]
}

/// The names of those in these profiles.
fn names(impact: &Impact, profiles: &[usize]) -> Vec<String> {
    let ends = profiles.iter().flat_map(|at| &impact.profiles[*at]);
    let mut names: Vec<String> = ends
        .map(|end| match &impact.ends[*end] {
            ImpactEnd::Pod(name) => name.name.to_string(),
            ImpactEnd::Node(name) => format!("node {name}"),
            ImpactEnd::Range(range) => range.to_string(),
            ImpactEnd::Elsewhere => "elsewhere".to_owned(),
        })
        .collect();
    names.sort();
    names
}

fn isolated() -> Decider {
    let name = PolicyName { namespace: "shop".into(), name: "p".into() };
    Decider::Isolated([name].into())
}

#[test]
fn what_a_policy_takes_away_is_named_with_what_permitted_it() {
    let change = policy(app("db"), vec![rule(0, vec![pods("web")], &[(5432, 5432)])]);
    let found = impact(world(), vec![change]);
    let by_peers: BTreeMap<Vec<String>, &ImpactRow> =
        found.rows.iter().map(|row| (names(&found, &row.peers), row)).collect();
    let peers: Vec<Vec<String>> = by_peers.keys().cloned().collect();
    let others = ["db-0", "db-1", "elsewhere", "other"].map(str::to_owned).to_vec();
    assert_eq!(peers, [others.clone(), vec!["web".to_owned()]]);
    for row in &found.rows {
        assert_eq!((row.change, row.direction), (AccessChange::Lost, Direction::Ingress));
        assert_eq!(names(&found, &row.subjects), ["db-0", "db-1"]);
        assert_eq!((&row.before, &row.after), (&Decider::Nobody, &isolated()));
        assert_eq!(row.families, [Family::V4]);
    }
    assert!(by_peers[&others].ports.is_all());
    let of_web = &by_peers[&vec!["web".to_owned()]].ports;
    assert!(!of_web.passes(Some(Protocol::Tcp), 5432) && of_web.passes(Some(Protocol::Tcp), 5433));
    assert!(of_web.passes(None, 0) && of_web.passes(Some(Protocol::Udp), 5432));
}

#[test]
fn what_a_deletion_gives_back_is_the_opposite_of_what_the_policy_took() {
    let the_policy = policy(app("db"), vec![rule(0, vec![pods("web")], &[(80, 90)])]);
    let applied = impact(world(), vec![the_policy.clone()]);
    let Event::NetworkPolicy(name, _) = &the_policy else { panic!("a policy") };
    let gone = Event::NetworkPolicy(name.clone(), None);
    let deleted = impact([world(), vec![the_policy]].concat(), vec![gone]);
    let all = |impact: &Impact| -> Vec<_> {
        let row = |row: &ImpactRow| {
            let (subjects, peers) = (names(impact, &row.subjects), names(impact, &row.peers));
            (subjects, peers, row.ports.clone())
        };
        impact.rows.iter().map(row).collect()
    };
    assert!(!applied.rows.is_empty());
    assert_eq!(all(&applied), all(&deleted));
    assert!(applied.rows.iter().all(|row| row.change == AccessChange::Lost));
    for row in &deleted.rows {
        assert_eq!(row.change, AccessChange::Gained);
        assert_eq!((&row.before, &row.after), (&isolated(), &Decider::Nobody));
    }
}

/// One of them permits web ports 80 to 84, the other 83 to 90.
#[test]
fn rows_are_cut_where_another_rule_decides() {
    let rules =
        vec![rule(0, vec![pods("web")], &[(80, 84)]), rule(1, vec![pods("web")], &[(83, 90)])];
    let before = [world(), vec![policy(app("db"), rules)]].concat();
    let found = impact(before, vec![policy(app("db"), Vec::new())]);
    let cut: Vec<(Decider, PermittedPorts)> =
        found.rows.iter().map(|row| (row.before.clone(), row.ports.clone())).collect();
    let name = PolicyName { namespace: "shop".into(), name: "p".into() };
    let [(first, of_first), (second, of_second)] = &cut[..] else { panic!("{cut:#?}") };
    assert_eq!((first, second), (&Decider::Rule(name.clone(), 0), &Decider::Rule(name, 1)));
    let spans = |ports: &PermittedPorts| ports.spans().map(|(_, span)| span).collect::<Vec<_>>();
    assert_eq!((spans(of_first), spans(of_second)), (vec![(80, 84)], vec![(85, 90)]));
}

#[test]
fn outside_is_cut_as_blocks_cut_it() {
    let block = Block { range: "10.9.0.0/16".parse().unwrap(), except: Vec::new() };
    let node = OtherNode {
        internal: vec![ip("192.168.0.1")],
        external: Vec::new(),
        pod_cidrs: vec!["10.0.0.0/24".parse().unwrap()],
        labels: Labels::default(),
        created: "".into(),
    };
    let nodes = vec![Event::OtherNode("n1".into(), Some(node))];
    let change = policy(Selector::default(), vec![rule(0, vec![PolicyPeer::Block(block)], &[])]);
    let found = impact([world(), nodes].concat(), vec![change]);
    let lost: Vec<Vec<String>> = found.rows.iter().map(|row| names(&found, &row.peers)).collect();
    let all = ["db-0", "db-1", "elsewhere", "node n1", "other", "web"].map(str::to_owned).to_vec();
    let union: std::collections::BTreeSet<&String> = lost.iter().flatten().collect();
    assert_eq!(union.into_iter().cloned().collect::<Vec<_>>(), all);
    assert!(found.ends.iter().any(|end| matches!(end, ImpactEnd::Range(_))));
}

#[test]
fn what_changes_nothing_has_no_rows() {
    let cases = [
        ("for nobody", policy(app("nobody"), Vec::new())),
        ("for everybody", {
            let everybody = PolicyRule { index: 0, peers: Peers::All, ports: Ports::All };
            policy(Selector::default(), vec![everybody])
        }),
    ];
    for (name, change) in cases {
        assert_eq!(impact(world(), vec![change]).rows, [], "{name}");
    }
}

/// What numbers a StatefulSet's pods is no reason to look at each: no policy asks for it.
#[test]
fn pods_that_no_policy_tells_apart_are_one() {
    let many =
        (0..500).map(|at| pod(&format!("p{at}"), &format!("10.1.{}.{}", at / 250, at % 250), "x"));
    let change = policy(app("db"), vec![rule(0, vec![pods("web")], &[])]);
    let found = impact(world().into_iter().chain(many).collect(), vec![change]);
    assert!(found.profiles.len() < 8, "{}", found.profiles.len());
    assert_eq!(found.ends.len(), 505);
}
