//! Ports, and the policies that decide, in words and for programs.

use std::fmt;

use denizen_plan::{Decider, Direction, PermittedPorts, TierDecider};
use denizen_text::Printable;
use serde::Serialize;

/// Ports of the destination.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PortWords {
    /// Whether it is every port of every protocol, and protocols without ports.
    all: bool,
    ranges: Vec<PortRange>,
    /// Protocols without ports, such as ICMP.
    others: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct PortRange {
    protocol: String,
    first: u16,
    last: u16,
}

impl PortWords {
    pub fn new(ports: &PermittedPorts) -> Self {
        let range = |(protocol, (first, last)): (denizen_model::Protocol, (u16, u16))| PortRange {
            protocol: protocol.to_string(),
            first,
            last,
        };
        Self {
            all: ports.is_all(),
            ranges: ports.spans().map(range).collect(),
            others: ports.passes_others(),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, first, last } = self;
        match (first, last) {
            (0, &u16::MAX) => write!(f, "every {protocol} port"),
            (first, last) if first == last => write!(f, "{protocol} {first}"),
            (first, last) => write!(f, "{protocol} {first}-{last}"),
        }
    }
}

impl fmt::Display for PortWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            return f.write_str("every port and protocol");
        }
        let ranges = self.ranges.iter().map(PortRange::to_string);
        let others = self.others.then(|| "protocols without ports".to_owned());
        f.write_str(&ranges.chain(others).collect::<Vec<_>>().join(", "))
    }
}

/// What decides a connection.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DeciderWords {
    /// `open`, `permitted`, `refused`; `accepted`, `denied` by a ClusterNetworkPolicy.
    result: String,
    /// The policies that decide, as `NAMESPACE/NAME`, or `NAME` of a ClusterNetworkPolicy.
    policies: Vec<String>,
    /// The place of the rule that decides in the policy's list, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<usize>,
    /// In words.
    text: String,
}

impl DeciderWords {
    pub fn new(decider: &Decider, direction: Direction) -> Self {
        match decider {
            Decider::Nobody => Self {
                result: "open".to_owned(),
                policies: Vec::new(),
                rule: None,
                text: "permitted: no policy restricts it".to_owned(),
            },
            Decider::Rule(policy, rule) => Self {
                result: "permitted".to_owned(),
                policies: vec![policy.to_string()],
                rule: Some(*rule),
                text: format!("permitted by NetworkPolicy {policy}, {direction} rule {rule}"),
            },
            Decider::Isolated(policies) => {
                let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
                let text = format!(
                    "dropped: NetworkPolicy {} isolates it for {direction}, and no rule permits this",
                    policies.join(", ")
                );
                Self { result: "refused".to_owned(), policies, rule: None, text }
            }
            Decider::Tier(tier) => {
                let TierDecider { tier, priority, policy, index: rule, name, action } = tier;
                let (result, verb) = match action {
                    denizen_model::Action::Deny => ("denied", "dropped"),
                    denizen_model::Action::Accept | denizen_model::Action::Pass => {
                        ("accepted", "permitted")
                    }
                };
                let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
                let text = format!(
                    "{verb} by ClusterNetworkPolicy {tier} {priority} {policy} \
                     {direction}[{rule}]{name}"
                );
                Self {
                    result: result.to_owned(),
                    policies: vec![policy.to_string()],
                    rule: Some(*rule),
                    text,
                }
            }
        }
    }
}

impl fmt::Display for DeciderWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.text).fmt(f)
    }
}
