//! The part of an explanation about NetworkPolicies and ClusterNetworkPolicies, which see the
//! packet after DNAT.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::packet::FirstPacket;
use super::packet_target::PacketTarget;
use super::{ExplainStep, Explanation, PacketVerdict};
use crate::{Plan, PolicyFlow, PolicyResult, PolicyStep, TierStep};

/// What the policies of one pod decide about the packet, in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRow {
    /// `ingress` or `egress`.
    pub direction: String,
    pub pod: String,
    /// To which endpoint, if the packet is forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The policies that isolate the pod for this direction.
    pub isolated_by: Vec<String>,
    /// The rules of ClusterNetworkPolicies that match, up to the one that decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierRow>,
    /// `open`, `permitted`, `refused` or `pending`; `accepted` or `denied` by the last rule in
    /// `tiers`.
    pub result: String,
    /// The policy that permits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The index of the rule that permits it, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The peer of that rule; missing if it permits everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The ports of that rule; missing if it permits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<String>,
}

/// A rule of a ClusterNetworkPolicy that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierRow {
    /// `Admin` or `Baseline`.
    pub tier: String,
    pub priority: u16,
    pub policy: String,
    /// The rule's index in the policy, from 0.
    pub rule: usize,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `Accept`, `Deny` or `Pass`.
    pub action: String,
    /// The peer that matches; missing if the rule is for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The ports that match; missing if the rule is for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<String>,
    /// Whether the rule only counts as a match because the labels of the pod at the other end are
    /// not known yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub labels_unknown: bool,
}

impl TierRow {
    fn new(step: &TierStep) -> Self {
        Self {
            tier: step.rule.tier.to_string(),
            priority: step.rule.priority,
            policy: step.rule.policy.to_string(),
            rule: step.rule.index,
            name: step.rule.name.to_string(),
            action: step.rule.action.to_string(),
            peer: step.peer.clone(),
            ports: step.ports.clone(),
            labels_unknown: step.is_possible,
        }
    }
}

impl PolicyRow {
    /// Who drops the packet in this direction: a rule of a ClusterNetworkPolicy, or the policies
    /// that isolate the pod and permit nothing like it. `None` if nobody does.
    pub fn refusing(&self) -> Option<String> {
        match &*self.result {
            "denied" => Some(TierRuleText(self.tiers.last()?, &self.direction).to_string()),
            "refused" => Some(format!("NetworkPolicy {}", self.isolated_by.join(", "))),
            _ => None,
        }
    }
}

/// For example `Admin 10 deny-all ingress[2] "from-dev" (Deny): every node, TCP port 80`.
struct TierRuleText<'a>(&'a TierRow, &'a str);

impl fmt::Display for TierRuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(TierRow { tier, priority, policy, rule, name, action, .. }, direction) = self;
        write!(f, "ClusterNetworkPolicy {tier} {priority} {policy} {direction}[{rule}]")?;
        if !name.is_empty() {
            write!(f, " {name:?}")?;
        }
        let peer = self.0.peer.as_deref().unwrap_or("everybody");
        let ports = self.0.ports.as_deref().unwrap_or("every port");
        write!(f, " ({action}): {peer}, {ports}")?;
        if self.0.labels_unknown {
            f.write_str("; the labels of this address' pod are not known yet")?;
        }
        Ok(())
    }
}

/// Adds what policies decide to the explanation, and changes its verdict accordingly.
pub(super) fn apply(
    plan: &Plan,
    packet: &FirstPacket,
    mut explanation: Explanation,
) -> Explanation {
    let Some(firewall) = plan.firewall().filter(|firewall| firewall.is_enforced()) else {
        return explanation;
    };
    if let Some(owner) = spoofed(plan, packet) {
        explanation.step(
            format!("dropped: {} is no address of {owner}", packet.source),
            "what comes from a pod's interface must have an address of the pod",
        );
        explanation.verdict = PacketVerdict::Drop;
        return explanation;
    }
    let path_to = |endpoint| (endpoint, firewall.explain(&flow(packet, endpoint)));
    let paths: Vec<(Option<SocketAddr>, Vec<PolicyStep>)> =
        destinations(packet, &explanation).into_iter().map(path_to).collect();
    let is_refused = |steps: &Vec<PolicyStep>| {
        steps.iter().any(|step| {
            matches!(
                step.result,
                PolicyResult::Refused | PolicyResult::Denied | PolicyResult::Pending
            )
        })
    };
    if !paths.is_empty() && paths.iter().all(|(_, steps)| is_refused(steps)) {
        explanation.verdict = PacketVerdict::Drop;
    }
    let rows = paths.iter().flat_map(|(endpoint, steps)| {
        steps.iter().map(|step| PolicyRow::new(step, endpoint.as_ref().map(SocketAddr::to_string)))
    });
    explanation.policies = rows.collect();
    for row in explanation.policies.clone() {
        explanation.steps.extend(row.words());
    }
    explanation
}

/// The destinations that policies see: each endpoint, or (`None`) the packet's own destination.
/// Empty if the packet does not reach the policies.
fn destinations(packet: &FirstPacket, explanation: &Explanation) -> Vec<Option<SocketAddr>> {
    match explanation.verdict {
        PacketVerdict::Forward => {
            let endpoints = explanation.endpoints.iter();
            endpoints.filter_map(|endpoint| endpoint.parse().ok()).map(Some).collect()
        }
        // A packet from a pod to its own address does not leave the pod.
        PacketVerdict::Untouched if packet.source == packet.destination => Vec::new(),
        PacketVerdict::Untouched => vec![None],
        PacketVerdict::Foreign
        | PacketVerdict::Reject
        | PacketVerdict::Drop
        | PacketVerdict::Unknown => Vec::new(),
    }
}

impl Explanation {
    fn step(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.steps.push(ExplainStep { what: what.into(), why: why.into() });
    }
}

/// The packet after DNAT, if its destination becomes an endpoint.
fn flow(packet: &FirstPacket, endpoint: Option<SocketAddr>) -> PolicyFlow {
    let (protocol, port) = match packet.transport {
        PacketTarget::Port(protocol, port) => (Some(protocol), Some(port)),
        PacketTarget::Echo => (None, None),
    };
    let (source, destination) = (packet.source, packet.destination);
    let sent = PolicyFlow { source, destination, protocol, port };
    match endpoint {
        None => sent,
        Some(end) => {
            PolicyFlow { destination: end.ip(), port: NonZeroU16::new(end.port()), ..sent }
        }
    }
}

/// The pod behind the packet's interface, if the packet's source is not an address of that pod.
fn spoofed(plan: &Plan, packet: &FirstPacket) -> Option<String> {
    let interface = packet.interface.as_deref()?;
    let is_its = |name: Option<&str>| name == Some(interface);
    let pod = plan.recorded().iter().find(|pod| {
        is_its(pod.port.as_deref()) || !pod.shares_interface() && is_its(Some(&*pod.interface))
    })?;
    let firewall = plan.firewall()?;
    firewall.is_forged(pod, packet.source).then(|| pod.to_string())
}

impl PolicyRow {
    fn new(step: &PolicyStep, endpoint: Option<String>) -> Self {
        let row = Self {
            direction: step.direction.to_string(),
            pod: step.pod.clone(),
            endpoint,
            isolated_by: step.policies.iter().map(ToString::to_string).collect(),
            tiers: step.tiers.iter().map(TierRow::new).collect(),
            result: String::new(),
            policy: None,
            rule: None,
            peer: None,
            ports: None,
        };
        match &step.result {
            PolicyResult::Open => Self { result: "open".to_owned(), ..row },
            PolicyResult::Accepted => Self { result: "accepted".to_owned(), ..row },
            PolicyResult::Denied => Self { result: "denied".to_owned(), ..row },
            PolicyResult::Refused => Self { result: "refused".to_owned(), ..row },
            PolicyResult::Pending => Self { result: "pending".to_owned(), ..row },
            PolicyResult::Permitted { policy, rule, peer, ports } => Self {
                result: "permitted".to_owned(),
                policy: Some(policy.to_string()),
                rule: Some(*rule),
                peer: peer.clone(),
                ports: ports.clone(),
                ..row
            },
        }
    }

    /// As steps; none for a direction that is open and that no rule of a tier matches.
    fn words(&self) -> Vec<ExplainStep> {
        let Self { direction, pod, .. } = self;
        let to = self.endpoint.as_ref().map(|end| format!(" (to {end})")).unwrap_or_default();
        let mut steps = Vec::new();
        for row in &self.tiers {
            let what = match &*row.action {
                "Accept" => "permitted",
                "Deny" => "dropped",
                _ => "passed on",
            };
            steps.push(ExplainStep {
                what: format!("{direction} of {pod}{to}: {what}"),
                why: TierRuleText(row, direction).to_string(),
            });
        }
        steps.extend(self.step());
        steps
    }

    /// The step about what is decided after the tiers' rules.
    fn step(&self) -> Option<ExplainStep> {
        let Self { direction, pod, .. } = self;
        let to = self.endpoint.as_ref().map(|end| format!(" (to {end})")).unwrap_or_default();
        let isolated = format!("NetworkPolicy {}", self.isolated_by.join(", "));
        let (what, why) = match (&*self.result, &self.policy, self.rule) {
            ("permitted", Some(policy), Some(rule)) => {
                let peer = self.peer.as_deref().unwrap_or("everybody");
                let ports = self.ports.as_deref().unwrap_or("every port");
                (
                    format!("{direction} of {pod}{to}: permitted"),
                    format!("NetworkPolicy {policy}, {direction} rule {rule}: {peer}, {ports}"),
                )
            }
            ("refused", ..) => (
                format!("{direction} of {pod}{to}: dropped"),
                format!("{isolated} isolates it for {direction}, and no rule permits this"),
            ),
            ("pending", ..) => (
                format!("{direction} of {pod}{to}: dropped"),
                "its labels, or the policies of its namespace, are not known yet".to_owned(),
            ),
            _ => return None,
        };
        Some(ExplainStep { what, why })
    }
}
