//! Combines the nodes' reports. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::output::{Body, Level};
use denizen_text::Printable;

/// What an agent's `trace` says.
#[derive(Debug, Default, Deserialize)]
pub struct TracedPackets {
    pub packets: Vec<Value>,
}

/// What one node did to a packet, as its agent reports it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeTrace {
    pub node: String,
    pub report: Value,
}

/// Packets, each through all nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTrace {
    from: String,
    to: String,
    /// The sender's node.
    node: String,
    packets: Vec<FollowedPacket>,
    /// How many packets were seen on receivers' nodes that are none of these: others from the same
    /// source, or sent before the sender's node was ready.
    unpaired: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowedPacket {
    outcome: FollowedOutcome,
    /// Where and by what the packet was ended, or what is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// In the packet's order.
    nodes: Vec<NodeTrace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FollowedOutcome {
    /// The last node sent it to its pod, or a program of the node has it.
    Arrived,
    /// A node ended it.
    Ended,
    /// It left the sender's node, and was not seen on the receiver's.
    NotSeen,
    /// It left the sender's node, and whether it arrived is not known.
    Left,
}

/// An agent follows this many packets at once, and this many a second. If there are more, some are
/// not seen.
const FOLLOWED: usize = 10;

/// The fields of a report that are needed here. Those that an agent does not have are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PacketReport {
    identity: PacketIdentity,
    source: ReportedEnd,
    destination: ReportedEnd,
    service: Option<String>,
    hooks: Vec<ReportedHook>,
    virtual_server: Option<String>,
    fate: String,
    by: Option<String>,
    last_source: ReportedEnd,
    last_destination: ReportedEnd,
    comparison: Value,
}

/// What identifies the packet on another node.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PacketIdentity {
    identification: u16,
    sequence: u32,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct ReportedEnd {
    address: String,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReportedHook {
    hook: String,
    input: Option<String>,
    output: Option<String>,
    source: ReportedEnd,
    destination: ReportedEnd,
    rules: Vec<ReportedRule>,
}

/// A rule that matched.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReportedRule {
    table: String,
    chain: String,
    rule: Option<String>,
    reason: Option<String>,
    is_agents: bool,
    verdict: String,
}

/// Pairs what the sender's node reported with what the receivers' nodes did. `followed`: the
/// endpoints whose nodes followed packets, and these nodes. The three names: both ends, as they
/// were asked for, and the sender's node.
pub fn pair_reports(
    [from, to, node]: [String; 3],
    reports: Vec<NodeTrace>,
    followed: &BTreeMap<String, String>,
) -> ClusterTrace {
    let (sent, mut arrived): (Vec<NodeTrace>, Vec<NodeTrace>) =
        reports.into_iter().partition(|report| report.node == node);
    let mut seen = BTreeMap::<String, usize>::new();
    arrived.iter().for_each(|trace| *seen.entry(trace.node.clone()).or_default() += 1);
    let is_whole = |node: &String| seen.get(node).is_none_or(|seen| *seen < FOLLOWED);
    let mut packets = Vec::new();
    for trace in sent {
        let report = PacketReport::of(&trace.report);
        let there =
            arrived.iter().position(|other| report.is_same(&PacketReport::of(&other.report)));
        let there = there.map(|at| arrived.remove(at));
        let expected = followed.iter().find(|(endpoint, _)| report.is_to(endpoint));
        let expected = expected.map(|(_, node)| (&**node, is_whole(node)));
        packets.push(FollowedPacket::of(trace, &report, there, expected));
    }
    ClusterTrace { from, to, node, packets, unpaired: arrived.len() }
}

impl FollowedPacket {
    fn of(
        sent: NodeTrace,
        report: &PacketReport,
        there: Option<NodeTrace>,
        expected: Option<(&str, bool)>,
    ) -> Self {
        let (outcome, why) = match (&*report.fate, &there, expected) {
            ("sent", Some(there), _) => PacketReport::of(&there.report).outcome(&there.node),
            ("sent", None, Some((node, true))) => {
                (FollowedOutcome::NotSeen, Some(format!("{node} did not see it")))
            }
            ("sent", None, Some((node, false))) => {
                let why = format!("{node} had more packets than it follows, {FOLLOWED} a second");
                (FollowedOutcome::Left, Some(why))
            }
            ("sent", None, None) if report.is_at_its_pod() => (FollowedOutcome::Arrived, None),
            ("sent", None, None) => (FollowedOutcome::Left, None),
            _ => report.outcome(&sent.node),
        };
        Self { outcome, why, nodes: [sent].into_iter().chain(there).collect() }
    }
}

impl PacketReport {
    /// A report that is not understood, such as a newer agent's, counts as empty.
    fn of(report: &Value) -> Self {
        Self::deserialize(report).unwrap_or_default()
    }

    /// Whether `there`, from the receiver's node, reports the same packet as this report of the
    /// sender's node. The source may be masqueraded after the last hook, so the headers' numbers
    /// are compared.
    fn is_same(&self, there: &Self) -> bool {
        let is_told = self.identity != PacketIdentity::default();
        let is_known = match is_told {
            true => self.identity == there.identity,
            false => self.last_source.address == there.source.address,
        };
        is_known && self.last_destination.address == there.destination.address
    }

    /// Whether it was sent to this endpoint, `ADDR:PORT/PROTO`.
    fn is_to(&self, endpoint: &str) -> bool {
        let address = endpoint.rsplit_once('/').map_or(endpoint, |(address, _)| address);
        address == self.last_destination.address
    }

    /// Whether the destination is a pod of the node that sent the packet.
    fn is_at_its_pod(&self) -> bool {
        self.last_destination.name.is_some()
    }

    fn outcome(&self, node: &str) -> (FollowedOutcome, Option<String>) {
        match &*self.fate {
            "sent" | "delivered" => (FollowedOutcome::Arrived, None),
            fate => {
                let by = self.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
                (FollowedOutcome::Ended, Some(format!("{fate} on {node}{by}")))
            }
        }
    }

    fn differences(&self) -> impl Iterator<Item = &str> {
        let all = self.comparison.get("differs").and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str)
    }
}

impl Body for ClusterTrace {
    fn level(&self) -> Level {
        let of = |packet: &FollowedPacket| {
            let mut reports = packet.nodes.iter().map(|trace| PacketReport::of(&trace.report));
            match packet.outcome {
                FollowedOutcome::Ended | FollowedOutcome::NotSeen => Level::Failure,
                FollowedOutcome::Arrived | FollowedOutcome::Left => {
                    match reports.any(|report| report.differences().next().is_some()) {
                        true => Level::Warning,
                        false => Level::Good,
                    }
                }
            }
        };
        self.packets.iter().map(of).max().unwrap_or(Level::Warning)
    }
}

impl fmt::Display for ClusterTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, packets, unpaired, .. } = self;
        if packets.is_empty() {
            let line = format!("no packet of a new connection from {from} to {to} was seen");
            writeln!(f, "{}", Printable(&line))?;
        }
        for (number, packet) in (1..).zip(packets) {
            packet.write(f, number)?;
        }
        if *unpaired > 0 {
            writeln!(f, "{unpaired} other packets were seen on receivers' nodes alone")?;
        }
        Ok(())
    }
}

impl FollowedPacket {
    fn write(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        let mut say = |line: &str| writeln!(f, "{}", Printable(line));
        let reports: Vec<_> =
            self.nodes.iter().map(|trace| (&trace.node, PacketReport::of(&trace.report))).collect();
        if let Some((_, first)) = reports.first() {
            let service = first.service.as_ref().map(|service| format!(", service {service}"));
            let service = service.unwrap_or_default();
            say(&format!("packet {number}: {} to {}{service}", first.source, first.destination))?;
        }
        for (node, report) in &reports {
            say(&format!("  on {node}"))?;
            for hook in &report.hooks {
                say(&format!("    {hook}"))?;
                hook.rules.iter().try_for_each(|rule| say(&format!("      {rule}")))?;
            }
            if let Some(server) = &report.virtual_server {
                say(&format!("    IPVS chose {}, at {server}", report.last_destination))?;
            }
            for difference in report.differences() {
                say(&format!("    => differs from explain: {difference}"))?;
            }
        }
        let why = self.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        say(&format!("  => {}{why}", self.outcome))
    }
}

impl fmt::Display for FollowedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrived => "arrived",
            Self::Ended => "ended",
            Self::NotSeen => "lost between the nodes",
            Self::Left => "left the nodes that were followed",
        })
    }
}

impl fmt::Display for ReportedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl fmt::Display for ReportedHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook, input, output, source, destination, .. } = self;
        f.write_str(hook)?;
        if let Some(input) = input {
            write!(f, ", in through {input}")?;
        }
        if let Some(output) = output {
            write!(f, ", out through {output}")?;
        }
        write!(f, ": {source} to {destination}")
    }
}

impl fmt::Display for ReportedRule {
    /// For a rule of the agent it shows the reason, for others the rule itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, chain, rule, reason, is_agents, verdict } = self;
        write!(f, "table {table}, chain {chain}: ")?;
        match (is_agents, reason, rule) {
            (true, Some(reason), _) => f.write_str(reason)?,
            (_, Some(reason), Some(rule)) => write!(f, "{rule} \"{reason}\"")?,
            (_, None, Some(rule)) => f.write_str(rule)?,
            (_, _, None) => f.write_str("its policy")?,
        }
        write!(f, " [{verdict}]")
    }
}

#[cfg(test)]
mod tests;
