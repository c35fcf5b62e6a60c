//! The ends of connections: pods by workload, nodes, and addresses outside.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use denizen_model::PodName;
use denizen_plan::AddressRange;
use denizen_plan::impact::ImpactEnd;
use denizen_text::Printable;
use ipnetwork::IpNetwork;
use serde::Serialize;

use crate::workload::Workload;

/// How many names a list shows before it counts the rest.
const NAMES: usize = 8;

/// A workload, a node, a range of addresses, or everything else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ImpactMember {
    /// The workload's kind; `Node`, `Range` or `Elsewhere` without a namespace.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// How many of the workload's pods take part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<usize>,
    /// How many pods the workload has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<usize>,
}

impl ImpactMember {
    fn outside(kind: &str, name: String) -> Self {
        Self { kind: kind.to_owned(), namespace: None, name, pods: None, of: None }
    }

    fn is_whole(&self) -> bool {
        self.pods == self.of
    }

    fn text(&self) -> String {
        let Self { kind, namespace, name, pods, of } = self;
        match (namespace, pods.zip(*of)) {
            (Some(namespace), Some((pods, of))) if pods != of => {
                format!("{kind} {namespace}/{name} ({pods} of {of} pods)")
            }
            (Some(namespace), _) => format!("{kind} {namespace}/{name}"),
            (None, _) if kind == ELSEWHERE => "all other addresses".to_owned(),
            (None, _) if kind == NODE => format!("node {name}"),
            (None, _) => name.clone(),
        }
    }
}

const NODE: &str = "Node";
const RANGE: &str = "Range";
const ELSEWHERE: &str = "Elsewhere";

/// All ends that were compared.
#[derive(Debug, Default)]
pub struct ImpactEnds {
    /// By their place in the plan's answer.
    ends: Vec<EndOwner>,
    /// How many pods each has.
    workloads: BTreeMap<Workload, usize>,
    /// How many workloads each has.
    namespaces: BTreeMap<String, usize>,
    nodes: usize,
}

#[derive(Debug)]
enum EndOwner {
    Pod(Workload),
    Outside(ImpactMember),
}

impl ImpactEnds {
    pub fn new(ends: &[ImpactEnd], workloads: &HashMap<PodName, Workload>) -> Self {
        let mut all = Self::default();
        for end in ends {
            let place = match end {
                ImpactEnd::Pod(pod) => {
                    let workload = workloads.get(pod).cloned().unwrap_or_else(|| Workload {
                        namespace: pod.namespace.to_string(),
                        name: pod.name.to_string(),
                        kind: "Pod".to_owned(),
                    });
                    *all.workloads.entry(workload.clone()).or_default() += 1;
                    EndOwner::Pod(workload)
                }
                ImpactEnd::Node(name) => {
                    all.nodes += 1;
                    EndOwner::Outside(ImpactMember::outside(NODE, name.to_string()))
                }
                ImpactEnd::Range(range) => {
                    EndOwner::Outside(ImpactMember::outside(RANGE, range_text(*range)))
                }
                ImpactEnd::Elsewhere => {
                    EndOwner::Outside(ImpactMember::outside(ELSEWHERE, String::new()))
                }
            };
            all.ends.push(place);
        }
        for workload in all.workloads.keys() {
            *all.namespaces.entry(workload.namespace.clone()).or_default() += 1;
        }
        all
    }

    pub fn pods(&self) -> usize {
        self.workloads.values().sum()
    }

    /// Addresses outside the cluster that policies tell from all others.
    pub fn ranges(&self) -> Vec<String> {
        let outside = self.ends.iter().filter_map(|place| match place {
            EndOwner::Outside(member) if member.kind == RANGE => Some(member.name.clone()),
            EndOwner::Outside(_) | EndOwner::Pod(_) => None,
        });
        outside.collect()
    }

    /// The members at these places in `ends`. Sorted.
    pub fn members(&self, places: &BTreeSet<usize>) -> Vec<ImpactMember> {
        let mut pods: BTreeMap<&Workload, usize> = BTreeMap::new();
        let mut members = Vec::new();
        for place in places.iter().map(|place| &self.ends[*place]) {
            match place {
                EndOwner::Pod(workload) => *pods.entry(workload).or_default() += 1,
                EndOwner::Outside(member) => members.push(member.clone()),
            }
        }
        members.extend(pods.into_iter().map(|(workload, pods)| ImpactMember {
            kind: workload.kind.clone(),
            namespace: Some(workload.namespace.clone()),
            name: workload.name.clone(),
            pods: Some(pods),
            of: self.workloads.get(workload).copied(),
        }));
        members.sort();
        members
    }

    /// The text for a person, such as `every pod` in place of a list of all pods.
    pub fn text(&self, members: &[ImpactMember]) -> String {
        let whole: Vec<&ImpactMember> = members
            .iter()
            .filter(|member| member.namespace.is_some() && member.is_whole())
            .collect();
        let every_pod = whole.len() == self.workloads.len() && whole.len() > 1;
        let nodes = members.iter().filter(|member| is_outside(member, NODE)).count();
        let every_node = nodes == self.nodes && nodes > 1;
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for namespace in whole.iter().filter_map(|member| member.namespace.as_deref()) {
            *of_namespaces.entry(namespace).or_default() += 1;
        }
        let is_whole = |namespace: &str| {
            let number = of_namespaces.get(namespace).copied().unwrap_or_default();
            number > 1 && self.namespaces.get(namespace) == Some(&number)
        };
        let mut names = Vec::new();
        names.extend(every_pod.then(|| "every pod".to_owned()));
        let namespaces = of_namespaces.keys().filter(|name| !every_pod && is_whole(name));
        names.extend(namespaces.map(|name| format!("every pod of namespace {name}")));
        names.extend(every_node.then(|| "every node".to_owned()));
        let rest = members.iter().filter(|member| match &member.namespace {
            Some(namespace) => !(member.is_whole() && (every_pod || is_whole(namespace))),
            None => !(every_node && is_outside(member, NODE)),
        });
        names.extend(rest.map(ImpactMember::text));
        let more = names.len().saturating_sub(NAMES);
        names.truncate(NAMES);
        let list = names.join(", ");
        let list = if more > 0 { format!("{list} and {more} more") } else { list };
        Printable(&list).to_string()
    }
}

fn is_outside(member: &ImpactMember, kind: &str) -> bool {
    member.namespace.is_none() && member.kind == kind
}

/// As a CIDR, if it is one.
fn range_text(range: AddressRange) -> String {
    let longest = if range.first.is_ipv4() { 32 } else { 128 };
    let networks = (0..=longest).filter_map(|prefix| IpNetwork::new(range.first, prefix).ok());
    let mut networks = networks
        .filter(|network| network.network() == range.first && network.broadcast() == range.last);
    networks.next().map_or_else(|| range.to_string(), |network| network.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_as_policies_write_them() {
        let cases = [
            ("10.0.0.0", "10.255.255.255", "10.0.0.0/8"),
            ("10.0.0.1", "10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.1", "10.0.0.2", "10.0.0.1-10.0.0.2"),
            ("0.0.0.0", "255.255.255.255", "0.0.0.0/0"),
            ("fd00::", "fd00::ffff", "fd00::/112"),
        ];
        for (first, last, expected) in cases {
            let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
            assert_eq!(range_text(AddressRange { first, last }), expected);
        }
    }
}
