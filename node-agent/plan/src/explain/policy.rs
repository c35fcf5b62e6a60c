//! What NetworkPolicies say of a packet, after DNAT.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::packet::{FirstPacket, PacketTarget};
use super::{ExplainStep, Explanation, PacketVerdict};
use crate::{Plan, PolicyFlow, PolicyResult, PolicyStep};

/// What the policies of one pod say of the packet, in one direction.
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
    /// `open`, `permitted`, `refused` or `pending`.
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

/// Adds what the policies say, and what that means for the packet.
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
    let endpoints: Vec<Option<SocketAddr>> = match explanation.verdict {
        PacketVerdict::Forward => explanation
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.parse().ok())
            .map(Some)
            .collect(),
        PacketVerdict::Untouched => vec![None],
        PacketVerdict::Foreign
        | PacketVerdict::Reject
        | PacketVerdict::Drop
        | PacketVerdict::Unknown => {
            return explanation;
        }
    };
    let ask = |endpoint| (endpoint, firewall.explain(&flow(packet, endpoint)));
    let asked: Vec<(Option<SocketAddr>, Vec<PolicyStep>)> =
        endpoints.into_iter().map(ask).collect();
    let is_refused = |steps: &Vec<PolicyStep>| {
        steps
            .iter()
            .any(|step| matches!(step.result, PolicyResult::Refused | PolicyResult::Pending))
    };
    if !asked.is_empty() && asked.iter().all(|(_, steps)| is_refused(steps)) {
        explanation.verdict = PacketVerdict::Drop;
    }
    let rows = asked.iter().flat_map(|(endpoint, steps)| {
        steps.iter().map(|step| PolicyRow::new(step, endpoint.as_ref().map(SocketAddr::to_string)))
    });
    explanation.policies = rows.collect();
    for row in explanation.policies.clone() {
        explanation.steps.extend(row.step());
    }
    explanation
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
            result: String::new(),
            policy: None,
            rule: None,
            peer: None,
            ports: None,
        };
        match &step.result {
            PolicyResult::Open => Self { result: "open".to_owned(), ..row },
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

    /// In words; `None` if the direction is open.
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
