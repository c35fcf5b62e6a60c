//! How much the `ipBlock`s of a namespace's policies may cost: rules whose blocks overlap cost the
//! product of rules and of the ranges into which they cut addresses, and a policy is small in the
//! API. Counting costs no more than reading the policies.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::blocks::spans_of;
use denizen_model::{Block, NetworkPolicy, Peers, PolicyName, PolicyPeer, Ports};

/// What the policies in force of one namespace may cost ([`cost`]). 150 rules that all overlap and
/// differ pass, and 90,000 blocks of one rule.
const MOST: usize = 100_000;

/// A policy in force of which no rule is applied: with its rules, those of its namespace would cost
/// too much.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExcessPolicy(pub PolicyName);

impl fmt::Display for ExcessPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NetworkPolicy {}: isolates the pods that it selects, and its rules permit nothing: \
             the ipBlocks of the rules of namespace {} are too many, or overlap too much",
            self.0, self.0.namespace
        )
    }
}

/// What a rule names by address, and the number of its ports.
type RuleBlocks<'a> = (Vec<&'a Block>, usize);

/// The policies that exceed what their namespaces may cost. Of one namespace, those that cost least
/// stay.
pub(super) fn excess<'a>(
    policies: impl Iterator<Item = &'a NetworkPolicy>,
) -> BTreeSet<PolicyName> {
    let mut namespaces: BTreeMap<&Arc<str>, Vec<(&PolicyName, Vec<RuleBlocks<'_>>)>> =
        BTreeMap::new();
    for policy in policies {
        let blocks = blocks_of(policy);
        if !blocks.is_empty() {
            let of_namespace = namespaces.entry(&policy.name.namespace).or_default();
            of_namespace.push((&policy.name, blocks));
        }
    }
    let mut excess = BTreeSet::new();
    for mut policies in namespaces.into_values() {
        if fits(&policies) {
            continue;
        }
        policies.sort_by_cached_key(|(name, rules)| (cost(rules.iter()), *name));
        // More policies never cost less.
        let ends: Vec<usize> = (1..=policies.len()).collect();
        let fitting = ends.partition_point(|end| fits(&policies[..*end]));
        excess.extend(policies[fitting..].iter().map(|(name, _)| (*name).clone()));
    }
    excess
}

/// The blocks of each rule that names any.
fn blocks_of(policy: &NetworkPolicy) -> Vec<RuleBlocks<'_>> {
    let rules = [&policy.ingress, &policy.egress].into_iter().flatten().flatten();
    let rules = rules.filter_map(|rule| {
        let Peers::These(peers) = &rule.peers else { return None };
        let blocks = peers.iter().filter_map(|peer| match peer {
            PolicyPeer::Block(block) => Some(block),
            PolicyPeer::Pods { .. } => None,
        });
        let ports = match &rule.ports {
            Ports::All => 1,
            Ports::These(ports) => ports.len(),
        };
        Some((blocks.collect::<Vec<_>>(), ports))
    });
    rules.filter(|(blocks, _)| !blocks.is_empty()).collect()
}

fn fits(policies: &[(&PolicyName, Vec<RuleBlocks<'_>>)]) -> bool {
    let rules = policies.iter().flat_map(|(_, rules)| rules);
    // Most policies are so small that nothing need be counted.
    let ranges = rules.clone().flat_map(|(blocks, _)| blocks).map(|block| 1 + block.except.len());
    let ports: usize = rules.clone().map(|(_, ports)| 1 + ports).sum();
    let ranges: usize = ranges.sum();
    ranges.saturating_mul(2).saturating_mul(ports) <= MOST || cost(rules) <= MOST
}

/// What these rules cost: for each range into which they cut addresses, the rules that hold it, and
/// for each set of rules that hold a range, the permissions at their ports.
fn cost<'a>(rules: impl Iterator<Item = &'a RuleBlocks<'a>>) -> usize {
    // Rules with the same blocks are one peer.
    let mut peers: BTreeMap<Vec<&Block>, usize> = BTreeMap::new();
    for (blocks, ports) in rules {
        *peers.entry(blocks.clone()).or_default() += ports;
    }
    // Nobody can name sets of rules of which these hashes say that they are one set.
    let random = RandomState::new();
    let mut cost: usize = 0;
    for is_v4 in [true, false] {
        let mut edges = Vec::new();
        for (number, (blocks, ports)) in peers.iter().enumerate() {
            for (first, last) in spans_of(blocks.iter().copied(), is_v4) {
                edges.push((first, true, number, *ports));
                edges.extend(last.checked_add(1).map(|behind| (behind, false, number, *ports)));
            }
        }
        edges.sort_unstable();
        let (mut rules, mut ports, mut digest, mut seen) = (0_usize, 0_usize, 0, HashSet::new());
        for here in edges.chunk_by(|(at, ..), (next, ..)| at == next) {
            for (_, begins, number, its_ports) in here {
                digest ^= random.hash_one(number);
                (rules, ports) = match begins {
                    true => (rules + 1, ports + its_ports),
                    false => (rules - 1, ports - its_ports),
                };
            }
            let permissions = if seen.insert(digest) { ports } else { 0 };
            cost = cost.saturating_add(rules + permissions);
        }
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_model::{PolicyPort, PolicyRule, PortMatch, Protocol, Selector};

    const V4: [&str; 3] = ["0.0.0.0/0", "10.", "/32"];
    const V6: [&str; 3] = ["::/0", "2001:db8::", "/128"];

    fn range(kind: [&str; 3], number: usize) -> String {
        let [_, prefix, length] = kind;
        match length {
            "/32" => format!(
                "{prefix}{}.{}.{}{length}",
                number >> 15,
                number >> 7 & 255,
                (number * 2) & 255
            ),
            _ => format!("{prefix}{:x}{length}", number * 2),
        }
    }

    /// Everybody but one address, another one in each rule.
    fn overlapping(kind: [&str; 3], number: usize) -> Vec<Block> {
        let except = vec![range(kind, number).parse().unwrap()];
        vec![Block { range: kind[0].parse().unwrap(), except }]
    }

    fn apart(kind: [&str; 3], number: usize) -> Vec<Block> {
        vec![Block { range: range(kind, number).parse().unwrap(), except: Vec::new() }]
    }

    fn rule(number: usize, blocks: Vec<Block>, ports: u16) -> PolicyRule {
        let peers = Peers::These(blocks.into_iter().map(PolicyPeer::Block).collect());
        let at = |port: u16| {
            let port = port.try_into().unwrap();
            PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(port, port) }
        };
        let ports = match ports {
            0 => Ports::All,
            ports => Ports::These((1..=ports).map(at).collect()),
        };
        PolicyRule { index: number, peers, ports }
    }

    fn policy(namespace: &str, name: &str, rules: Vec<PolicyRule>, ingress: bool) -> NetworkPolicy {
        let (ingress, egress) = if ingress { (Some(rules), None) } else { (None, Some(rules)) };
        NetworkPolicy {
            name: PolicyName { namespace: namespace.into(), name: name.into() },
            pods: Selector::default(),
            ingress,
            egress,
            is_understood: true,
        }
    }

    fn names(policies: &[NetworkPolicy]) -> Vec<String> {
        excess(policies.iter()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn large_policies_of_blocks_that_do_not_overlap_fit() {
        for kind in [V4, V6] {
            let blocks = (0..20_000).flat_map(|number| apart(kind, number)).collect();
            let each = (0..2_000).map(|number| rule(number, apart(kind, number), 10));
            let one = [
                policy("x", "one-rule", vec![rule(0, blocks, 10)], true),
                policy("x", "many-rules", each.collect(), false),
            ];
            assert_eq!(names(&one), [""; 0]);
            let ports = (0..5_000).map(|number| rule(number, overlapping(kind, 0), 1));
            assert_eq!(names(&[policy("x", "one-block", ports.collect(), true)]), [""; 0]);
            let all = (0..150).map(|number| rule(number, overlapping(kind, number), 0));
            assert_eq!(names(&[policy("x", "overlapping", all.collect(), true)]), [""; 0]);
        }
    }

    #[test]
    fn rules_that_overlap_cost_their_namespace_alone() {
        for (kind, ingress) in [(V4, true), (V4, false), (V6, true), (V6, false)] {
            let many = (0..4_000).map(|number| rule(number, overlapping(kind, number), 0));
            let with_ports = (0..120).map(|number| rule(number, overlapping(kind, number), 9));
            let policies = [
                policy("x", "a-many", many.collect(), ingress),
                policy("x", "b-with-ports", with_ports.collect(), ingress),
                policy("x", "c-small", vec![rule(0, apart(kind, 0), 1)], ingress),
                policy("y", "of-others", vec![rule(0, overlapping(kind, 0), 1)], ingress),
            ];
            assert_eq!(names(&policies), ["x/a-many", "x/b-with-ports"]);
            // Many policies in place of many rules.
            let each = (0..400).map(|number| {
                let rules = vec![rule(0, overlapping(kind, number), 0)];
                policy("x", &format!("p{number:04}"), rules, ingress)
            });
            let each: Vec<_> = each.collect();
            let left = each.len() - names(&each).len();
            assert!((150..400).contains(&left), "{left}");
        }
    }
}
