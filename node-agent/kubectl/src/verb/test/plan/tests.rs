use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn node_names(number: usize) -> Vec<String> {
    (0..number).map(|node| format!("n{node}")).collect()
}

/// Servers of so many nodes, each with an address of each family.
fn running(number: usize) -> Vec<TestPod> {
    let mut servers = servers(&node_names(number));
    for (at, server) in servers.iter_mut().enumerate() {
        server.ips =
            [format!("10.0.{at}.1"), format!("fd00::{at}")].map(|ip| ip.parse().unwrap()).into();
    }
    servers
}

fn facts(number: usize) -> TestFacts {
    let servers = running(number);
    let mut newcomers = newcomers(&servers);
    for (at, newcomer) in newcomers.iter_mut().enumerate() {
        newcomer.ips = vec![format!("10.1.{at}.1").parse().unwrap()];
    }
    let service = |ip: &str| ServiceEnds {
        ips: vec![ip.parse().unwrap()],
        node_ports: [Some(30080), Some(30081)],
    };
    let address =
        |at| vec![format!("192.168.1.{at}").parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let nodes = node_names(number).into_iter().enumerate();
    TestFacts {
        newcomers,
        service: service("172.30.0.1"),
        local: service("172.30.0.2"),
        nodes: nodes.map(|(at, node)| (node, address(at))).collect(),
        external: vec!["example.org:443".to_owned()],
        servers,
    }
}

proptest! {
    #[test]
    fn all_ask_all_or_a_neighbour_and_three_others(
        number in 0_usize..120,
        numbers in prop::collection::vec(any::<usize>(), 360),
    ) {
        let mut numbers = numbers.into_iter();
        let peers = peers(number, |below| numbers.next().unwrap() % below);
        prop_assert_eq!(peers.len(), number);
        for (own, of) in peers.iter().enumerate() {
            let each: BTreeSet<usize> = of.iter().copied().collect();
            prop_assert_eq!(each.len(), of.len(), "nobody is asked twice");
            prop_assert!(!each.contains(&own) && each.iter().all(|peer| *peer < number));
            let expected = if number <= ALL { number - 1 } else { 1 + OTHERS };
            prop_assert_eq!(of.len(), expected);
            prop_assert!(number < 2 || each.contains(&((own + 1) % number)), "the ring is whole");
        }
    }

    #[test]
    fn every_newcomer_asks_its_own_node_and_both_classes(number in 1_usize..60) {
        let servers = running(number);
        let newcomers = newcomers(&servers);
        prop_assert_eq!(newcomers.len(), number);
        for newcomer in newcomers {
            let classes = newcomer.servers.each_ref().map(|server| server.class);
            prop_assert_eq!(classes, [ServerClass::Permitted, ServerClass::Other]);
            prop_assert!(newcomer.servers.iter().any(|server| server.node == newcomer.node));
        }
    }

    /// What is asked grows with the nodes, not with their square.
    #[test]
    fn everybody_asks_everything_once(number in 1_usize..50) {
        let facts = facts(number);
        let probes = facts.probes(|_| 0);
        let each: BTreeSet<_> = probes.iter().map(|probe| (&probe.from, &probe.to)).collect();
        prop_assert_eq!(each.len(), probes.len());
        let mut counts = BTreeMap::<(&str, CheckKind), usize>::new();
        for probe in &probes {
            *counts.entry((&probe.from, probe.kind)).or_default() += 1;
        }
        for server in &facts.servers {
            let of = |kind| counts.get(&(&*server.name, kind)).copied().unwrap_or_default();
            let peers = if number <= ALL { facts.servers.len() - 1 } else { 1 + OTHERS };
            prop_assert_eq!(of(CheckKind::Pod), peers * 4, "two protocols and families");
            prop_assert_eq!(of(CheckKind::ClusterIp), 2);
            prop_assert_eq!(of(CheckKind::Hairpin), if server.is_first { 2 } else { 0 });
            prop_assert_eq!(of(CheckKind::External), 1);
            let nodes = if number == 1 { 1 } else { peers + 1 };
            prop_assert_eq!(of(CheckKind::NodePort), nodes * 2, "the service has one family");
        }
    }
}

#[test]
fn a_newcomer_reaches_what_is_permitted_and_is_reached_by_whom_is() {
    let facts = facts(3);
    let newcomer = &facts.newcomers[2];
    let names = newcomer.servers.each_ref().map(|server| &*server.name);
    assert_eq!(names, ["server-2", "server-1"], "of three, the last has a neighbour before it");
    let first = newcomer.first();
    let of = |probe: &PlannedProbe| (probe.to.clone(), probe.expected.clone());
    let answer = |name: &str| ExpectedOutcome::Answer(name.to_owned());
    assert_eq!(first.len(), 12);
    assert_eq!(of(&first[0]), ("10.0.2.1:8080/tcp".to_owned(), answer("server-2")));
    assert_eq!(of(&first[1]), ("10.0.2.1:8080/udp".to_owned(), answer("server-2")));
    assert_eq!(of(&first[2]), ("10.0.2.1:8081/tcp".to_owned(), ExpectedOutcome::Nothing));
    let back = |number: usize| newcomer.back(&first[number], "10.1.2.1:8080/tcp").unwrap();
    assert_eq!((&*back(0).from, back(0).expected), ("server-2", ExpectedOutcome::Connection));
    assert_eq!((&*back(6).from, back(6).expected), ("server-1", ExpectedOutcome::Nothing));
    let later: Vec<PlannedProbe> = newcomer.later().collect();
    assert_eq!((&*later[0].from, later[0].expected.clone()), ("server-2", answer("newcomer-2")));
    assert_eq!(
        (&*later[1].from, later[1].expected.clone()),
        ("server-1", ExpectedOutcome::Nothing)
    );
    // Of servers of one class alone, there is nobody to compare with.
    let alone: Vec<TestPod> = facts.servers.into_iter().step_by(2).collect();
    assert_eq!(newcomers(&alone), []);
}
