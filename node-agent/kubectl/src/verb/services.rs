//! `services`: what becomes of connections to a service on each node, equal answers once; or all
//! services, as one node knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::only;
use crate::cluster::{Api, NodeAgents};
use crate::finding::node_names;
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level};
use crate::session::request::{Request, ViewQuery};
use crate::survey::{Limits, Survey, Unanswered, ask, survey};
use denizen_text::Printable;

#[derive(Debug, Serialize)]
pub struct ClusterServices {
    /// One row for each way in which nodes serve a service; the way of most nodes first.
    services: Vec<ServiceVariant>,
}

/// A service, as these nodes serve it.
#[derive(Debug, Serialize)]
struct ServiceVariant {
    #[serde(flatten)]
    row: ServiceRow,
    nodes: BTreeSet<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeServices {
    services: ServicePage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServicePage {
    total: usize,
    shown: Vec<ServiceRow>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
struct ServiceRow {
    name: String,
    policies: Vec<String>,
    #[serde(rename(deserialize = "keys"))]
    frontends: Vec<ServiceFrontend>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
struct ServiceFrontend {
    kind: String,
    at: String,
    #[serde(rename(deserialize = "taken_by", serialize = "takenBy"))]
    taken_by: Option<String>,
    inside: FrontendFate,
    outside: Option<FrontendFate>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FrontendFate {
    Forward(Endpoints),
    Reject,
    Drop,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Whether an endpoint is on the node itself differs from node to node, and is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
struct Endpoints {
    total: usize,
    shown: Vec<ServiceEndpoint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
struct ServiceEndpoint {
    at: String,
}

/// The service `name` on all nodes; without a name all services, as one node knows them.
pub async fn services(
    api: &Api,
    limits: Limits,
    name: Option<&str>,
) -> anyhow::Result<ClusterReport<ClusterServices>> {
    let node_agents = api.node_agents().await?;
    let Some(name) = name.map(|name| api.qualified(name)) else {
        return Ok(ClusterReport::of(of_one_node(api, limits, node_agents).await, merged));
    };
    let request = Request::View(ViewQuery { search: name.clone(), skip: 0 });
    let read = |_: &str, answers| {
        let NodeServices { services } = only(answers)?;
        Ok(services.shown.into_iter().filter(|row| row.name == name).collect())
    };
    let surveyed = survey(&api.client, node_agents, limits, &[request], read).await;
    Ok(ClusterReport::of(surveyed, merged))
}

/// All services of the first node that answers. The others are not asked.
async fn of_one_node(
    api: &Api,
    limits: Limits,
    node_agents: NodeAgents,
) -> Survey<Vec<ServiceRow>> {
    let (mut unanswered, mut notes) = (Vec::new(), node_agents.notes);
    for node_agent in node_agents.all {
        match all_pages(api, limits, &node_agent).await {
            Ok(rows) => {
                notes.push(format!(
                    "as node {} knows them: the others were not asked",
                    node_agent.node
                ));
                return Survey { answered: vec![(node_agent.node, rows)], unanswered, notes };
            }
            Err(why) => unanswered.push(Unanswered { node: node_agent.node, why }),
        }
    }
    Survey { answered: Vec::new(), unanswered, notes }
}

async fn all_pages(
    api: &Api,
    limits: Limits,
    node_agent: &crate::cluster::NodeAgent,
) -> Result<Vec<ServiceRow>, NoAnswer> {
    let mut rows = Vec::new();
    loop {
        let request = Request::View(ViewQuery { search: String::new(), skip: rows.len() });
        let answers = ask(&api.client, node_agent, limits.deadline, &[request]).await?;
        let NodeServices { services: ServicePage { total, shown } } = only(answers)?;
        let is_last = shown.is_empty();
        rows.extend(shown);
        if is_last || rows.len() >= total {
            return Ok(rows);
        }
    }
}

/// Rows that are equal on several nodes, once.
fn merged(answered: Vec<(String, Vec<ServiceRow>)>) -> ClusterServices {
    let mut by_row: BTreeMap<ServiceRow, BTreeSet<String>> = BTreeMap::new();
    for (node, rows) in answered {
        for row in rows {
            by_row.entry(row).or_default().insert(node.clone());
        }
    }
    let mut services: Vec<ServiceVariant> =
        by_row.into_iter().map(|(row, nodes)| ServiceVariant { row, nodes }).collect();
    services.sort_by(|one, other| {
        let by_name = one.row.name.cmp(&other.row.name);
        by_name.then(other.nodes.len().cmp(&one.nodes.len()))
    });
    ClusterServices { services }
}

impl fmt::Display for FrontendFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => write!(f, "refused"),
            Self::Drop => write!(f, "dropped"),
            Self::Unknown => write!(f, "unknown to this kubectl-denizen"),
            Self::Forward(Endpoints { total, shown }) => {
                let shown: Vec<&str> = shown.iter().map(|endpoint| &*endpoint.at).collect();
                write!(f, "{}", shown.join(", "))?;
                match total.saturating_sub(shown.len()) {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more"),
                }
            }
        }
    }
}

impl Body for ClusterServices {
    const NEEDS_ANSWERS: bool = true;

    /// Always good: a service without endpoints may be intended.
    fn level(&self) -> Level {
        Level::Good
    }
}

impl fmt::Display for ClusterServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.services.is_empty() {
            return writeln!(f, "no such service is known");
        }
        for ServiceVariant { row: ServiceRow { name, policies, frontends }, nodes } in
            &self.services
        {
            let on = node_names(nodes.iter());
            writeln!(f, "{} ({})", Printable(name), Printable(&on))?;
            policies.iter().try_for_each(|policy| writeln!(f, "    {}", Printable(policy)))?;
            for ServiceFrontend { kind, at, taken_by, inside, outside } in frontends {
                let mut line = format!("{kind} {at} -> {inside}");
                if let Some(outside) = outside {
                    line.push_str(&format!("; from outside: {outside}"));
                }
                if let Some(other) = taken_by {
                    line.push_str(&format!("; served for {other}"));
                }
                writeln!(f, "    {}", Printable(&line))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn equal_services_are_one_whoevers_the_endpoints_are() {
        let row = |endpoints: Value| -> Vec<ServiceRow> {
            let key = json!({ "kind": "cluster IP", "at": "10.96.0.1:80/tcp", "taken_by": null,
                "inside": endpoints, "outside": null });
            serde_json::from_value(json!([{ "name": "a/web", "policies": [], "keys": [key] }]))
                .unwrap()
        };
        let one = |local| {
            row(
                json!({ "forward": { "total": 14, "shown": [{ "at": "10.0.0.1:8080", "local": local }] } }),
            )
        };
        let answered = [("n1", one(true)), ("n2", one(false)), ("n3", row(json!("reject")))];
        let answered = answered.map(|(node, rows)| (node.to_owned(), rows));
        let text = merged(answered.into()).to_string();
        let expected = "\
a/web (2 nodes: n1, n2)
    cluster IP 10.96.0.1:80/tcp -> 10.0.0.1:8080, and 13 more
a/web (n3)
    cluster IP 10.96.0.1:80/tcp -> refused
";
        assert_eq!(text, expected);
    }
}
