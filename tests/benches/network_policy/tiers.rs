//! ClusterNetworkPolicies as a large cluster's administrators might write them.

use denizen_model::{
    Action, ClusterNetworkPolicy, Event, Namespaces, PolicyPeer, Protocol, Selector, Tier,
    TierPeer, TierPeers, TierPort, TierPorts, TierRule,
};
use denizen_tests::random::Draw;
use ipnetwork::{IpNetwork, Ipv4Network};

use crate::cluster::{APPS, Cluster, app, is, remote_ip};

/// Rules of a policy in each direction: the most that the API takes.
const RULES: usize = 25;
/// How many random numbers a policy is drawn from.
const A_POLICY: usize = 1_500;

/// A policy for the pods of an app or of a namespace. Of its rules 40 % accept, 45 % deny and 15 %
/// pass; half of them name a port, and each has one to three peers. A quarter of the egress peers
/// are networks.
pub fn policy(cluster: Cluster, n: u32) -> ClusterNetworkPolicy {
    let numbers = numbers(n);
    let draw = &mut Draw::new(&numbers);
    let (namespaces, pods) = match draw.percent(50) {
        true => (is("team", (n % cluster.namespaces).to_string()), Selector::default()),
        false => (Selector::default(), is("app", format!("app-{}", n % APPS))),
    };
    let mut rules = |is_egress| (0..RULES).map(|index| rule(draw, index, is_egress)).collect();
    ClusterNetworkPolicy {
        name: format!("tier-{n}").into(),
        tier: if n % 10 < 7 { Tier::Admin } else { Tier::Baseline },
        priority: (n % 1000) as u16,
        namespaces,
        pods,
        ingress: rules(false),
        egress: rules(true),
        is_understood: true,
    }
}

/// Pseudorandom numbers, the same in every run.
fn numbers(n: u32) -> Vec<u16> {
    let mut state = u64::from(n) + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u16
    };
    (0..A_POLICY).map(|_| next()).collect()
}

fn rule(draw: &mut Draw<'_>, index: usize, is_egress: bool) -> TierRule {
    let action = match draw.below(100) {
        0..40 => Action::Accept,
        40..85 => Action::Deny,
        _ => Action::Pass,
    };
    let count = 1 + draw.below(3);
    let peers = (0..count).map(|_| peer(draw, is_egress)).collect();
    let ports = match draw.percent(50) {
        true => TierPorts::All,
        false => TierPorts::These(vec![port(draw)]),
    };
    TierRule { index, name: "".into(), action, peers: TierPeers::These(peers), ports }
}

fn peer(draw: &mut Draw<'_>, is_egress: bool) -> TierPeer {
    if is_egress && draw.percent(25) {
        let address = remote_ip(draw.below(10_000) as u32);
        let length = 16 + draw.below(17) as u8;
        let range = Ipv4Network::new(address, length).expect("at most 32 bits");
        let network = Ipv4Network::new(range.network(), length).expect("the same");
        return TierPeer::Network(IpNetwork::V4(network));
    }
    pods(draw.below(APPS as usize) as u32)
}

/// The pods of an app in every namespace.
pub fn pods(n: u32) -> TierPeer {
    let every = Namespaces::Selected(Selector::default());
    match app(every, n) {
        PolicyPeer::Pods { pods, .. } => TierPeer::Pods { namespaces: Selector::default(), pods },
        PolicyPeer::Block(_) => unreachable!("an app is pods"),
    }
}

fn port(draw: &mut Draw<'_>) -> TierPort {
    let first = draw.one(&[80, 443, 5432, 8080]);
    let last = if draw.percent(20) { first + 100 } else { first };
    let [first, last] = [first, last].map(|port: u16| port.try_into().expect("not 0"));
    TierPort::Range(Protocol::Tcp, first, last)
}

/// Policy `n` of `count` that select all pods of the first namespace. Of all their rules, only the
/// last one accepts the client.
pub fn selecting(n: u32, count: u32, client: u32) -> Event {
    let rule = |index: usize, action, peers, ports| TierRule {
        index,
        name: "".into(),
        action,
        peers,
        ports,
    };
    let others = (0..RULES - 1).map(|index| {
        let other = (client + 1 + (n + index as u32) % (APPS - 1)) % APPS;
        let port = TierPort::Range(
            Protocol::Tcp,
            8080.try_into().expect("not 0"),
            u16::MAX.try_into().expect("not 0"),
        );
        rule(index, Action::Deny, TierPeers::These(vec![pods(other)]), TierPorts::These(vec![port]))
    });
    let is_last = n + 1 == count;
    let last = if is_last { client } else { client + 1 };
    let last = rule(RULES - 1, Action::Accept, TierPeers::These(vec![pods(last)]), TierPorts::All);
    let deny = is_last.then(|| rule(RULES, Action::Deny, TierPeers::All, TierPorts::All));
    let policy = ClusterNetworkPolicy {
        name: format!("tier-{n:04}").into(),
        tier: Tier::Admin,
        priority: (n % 1000) as u16,
        namespaces: is("team", "0".to_owned()),
        pods: Selector::default(),
        ingress: others.chain([last]).chain(deny).collect(),
        egress: Vec::new(),
        is_understood: true,
    };
    Event::ClusterNetworkPolicy(policy.name.clone(), Some(policy))
}
