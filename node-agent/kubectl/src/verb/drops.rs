//! `drops`: what the rules of all nodes dropped and refused, by reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::node_drops::{NodeDrops, nodes_text, sum};
use super::only;
use super::refused::{self, ClusterFlow, NodeRefused};
use crate::cluster::Api;
use crate::finding::{CommonText, Texts, node_names};
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level};
use crate::session::Answers;
use crate::session::request::{RefusedQuery, Request};
use crate::survey::{Limits, survey};
use denizen_text::Printable;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDrops {
    /// Most packets first.
    pub drops: Vec<Drop>,
    /// Which packets are not counted, and why.
    pub not_counted: Vec<CommonText>,
    /// The flows of the packets that were dropped or refused in the last 15 minutes, most packets
    /// first.
    pub flows: Vec<ClusterFlow>,
    /// How many more flows there are that agents did not name.
    pub more_flows: u64,
    /// Which flows are not noted, and why.
    pub not_noted: Vec<CommonText>,
}

/// The packets of one reason.
#[derive(Debug, Serialize)]
pub struct Drop {
    pub reason: String,
    pub verdict: String,
    pub table: String,
    pub packets: u64,
    /// By node, most packets first.
    pub nodes: Vec<NodeDrops>,
}

/// What an agent says.
struct NodeAnswer {
    counts: Counts,
    /// The flows; an error if the agent is too old to know them.
    refused: Result<NodeRefused, String>,
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
    /// The packets of all reasons.
    pub fn packets(&self) -> u64 {
        self.drops.iter().fold(0, |sum: u64, count| sum.saturating_add(count.packets))
    }
}

pub async fn drops(api: &Api, limits: Limits) -> anyhow::Result<ClusterReport<ClusterDrops>> {
    let node_agents = api.node_agents().await?;
    let limit = refused::limit(node_agents.all.len());
    let requests = [Request::DROPS, Request::Refused(RefusedQuery { limit })];
    let surveyed = survey(&api.client, node_agents, limits, &requests, answer).await;
    Ok(ClusterReport::of(surveyed, with_flows))
}

fn answer(_: &str, answers: Answers) -> Result<NodeAnswer, NoAnswer> {
    let mut answers = answers.split();
    let nothing = || NoAnswer::new(NoAnswer::FAILED, "the agent sent no answer");
    let counts = only(answers.next().ok_or_else(nothing)?)?;
    let refused = answers.next().ok_or_else(nothing).and_then(only);
    Ok(NodeAnswer { counts, refused: refused.map_err(|why| why.reason) })
}

fn with_flows(answered: Vec<(String, NodeAnswer)>) -> ClusterDrops {
    let (mut counts, mut noted) = (Vec::new(), Vec::new());
    let (mut not_noted, mut more_flows) = (Texts::default(), 0_u64);
    for (node, NodeAnswer { counts: of_node, refused }) in answered {
        counts.push((node.clone(), of_node));
        match refused {
            Ok(refused) => {
                refused.not_noted.iter().for_each(|text| not_noted.add(&node, text));
                more_flows = more_flows.saturating_add(refused.more_flows);
                noted.push((node, refused.flows));
            }
            Err(why) => not_noted.add(&node, &why),
        }
    }
    let flows = refused::joined(noted);
    ClusterDrops { flows, more_flows, not_noted: not_noted.sorted(), ..merged(counts) }
}

/// Two nodes' counts with the same key are added.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DropKey {
    reason: String,
    verdict: String,
    table: String,
}

pub fn merged(answered: Vec<(String, Counts)>) -> ClusterDrops {
    let mut by_reason: BTreeMap<DropKey, Vec<NodeDrops>> = BTreeMap::new();
    let mut not_counted = Texts::default();
    for (node, counts) in answered {
        counts.not_counted.iter().for_each(|text| not_counted.add(&node, text));
        for Count { table, verdict, reason, packets } in counts.drops {
            if packets > 0 {
                let key = DropKey { reason, verdict, table };
                let nodes = by_reason.entry(key).or_default();
                nodes.push(NodeDrops::new(node.clone(), packets));
            }
        }
    }
    let drop = |(DropKey { reason, verdict, table }, mut nodes): (_, Vec<NodeDrops>)| {
        let packets = sum(&mut nodes);
        Drop { reason, verdict, table, packets, nodes }
    };
    let mut drops: Vec<Drop> = by_reason.into_iter().map(drop).collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    ClusterDrops { drops, not_counted: not_counted.sorted(), ..ClusterDrops::default() }
}

impl Body for ClusterDrops {
    const NEEDS_ANSWERS: bool = true;

    /// Always good: policies are meant to drop packets.
    fn level(&self) -> Level {
        Level::Good
    }
}

impl fmt::Display for ClusterDrops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Drop { reason, verdict, table, packets, nodes } in &self.drops {
            let shown = nodes_text(nodes);
            let line = format!("{packets} {verdict}: {reason} ({table}): {shown}");
            writeln!(f, "{}", Printable(&line))?;
        }
        if self.drops.is_empty() {
            writeln!(f, "nothing was dropped or refused")?;
        }
        let mut missing = |what: &str, all: &[CommonText]| {
            all.iter().try_for_each(|shared| {
                let (nodes, text) = (node_names(shared.nodes.iter()), shared.shown());
                writeln!(f, "{what}: {} ({})", Printable(&text), Printable(&nodes))
            })
        };
        missing("not counted", &self.not_counted)?;
        missing("not noted", &self.not_noted)?;
        refused::write(f, &self.flows, self.more_flows)
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

    #[test]
    fn a_flow_on_several_nodes_is_one_and_who_does_not_know_is_named() {
        let flow = |packets: u64, source: &str, more: serde_json::Value| {
            let mut flow = json!({ "verdict": "dropped", "reason": "no policy", "protocol": "tcp",
                "table": "ip denizen-firewall", "packets": packets, "seconds": 61,
                "source": { "address": source },
                "destination": { "address": "10.0.2.7:22", "name": "this node" } });
            flow.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            flow
        };
        let of = |refused| NodeAnswer { counts: Counts::default(), refused };
        let refused = |flows: Vec<serde_json::Value>, more: u64| {
            let flows = json!({ "flows": flows, "moreFlows": more, "notNoted": [] });
            of(Ok(serde_json::from_value(flows).unwrap()))
        };
        let policy = json!({ "policy": "a/deny", "service": "a/web:ssh" });
        let other = json!({ "destination": { "address": "10.0.2.7:0" }, "protocol": "1" });
        let drops = with_flows(vec![
            ("a".to_owned(), refused(vec![flow(3, "10.0.1.5:0", json!({}))], 0)),
            (
                "b".to_owned(),
                refused(vec![flow(4, "10.0.1.5:0", policy), flow(9, "[fd00::1]:0", other)], 30),
            ),
            ("c".to_owned(), of(Err("it is older".to_owned()))),
        ]);
        assert_eq!(
            drops.to_string(),
            "nothing was dropped or refused\n\
             not noted: it is older (c)\n\
             flows of the last 15 minutes:\n\
             9 dropped: 1 fd00::1 to 10.0.2.7: no policy (ip denizen-firewall): 9 on b\n\
             7 dropped: tcp 10.0.1.5 to 10.0.2.7:22 (node a) (a/web:ssh): no policy: a/deny \
             (ip denizen-firewall): 4 on b, 3 on a\n\
             and 30 more flows\n"
        );
    }
}
