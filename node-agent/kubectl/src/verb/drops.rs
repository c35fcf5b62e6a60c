//! `drops`: what the rules of all nodes dropped and refused, by reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::only;
use crate::cluster::Api;
use crate::finding::{Shared, Texts, node_names};
use crate::output::{Body, ClusterReport, Level};
use crate::session::request::Request;
use crate::survey::{Limits, survey};
use denizen_text::Printable;

/// How many nodes are shown for each reason.
const NODES: usize = 5;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDrops {
    /// Most packets first.
    pub drops: Vec<Drop>,
    /// Which packets are not counted, and why.
    pub not_counted: Vec<Shared>,
}

/// One reason.
#[derive(Debug, Serialize)]
pub struct Drop {
    pub reason: String,
    pub verdict: String,
    pub table: String,
    pub packets: u64,
    /// By node, most packets first.
    pub nodes: Vec<NodeDrops>,
}

#[derive(Debug, Serialize)]
pub struct NodeDrops {
    node: String,
    packets: u64,
}

/// What `denizen-agent drops` says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    drops: Vec<Count>,
    not_counted: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Count {
    table: String,
    verdict: String,
    reason: String,
    packets: u64,
}

impl Counts {
    /// Of all reasons.
    pub fn packets(&self) -> u64 {
        self.drops.iter().fold(0, |sum: u64, count| sum.saturating_add(count.packets))
    }
}

pub async fn drops(api: &Api, limits: Limits) -> anyhow::Result<ClusterReport<ClusterDrops>> {
    let node_agents = api.node_agents().await?;
    let read = |_: &str, answers| only(answers);
    let asked = survey(&api.client, node_agents, limits, &[Request::DROPS], read).await;
    Ok(ClusterReport::of(asked, merged))
}

pub fn merged(answered: Vec<(String, Counts)>) -> ClusterDrops {
    let mut by_reason: BTreeMap<(String, String, String), Vec<NodeDrops>> = BTreeMap::new();
    let mut not_counted = Texts::default();
    for (node, counts) in answered {
        counts.not_counted.iter().for_each(|text| not_counted.add(&node, text));
        for Count { table, verdict, reason, packets } in counts.drops {
            if packets > 0 {
                let nodes = by_reason.entry((reason, verdict, table)).or_default();
                nodes.push(NodeDrops { node: node.clone(), packets });
            }
        }
    }
    let drop = |((reason, verdict, table), mut nodes): (_, Vec<NodeDrops>)| {
        nodes.sort_by_key(|of| std::cmp::Reverse(of.packets));
        let packets = nodes.iter().fold(0, |sum: u64, of| sum.saturating_add(of.packets));
        Drop { reason, verdict, table, packets, nodes }
    };
    let mut drops: Vec<Drop> = by_reason.into_iter().map(drop).collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    ClusterDrops { drops, not_counted: not_counted.sorted() }
}

impl Body for ClusterDrops {
    /// To drop is what policies are for.
    fn level(&self) -> Level {
        Level::Good
    }
}

impl fmt::Display for ClusterDrops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Drop { reason, verdict, table, packets, nodes } in &self.drops {
            let of = |of: &NodeDrops| format!("{} on {}", of.packets, of.node);
            let mut shown = nodes.iter().take(NODES).map(of).collect::<Vec<_>>().join(", ");
            if nodes.len() > NODES {
                shown.push_str(&format!(", and {} more nodes", nodes.len() - NODES));
            }
            let line = format!("{packets} {verdict}: {reason} ({table}): {shown}");
            writeln!(f, "{}", Printable(&line))?;
        }
        if self.drops.is_empty() {
            writeln!(f, "nothing was dropped or refused")?;
        }
        self.not_counted.iter().try_for_each(|shared| {
            let (nodes, text) = (node_names(shared.nodes.iter()), shared.shown());
            writeln!(f, "not counted: {} ({})", Printable(&text), Printable(&nodes))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_counts_of_all_nodes_are_summed_by_reason() {
        let counts = |packets: u64| {
            let row = |reason: &str, packets| {
                json!({ "table": "inet denizen", "verdict": "dropped", "reason": reason,
                        "packets": packets })
            };
            let drops = [row("no endpoint", packets), row("spoofed", 0)];
            serde_json::from_value(json!({ "drops": drops, "notCounted": "iptables" })).unwrap()
        };
        let drops = merged(vec![("a".to_owned(), counts(3)), ("b".to_owned(), counts(39))]);
        assert_eq!(
            drops.to_string(),
            "42 dropped: no endpoint (inet denizen): 39 on b, 3 on a\n\
             not counted: iptables (2 nodes: a, b)\n"
        );
    }
}
