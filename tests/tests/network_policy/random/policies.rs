//! Random policies.

use std::net::IpAddr;

use denizen_tests::node::world::host_length;
use denizen_tests::policy::{
    IpBlock, LabelSelector, NetworkPolicy, ObjectMeta, PolicyPeer, PolicyPort, PolicyRule,
    PolicySpec, PortNumber, Requirement,
};
use denizen_tests::random::Draw;

use super::{KEYS, NAMES, NAMESPACES, PORTS, VALUES};

/// What is wrong in so many of a hundred parts.
const WRONG: usize = 4;

pub fn policy(draw: &mut Draw<'_>, number: usize, addresses: &[IpAddr]) -> NetworkPolicy {
    let namespace = draw.one(&NAMESPACES[..2]).to_owned();
    let types: [Option<&[&str]>; 6] = [
        None,
        Some(&["Ingress"]),
        Some(&["Egress"]),
        Some(&["Ingress", "Egress"]),
        Some(&[]),
        Some(&["Egress", "Sideways"]),
    ];
    let types = if draw.percent(WRONG) { types[5] } else { draw.one(&types[..5]) };
    let pod_selector = selector(draw, false);
    let ingress = section(draw, addresses, |rule, peers| rule.from = peers);
    let egress = section(draw, addresses, |rule, peers| rule.to = peers);
    NetworkPolicy {
        metadata: ObjectMeta {
            namespace,
            name: format!("policy-{number}"),
            ..ObjectMeta::default()
        },
        spec: PolicySpec {
            pod_selector,
            policy_types: types.map(|types| types.iter().map(|name| (*name).to_owned()).collect()),
            ingress,
            egress,
        },
    }
}

fn section(
    draw: &mut Draw<'_>,
    addresses: &[IpAddr],
    put: impl Fn(&mut PolicyRule, Option<Vec<PolicyPeer>>),
) -> Option<Vec<PolicyRule>> {
    let count = draw.below(4);
    let rules = |draw: &mut Draw<'_>| {
        let mut rule = PolicyRule { ports: ports(draw), ..PolicyRule::default() };
        let count = draw.below(4);
        let peers = (0..count).map(|_| peer(draw, addresses)).collect::<Vec<_>>();
        put(&mut rule, (count > 0 || draw.percent(50)).then_some(peers));
        rule
    };
    (count > 0).then(|| (1..count).map(|_| rules(draw)).collect())
}

/// One that concerns namespaces may ask for the label that they have by themselves.
pub fn selector(draw: &mut Draw<'_>, of_namespaces: bool) -> LabelSelector {
    let mut selector = LabelSelector::default();
    for key in draw.subset(&KEYS, 25) {
        selector.match_labels.insert(key.to_owned(), draw.one(&VALUES).to_owned());
    }
    if draw.percent(40) {
        selector.match_expressions.push(requirement(draw));
    }
    if of_namespaces && draw.percent(25) {
        let name = draw.one(&NAMESPACES).to_owned();
        selector.match_labels.insert("kubernetes.io/metadata.name".to_owned(), name);
    }
    selector
}

fn requirement(draw: &mut Draw<'_>) -> Requirement {
    let key = draw.one(&KEYS).to_owned();
    let operator = draw.one(&["In", "NotIn", "Exists", "DoesNotExist"]);
    let mut values = draw.subset(&VALUES, 50);
    if values.is_empty() {
        values.push(VALUES[0]);
    }
    if operator.ends_with('s') || operator.ends_with('t') {
        values.clear();
    }
    let (operator, values) = match draw.below(100) {
        97 => ("Like", values),
        98 => (operator, vec![]),
        99 => (operator, vec!["a"]),
        _ => (operator, values),
    };
    let values = values.into_iter().map(str::to_owned).collect();
    Requirement { key, operator: operator.to_owned(), values }
}

fn peer(draw: &mut Draw<'_>, addresses: &[IpAddr]) -> PolicyPeer {
    let (pods, namespaces) = (selector(draw, false), selector(draw, true));
    let block = block(draw, addresses);
    match draw.below(6) {
        _ if draw.percent(WRONG) => PolicyPeer::default(),
        _ if draw.percent(WRONG) => PolicyPeer { ip_block: Some(block), ..PolicyPeer::pods(pods) },
        0 | 1 => PolicyPeer::pods(pods),
        2 => PolicyPeer::namespaces(namespaces),
        3 => PolicyPeer::both(namespaces, pods),
        _ => PolicyPeer { ip_block: Some(block), ..PolicyPeer::default() },
    }
}

/// Around an address of the cluster, of any size, with up to two exceptions around others.
fn block(draw: &mut Draw<'_>, addresses: &[IpAddr]) -> IpBlock {
    let address = draw.one(addresses);
    let longest = host_length(address);
    let length = longest - draw.below(usize::from(longest) + 1) as u8 * u8::from(draw.percent(70));
    let mut except = Vec::new();
    for _ in 0..draw.below(3) {
        let other = draw.one(addresses);
        let longest = host_length(other);
        let shortest = if draw.percent(90) { length.min(longest) } else { 0 };
        let length = shortest + draw.below(usize::from(longest - shortest) + 1) as u8;
        except.push(format!("{other}/{length}"));
    }
    let cidr = match draw.below(100) {
        98 => address.to_string(),
        99 => format!("{address}/{}", u16::from(longest) + 1),
        _ => format!("{address}/{length}"),
    };
    IpBlock { cidr, except }
}

fn ports(draw: &mut Draw<'_>) -> Option<Vec<PolicyPort>> {
    let count = draw.below(4);
    (count > 0).then(|| (1..count).map(|_| port(draw)).collect())
}

fn port(draw: &mut Draw<'_>) -> PolicyPort {
    let mut protocol = draw.one(&[None, Some("TCP"), Some("UDP"), Some("SCTP")]);
    if draw.percent(WRONG) {
        protocol = Some("IGMP");
    }
    let first = i64::from(draw.one(&PORTS)) - i64::from(draw.percent(20));
    let last = i64::from(draw.one(&PORTS)) + i64::from(draw.percent(20));
    let wrong_last = draw.percent(WRONG);
    let is_range = |last: i64| last >= first || wrong_last;
    let (port, end_port) = match draw.below(5) {
        0 => (None, wrong_last.then_some(last)),
        1 | 2 => (Some(PortNumber::Number(if wrong_last { 70_000 } else { first })), None),
        3 => (Some(PortNumber::Number(first)), is_range(last).then_some(last)),
        _ => {
            let name = PortNumber::Name(draw.one(&NAMES).to_owned());
            (Some(name), wrong_last.then_some(last))
        }
    };
    PolicyPort { protocol: protocol.map(str::to_owned), port, end_port }
}
