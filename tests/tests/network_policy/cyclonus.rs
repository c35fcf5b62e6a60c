//! The 230 cases that cyclonus generates, made again from what its documentation says they are.
//! What is true of each step, the oracle says, for six ports of every pod.

mod conflicts;
mod peers;
mod ports;
mod steps;

use anyhow::Result;
use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use denizen_tests::policy::{
    LabelSelector, NetworkPolicy, PolicyPeer, PolicyPort, PolicyRule, PolicyWorld,
};

use crate::case::Case;
use crate::hosts::{OnPaper, nine};

/// Its groups, and the cases of each.
pub fn groups(world: &PolicyWorld) -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("targets", targets()),
        ("rules", rules()),
        ("peers", peers::cases(world)),
        ("ports", ports::cases()),
        ("conflicts", conflicts::cases(world)),
        ("actions", steps::actions()),
        ("namespaces by default label", by_default_label()),
        ("upstream e2e", steps::upstream(world)),
        ("example", vec![steps::example()]),
    ]
}

/// One of the two directions of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// The policy that most cases change in one respect.
fn base() -> NetworkPolicy {
    policy("x", label("pod", "a"), [ingress()], egress())
}

fn policy(
    namespace: &str,
    pods: LabelSelector,
    ingress: impl IntoIterator<Item = PolicyRule>,
    egress: impl IntoIterator<Item = PolicyRule>,
) -> NetworkPolicy {
    NetworkPolicy::new(namespace, "base", pods).ingress(ingress).egress(egress)
}

fn ingress() -> PolicyRule {
    PolicyRule::from([both("ns", &["x", "y"], &["b", "c"])]).at([PolicyPort::number(Tcp, 80)])
}

fn egress() -> [PolicyRule; 2] {
    let to =
        PolicyRule::to([both("ns", &["y", "z"], &["a", "b"])]).at([PolicyPort::number(Tcp, 80)]);
    [to, dns()]
}

/// Names may be looked up whatever else is forbidden.
fn dns() -> PolicyRule {
    PolicyRule::all().at([PolicyPort::number(Tcp, 53), PolicyPort::number(Udp, 53)])
}

/// The base with another rule in one direction.
fn with(direction: Direction, rule: PolicyRule) -> NetworkPolicy {
    match direction {
        Direction::Ingress => policy("x", label("pod", "a"), [rule], egress()),
        Direction::Egress => policy("x", label("pod", "a"), [ingress()], [rule, dns()]),
    }
}

/// The rule of the base, with other peers.
fn rule_for(direction: Direction, peers: Vec<PolicyPeer>) -> PolicyRule {
    let rule = match direction {
        Direction::Ingress => PolicyRule::from(peers),
        Direction::Egress => PolicyRule::to(peers),
    };
    rule.at([PolicyPort::number(Tcp, 80)])
}

fn label(key: &str, value: &str) -> LabelSelector {
    LabelSelector::label(key, value)
}

fn both(key: &str, namespaces: &[&str], pods: &[&str]) -> PolicyPeer {
    PolicyPeer::both(
        LabelSelector::requires(key, "In", namespaces),
        LabelSelector::requires("pod", "In", pods),
    )
}

/// A case of one policy.
fn one(name: String, policy: NetworkPolicy) -> Case {
    Case::new(name).put(policy).expect_oracle()
}

fn targets() -> Vec<Case> {
    let a_or_b = LabelSelector::requires("pod", "In", &["a", "b"]);
    let of = |name: String, namespace: &str, pods: LabelSelector| {
        one(name, policy(namespace, pods, [ingress()], egress()))
    };
    let namespaces = ["x", "y", "z"];
    let namespaces =
        namespaces.map(|name| of(format!("target namespace {name}"), name, label("pod", "a")));
    let pods = [("all", LabelSelector::default()), ("a", label("pod", "a")), ("a or b", a_or_b)];
    let pods = pods.map(|(name, pods)| of(format!("target pods: {name}"), "x", pods));
    namespaces.into_iter().chain(pods).collect()
}

fn rules() -> Vec<Case> {
    let case = |direction: Direction, name: &str, rules: Vec<PolicyRule>| {
        let policy = match direction {
            Direction::Ingress => policy("x", label("pod", "a"), rules, egress()),
            Direction::Egress => policy("x", label("pod", "a"), [ingress()], rules),
        };
        one(format!("{direction:?}: {name}"), policy)
    };
    let both = |direction| {
        [case(direction, "deny all", vec![]), case(direction, "allow all", vec![PolicyRule::all()])]
    };
    DIRECTIONS.into_iter().flat_map(both).collect()
}

fn by_default_label() -> Vec<Case> {
    let case = |direction| {
        let peer = both("kubernetes.io/metadata.name", &["x", "y"], &["b", "c"]);
        let name = format!("{direction:?}: namespaces by default label");
        one(name, with(direction, rule_for(direction, vec![peer])))
    };
    DIRECTIONS.map(case).into()
}

#[test]
fn there_are_230() -> Result<()> {
    let groups = groups(&nine(&mut OnPaper::default())?);
    let counts: Vec<_> = groups.iter().map(|(name, cases)| (*name, cases.len())).collect();
    let expected = [
        ("targets", 6),
        ("rules", 4),
        ("peers", 112),
        ("ports", 70),
        ("conflicts", 16),
        ("actions", 6),
        ("namespaces by default label", 2),
        ("upstream e2e", 13),
        ("example", 1),
    ];
    assert_eq!(counts, expected);
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), 230);
    Ok(())
}

/// A generator that makes the same case again and again, or only cases that deny everything, would
/// test little.
#[test]
fn they_tell_pods_and_ports_apart() -> Result<()> {
    let groups = groups(&nine(&mut OnPaper::default())?);
    let mut tables = std::collections::BTreeSet::new();
    for case in groups.into_iter().flat_map(|(_, cases)| cases) {
        let mut hosts = OnPaper::default();
        let mut world = nine(&mut hosts)?;
        let mut table = Vec::new();
        for step in &case.steps {
            for change in &step.changes {
                change.apply(&mut world, &mut hosts)?;
            }
            let pods = world.pods.len();
            let pairs = || (0..pods).flat_map(|from| (0..pods).map(move |to| (from, to)));
            let row = |expected: &crate::case::Expected| {
                pairs().map(|(from, to)| expected.holds(&world, from, to, 0)).collect::<Vec<_>>()
            };
            table.extend(step.expected.iter().map(row));
        }
        assert!(table.iter().flatten().any(|arrives| *arrives), "{}", case.name);
        tables.insert(table);
    }
    assert!(tables.len() >= 70, "only {} truth tables differ", tables.len());
    Ok(())
}
