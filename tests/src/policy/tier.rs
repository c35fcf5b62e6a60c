//! ClusterNetworkPolicies, and what they say of packets, by the API's own text alone.
//!
//! Each question walks the objects as they were written, rule by rule.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::object::{Labels, NodeObject, ObjectMeta, PodObject, PolicyWorld};
use super::oracle::{
    self, Direction, PolicyPacket, Transport, has_port, in_range, namespace_labels, owner, range,
};
use super::selector::LabelSelector;
use crate::packets::probe::Protocol;

/// A ClusterNetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNetworkPolicy {
    pub metadata: ObjectMeta,
    /// `spec`, as it was written.
    pub spec: Value,
}

impl ClusterNetworkPolicy {
    /// A policy of this tier and priority about this subject, without any rule.
    pub fn new(tier: &str, priority: u16, name: &str, subject: Value) -> Self {
        let spec = json!({ "tier": tier, "priority": priority, "subject": subject });
        Self { metadata: ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() }, spec }
    }

    /// The same policy with these ingress rules.
    #[must_use]
    pub fn ingress(mut self, rules: impl IntoIterator<Item = Value>) -> Self {
        self.spec["ingress"] = rules.into_iter().collect();
        self
    }

    /// The same policy with these egress rules.
    #[must_use]
    pub fn egress(mut self, rules: impl IntoIterator<Item = Value>) -> Self {
        self.spec["egress"] = rules.into_iter().collect();
        self
    }
}

/// The verdict of a tier on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TierVerdict {
    Accept,
    Deny,
    /// The tier passes the packet on, or no rule matches.
    Nothing,
}

/// The first matching rule counts, in policies of the tier that select the pod, the lowest priority
/// number first. Policies of the same number may be in any order: here they are ordered by name.
pub(super) fn verdict(
    world: &PolicyWorld,
    tier: &str,
    pod: &PodObject,
    direction: Direction,
    packet: PolicyPacket,
) -> TierVerdict {
    let mut policies: Vec<(u64, &ClusterNetworkPolicy)> = Vec::new();
    for policy in &world.tiers {
        let spec = &policy.spec;
        let priority = spec["priority"].as_u64().filter(|number| *number <= 1000);
        let is_known = ["Admin", "Baseline"].iter().any(|tier| spec["tier"] == *tier);
        if let Some(priority) = priority
            && is_known
            && spec["tier"] == tier
            && is_subject(world, &spec["subject"], pod)
        {
            policies.push((priority, policy));
        }
    }
    policies.sort_by_key(|(priority, policy)| (*priority, policy.metadata.name.clone()));
    let section = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    for (_, policy) in policies {
        for rule in policy.spec[section].as_array().into_iter().flatten() {
            match rule_says(world, rule, pod, direction, packet) {
                Some("Accept") => return TierVerdict::Accept,
                Some("Deny") => return TierVerdict::Deny,
                Some(_) => return TierVerdict::Nothing,
                None => {}
            }
        }
    }
    TierVerdict::Nothing
}

/// The action of a rule that matches the packet. What is not understood fails closed: a rule with
/// action Accept then matches nothing, and any other rule denies everything.
fn rule_says(
    world: &PolicyWorld,
    rule: &Value,
    pod: &PodObject,
    direction: Direction,
    packet: PolicyPacket,
) -> Option<&'static str> {
    let action = match rule["action"].as_str() {
        Some("Accept") => "Accept",
        Some("Deny") => "Deny",
        Some("Pass") => "Pass",
        _ => return Some("Deny"),
    };
    match matches(world, rule, pod, direction, packet) {
        Some(true) => Some(action),
        Some(false) => None,
        None if action == "Accept" => None,
        None => Some("Deny"),
    }
}

/// Whether a rule matches the packet; `None` if the rule cannot be understood.
fn matches(
    world: &PolicyWorld,
    rule: &Value,
    pod: &PodObject,
    direction: Direction,
    packet: PolicyPacket,
) -> Option<bool> {
    let (peers, other) = match direction {
        Direction::Ingress => ("from", packet.from),
        Direction::Egress => ("to", packet.to),
    };
    has_only(rule, &["name", "action", peers, "protocols"])?;
    let listed = rule[peers].as_array().filter(|peers| !peers.is_empty())?;
    let mut is_peer = false;
    for peer in listed {
        is_peer |= covers(world, peer, direction, other)?;
    }
    let protocols = &rule["protocols"];
    if protocols.is_null() {
        return Some(is_peer);
    }
    let without_names = |peer: &Value| peer.get("networks").or(peer.get("nodes")).is_some();
    let destination = match direction {
        Direction::Ingress => Some(pod),
        Direction::Egress => owner(world, packet.to),
    };
    let mut is_port = false;
    for entry in protocols.as_array().filter(|entries| !entries.is_empty())? {
        if entry.get("destinationNamedPort").is_some() && listed.iter().any(without_names) {
            return None;
        }
        is_port |= has_transport(entry, destination, packet.transport)?;
    }
    Some(is_peer && is_port)
}

fn has_only(object: &Value, known: &[&str]) -> Option<()> {
    let object = object.as_object()?;
    object.keys().all(|key| known.contains(&key.as_str())).then_some(())
}

fn covers(
    world: &PolicyWorld,
    peer: &Value,
    direction: Direction,
    address: IpAddr,
) -> Option<bool> {
    let fields = peer.as_object().filter(|fields| fields.len() == 1)?;
    let (field, value) = fields.iter().next()?;
    match (field.as_str(), direction) {
        ("namespaces", _) => {
            let namespaces = selector(value)?;
            let pod = owner(world, address);
            Some(pod.is_some_and(|pod| in_namespaces(world, &namespaces, pod)))
        }
        ("pods", _) => {
            let (namespaces, pods) = namespaced_pods(value)?;
            Some(owner(world, address).is_some_and(|pod| {
                in_namespaces(world, &namespaces, pod) && holds(&pods, &pod.metadata.labels)
            }))
        }
        ("networks", Direction::Egress) => {
            let ranges = value.as_array().filter(|ranges| !ranges.is_empty())?;
            let mut is_in = false;
            for cidr in ranges {
                let (bits, is_v6) = oracle::bits(address);
                is_in |= in_range(range(cidr.as_str()?)?, bits, is_v6);
            }
            Some(is_in)
        }
        ("nodes", Direction::Egress) => {
            let nodes = selector(value)?;
            // A pod's address never counts as a node's.
            let has_it = |node: &&NodeObject| node.addresses.contains(&address);
            let selected = |node: &NodeObject| holds(&nodes, &node.labels);
            let is_pod = owner(world, address).is_some();
            Some(!is_pod && world.nodes.iter().filter(has_it).any(selected))
        }
        _ => None,
    }
}

fn has_transport(entry: &Value, destination: Option<&PodObject>, sent: Transport) -> Option<bool> {
    let fields = entry.as_object().filter(|fields| fields.len() == 1)?;
    let (field, value) = fields.iter().next()?;
    let named = |protocol| matches!(sent, Transport::Port(it, _) if it == protocol);
    let number = match sent {
        Transport::Port(_, number) => Some(u64::from(number)),
        Transport::Other => None,
    };
    let protocol = match field.as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        "destinationNamedPort" => {
            let name = value.as_str().filter(|name| !name.is_empty())?;
            let Transport::Port(protocol, number) = sent else { return Some(false) };
            return Some(destination.is_some_and(|pod| has_port(pod, name, protocol, number)));
        }
        _ => return None,
    };
    has_only(value, &["destinationPort"])?;
    let port = &value["destinationPort"];
    let fields = port.as_object().filter(|fields| fields.len() == 1)?;
    let valid = |value: &Value| value.as_u64().filter(|number| (1..=65535).contains(number));
    let (first, last) = match fields.iter().next()? {
        (field, value) if field == "number" => (valid(value)?, valid(value)?),
        (field, value) if field == "range" => {
            has_only(value, &["start", "end"])?;
            (valid(&value["start"])?, valid(&value["end"])?)
        }
        _ => return None,
    };
    if first > last {
        return None;
    }
    Some(named(protocol) && number.is_some_and(|number| (first..=last).contains(&number)))
}

fn is_subject(world: &PolicyWorld, subject: &Value, pod: &PodObject) -> bool {
    let Some(fields) = subject.as_object().filter(|fields| fields.len() == 1) else { return false };
    match fields.iter().next() {
        Some((field, value)) if field == "namespaces" => {
            selector(value).is_some_and(|namespaces| in_namespaces(world, &namespaces, pod))
        }
        Some((field, value)) if field == "pods" => {
            namespaced_pods(value).is_some_and(|(namespaces, pods)| {
                in_namespaces(world, &namespaces, pod) && holds(&pods, &pod.metadata.labels)
            })
        }
        _ => false,
    }
}

fn namespaced_pods(value: &Value) -> Option<(LabelSelector, LabelSelector)> {
    has_only(value, &["namespaceSelector", "podSelector"])?;
    let namespaces = match value.get("namespaceSelector") {
        None => LabelSelector::default(),
        Some(namespaces) => selector(namespaces)?,
    };
    Some((namespaces, selector(value.get("podSelector")?)?))
}

/// A selector, if all its parts can be understood.
fn selector(value: &Value) -> Option<LabelSelector> {
    has_only(value, &["matchLabels", "matchExpressions"])?;
    let selector: LabelSelector = serde_json::from_value(value.clone()).ok()?;
    selector.selects(&Labels::default())?;
    Some(selector)
}

fn holds(selector: &LabelSelector, labels: &Labels) -> bool {
    selector.selects(labels).unwrap_or(false)
}

fn in_namespaces(world: &PolicyWorld, namespaces: &LabelSelector, pod: &PodObject) -> bool {
    holds(namespaces, &namespace_labels(world, &pod.metadata.namespace))
}
