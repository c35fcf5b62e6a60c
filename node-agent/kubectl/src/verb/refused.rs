//! The flows whose packets the rules of all nodes dropped or refused within the last 15 minutes.
//! The kernels note these flows by themselves, so no command had to run at that time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::node_drops::{NodeDrops, nodes_text, sum};
use crate::verb::connections::NamedEnd;
use denizen_text::{Printable, named_address};

/// How many flows all nodes together are to name, and the minimum and maximum for one node.
const FLOWS: usize = 20_000;
const OF_A_NODE: (usize, usize) = (20, 1_000);

/// How many flows are shown as text.
const MAX_SHOWN_FLOWS: usize = 20;

/// How many flows each node is to name, of this number of nodes.
pub fn limit(nodes: usize) -> usize {
    (FLOWS / nodes.max(1)).clamp(OF_A_NODE.0, OF_A_NODE.1)
}

/// What an agent's kernel has noted.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRefused {
    pub flows: Vec<Flow>,
    pub more_flows: u64,
    pub not_noted: Vec<String>,
}

/// Packets that differ in their source port alone: what happened to them, and whose they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    pub verdict: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    pub table: String,
    pub protocol: String,
    pub source: NamedEnd,
    pub destination: NamedEnd,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Its packets on the node that noted the flow.
    #[serde(default, skip_serializing)]
    pub packets: u64,
    /// Seconds since its first packet on that node.
    #[serde(default, skip_serializing)]
    pub seconds: u64,
}

/// A flow, with the nodes that dropped or refused it.
#[derive(Debug, Serialize)]
pub struct ClusterFlow {
    #[serde(flatten)]
    flow: Flow,
    packets: u64,
    /// Most packets first.
    nodes: Vec<NodeDrops>,
}

/// What the kernel knows of a flow: flows with the same key are merged.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FlowKey {
    reason: String,
    table: String,
    protocol: String,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Flow {
    fn key(&self) -> FlowKey {
        FlowKey {
            reason: self.reason.clone(),
            table: self.table.clone(),
            protocol: self.protocol.clone(),
            source: self.source.address,
            destination: self.destination.address,
        }
    }

    /// With the node's name in place of `this node`.
    fn named(mut self, node: &str) -> Self {
        for end in [&mut self.source, &mut self.destination] {
            if end.name.as_deref() == Some("this node") {
                end.name = Some(format!("node {node}"));
            }
        }
        self
    }

    /// Takes over what another node knows.
    fn complete(&mut self, other: Self) {
        self.policy = self.policy.take().or(other.policy);
        self.service = self.service.take().or(other.service);
        for (end, of) in
            [(&mut self.source, other.source), (&mut self.destination, other.destination)]
        {
            end.name = end.name.take().or(of.name);
        }
    }
}

/// The flows of all nodes, equal ones once, most packets first.
pub fn joined(noted: Vec<(String, Vec<Flow>)>) -> Vec<ClusterFlow> {
    let mut by_key: BTreeMap<FlowKey, ClusterFlow> = BTreeMap::new();
    for (node, flows) in noted {
        for flow in flows {
            let flow = flow.named(&node);
            let packets = flow.packets;
            let on = NodeDrops::new(node.clone(), packets);
            match by_key.get_mut(&flow.key()) {
                None => {
                    let nodes = vec![on];
                    by_key.insert(flow.key(), ClusterFlow { flow, packets, nodes });
                }
                Some(known) => {
                    known.flow.complete(flow);
                    known.nodes.push(on);
                }
            }
        }
    }
    let mut flows: Vec<ClusterFlow> = by_key.into_values().collect();
    for flow in &mut flows {
        flow.packets = sum(&mut flow.nodes);
    }
    flows.sort_by_key(|flow| Reverse(flow.packets));
    flows
}

/// Writes the first flows, a line each. `more`: how many agents did not name.
pub fn write(f: &mut fmt::Formatter<'_>, flows: &[ClusterFlow], more: u64) -> fmt::Result {
    if !flows.is_empty() {
        writeln!(f, "flows of the last 15 minutes:")?;
    }
    flows.iter().take(MAX_SHOWN_FLOWS).try_for_each(|flow| writeln!(f, "{flow}"))?;
    match more.saturating_add(flows.len().saturating_sub(MAX_SHOWN_FLOWS) as u64) {
        0 => Ok(()),
        more => writeln!(f, "and {more} more flows"),
    }
}

impl fmt::Display for ClusterFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flow, packets, nodes } = self;
        let Flow { verdict, reason, policy, table, protocol, source, destination, service, .. } =
            flow;
        let service = service.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let policy = policy.as_ref().map(|policy| format!(": {policy}")).unwrap_or_default();
        let line = format!(
            "{packets} {verdict}: {protocol} {} to {}{service}: {reason}{policy} ({table}): {}",
            named_address(source.address, source.name.as_deref()),
            named_address(destination.address, destination.name.as_deref()),
            nodes_text(nodes),
        );
        write!(f, "{}", Printable(&line))
    }
}
