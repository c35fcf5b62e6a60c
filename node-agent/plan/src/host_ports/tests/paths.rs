//! Whatever the path: the decisions are those of a fresh start with the same facts.

use super::*;
use denizen_model::ServiceName;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const ASKED: [&str; 7] = [
    "*:80/tcp->8080",
    "0.0.0.0:80/tcp->8081",
    ":::80/tcp->8082",
    "192.168.0.2:80/tcp->8083",
    "192.168.9.9:80/tcp->8084",
    "*:30080/tcp->8080",
    "192.168.0.2:30080/tcp->8085",
];

const ADDRESSES: [(&str, &str); 6] = [
    ("127.0.0.1", "lo"),
    ("192.168.0.2", "eth0"),
    ("192.168.9.9", "eth1"),
    ("2001:db8::2", "eth0"),
    ("fe80::2", "veth1"),
    ("10.96.0.10", "dummy0"),
];

/// One kind of fact as it is from now on.
#[derive(Debug, Clone)]
enum Fact {
    Pods(Vec<LocalPod>),
    Addresses(Vec<(&'static str, &'static str)>),
    /// The service's node port, and the node's primary address.
    Service(Option<u16>, &'static str),
}

fn a_pod(number: usize) -> impl Strategy<Value = LocalPod> {
    const IPS: [&[&str]; 3] = [&["10.1.0.5", "fd00:1::5"], &["10.1.0.6"], &["fd00:1::7"]];
    let ips = select(&IPS[..]);
    (ips, subsequence(&ASKED[..], 0..=2), 0..3_u8)
        .prop_map(move |(ips, asked, second)| pod(&format!("pod-{number}"), ips, &asked, second))
}

fn pods() -> impl Strategy<Value = Vec<LocalPod>> {
    let each = |number| prop::option::of(a_pod(number));
    [each(0), each(1), each(2), each(3)].prop_map(|pods| pods.into_iter().flatten().collect())
}

fn fact() -> impl Strategy<Value = Fact> {
    let service =
        (select(&[None, Some(30080), Some(80)][..]), select(&["192.168.0.2", "192.168.9.9"][..]));
    prop_oneof![
        3 => pods().prop_map(Fact::Pods),
        1 => subsequence(&ADDRESSES[..], 0..=6).prop_map(Fact::Addresses),
        1 => service.prop_map(|(port, primary)| Fact::Service(port, primary)),
    ]
}

fn tell(node: &mut HostPortNode, fact: &Fact) {
    match fact {
        Fact::Pods(pods) => drop(node.pods(pods.clone())),
        Fact::Addresses(all) => {
            let addresses = all.iter().map(|&(ip, on)| denizen_model::NodeAddress {
                dummy: on.starts_with("dummy"),
                ..address(ip, on)
            });
            node.apply(Event::Addresses(addresses.collect()));
        }
        Fact::Service(port, primary) => {
            let web = port.map(|port| {
                let mut web = service("web", &["10.96.0.10"]);
                web.ports =
                    vec![denizen_fixture::service_port("http", Protocol::Tcp, 80, Some(port))];
                web.load_balancer_ips = vec![ip("192.168.9.9")];
                web
            });
            node.apply(Event::Node(Some(denizen_fixture::node(None, &[primary], &[]))));
            node.apply(Event::Service(ServiceName::new("default", "web"), web));
        }
    }
}

fn listed(node: &mut HostPortNode) {
    Listing::SERVICES.into_iter().for_each(|listing| drop(node.apply(Event::Listed(listing))));
}

proptest! {
    #[test]
    fn lead_to_the_same_decisions(facts in prop::collection::vec(fact(), 1..20), at in 0..20_usize) {
        let mut node = HostPortNode::new(true);
        for (number, fact) in facts.iter().enumerate() {
            if number == at {
                listed(&mut node);
            }
            tell(&mut node, fact);
        }
        listed(&mut node);
        let mut fresh = HostPortNode::new(true);
        let last = |kind: fn(&Fact) -> bool| facts.iter().rev().find(|fact| kind(fact));
        let kinds: [fn(&Fact) -> bool; 3] = [
            |fact| matches!(fact, Fact::Service(..)),
            |fact| matches!(fact, Fact::Addresses(_)),
            |fact| matches!(fact, Fact::Pods(_)),
        ];
        kinds.into_iter().filter_map(last).for_each(|fact| tell(&mut fresh, fact));
        listed(&mut fresh);
        prop_assert_eq!(node.plan.host_ports(), fresh.plan.host_ports());
    }
}
