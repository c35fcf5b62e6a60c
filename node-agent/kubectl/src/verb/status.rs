//! `status`: one row a node, the worst first.

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::only;
use crate::cluster::Api;
use crate::finding::{Texts, node_names};
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level, table};
use crate::session::Answers;
use crate::session::request::Request;
use crate::survey::{Limits, Unanswered, survey};
use denizen_text::Printable;

/// The state of all agents.
#[derive(Debug, Serialize)]
pub struct ClusterStatus {
    #[serde(rename = "statuses")]
    rows: Vec<StatusRow>,
    /// The nodes that did not answer, for the table.
    #[serde(skip)]
    silent: Vec<Unanswered>,
}

/// The status of one node.
#[derive(Debug, Serialize)]
struct StatusRow {
    node: String,
    /// `None` if the agent's release is too old to tell.
    release: Option<String>,
    /// As the agent says it.
    status: Box<RawValue>,
    #[serde(skip)]
    known: StatusFields,
}

/// What the table shows. Fields that an agent does not have are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusFields {
    backend: String,
    synced: bool,
    pods: u64,
    services: u64,
    last_sync: Option<LastSync>,
    drift_repaired: u64,
    missed_lookups: u64,
    network_policy: Option<Policies>,
    network_policy_engine: Option<String>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LastSync {
    at: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policies {
    policies: u64,
    pending: u64,
}

const HEAD: [&str; 12] = [
    "NODE",
    "READY",
    "VERSION",
    "BACKEND",
    "PODS",
    "SERVICES",
    "POLICY",
    "LAST-SYNC",
    "DRIFT",
    "MISSED",
    "ERRORS",
    "WARNINGS",
];

pub async fn status(api: &Api, limits: Limits) -> anyhow::Result<ClusterReport<ClusterStatus>> {
    let node_agents = api.node_agents().await?;
    let surveyed = survey(&api.client, node_agents, limits, &[Request::STATUS], row).await;
    let silent = surveyed.unanswered.clone();
    Ok(ClusterReport::of(surveyed, |answered| {
        let mut rows: Vec<StatusRow> = answered.into_iter().map(|(_, row)| row).collect();
        rows.sort_by_key(|row| Reverse(row.badness()));
        ClusterStatus { rows, silent }
    }))
}

fn row(node: &str, answers: Answers) -> Result<StatusRow, NoAnswer> {
    let release = answers.release.clone();
    let status: Box<RawValue> = only(answers)?;
    let known = serde_json::from_str(status.get())
        .map_err(|error| NoAnswer::new(NoAnswer::FAILED, format!("unknown status: {error}")))?;
    Ok(StatusRow { node: node.to_owned(), release, status, known })
}

impl StatusRow {
    fn level(&self) -> Level {
        match (self.known.synced && self.known.errors.is_empty(), self.known.warnings.is_empty()) {
            (false, _) => Level::Failure,
            (true, false) => Level::Warning,
            (true, true) => Level::Good,
        }
    }

    fn badness(&self) -> (Level, usize, usize) {
        (self.level(), self.known.errors.len(), self.known.warnings.len())
    }

    fn cells(&self) -> Vec<String> {
        let known = &self.known;
        let ready = if known.synced && known.errors.is_empty() { "yes" } else { "no" };
        let policy = match (&known.network_policy, &known.network_policy_engine) {
            (Some(Policies { policies, pending: 0 }), _) => format!("{policies} in force"),
            (Some(Policies { policies, pending }), _) => format!("{policies}, {pending} pending"),
            (None, Some(engine)) => engine.clone(),
            (None, None) => "off".to_owned(),
        };
        let last = known.last_sync.as_ref().map_or("never", |last| &last.at);
        let release = self.release.as_deref().unwrap_or("older");
        let numbers = [known.drift_repaired, known.missed_lookups].map(|number| number.to_string());
        let [drift, missed] = numbers;
        let (errors, warnings) = (known.errors.len(), known.warnings.len());
        vec![
            self.node.clone(),
            ready.to_owned(),
            release.to_owned(),
            known.backend.clone(),
            known.pods.to_string(),
            known.services.to_string(),
            policy,
            last.to_owned(),
            drift,
            missed,
            errors.to_string(),
            warnings.to_string(),
        ]
    }
}

impl Body for ClusterStatus {
    fn level(&self) -> Level {
        self.rows.iter().map(StatusRow::level).max().unwrap_or_default()
    }
}

impl fmt::Display for ClusterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let silent = self.silent.iter().map(|of| vec![of.node.clone(), of.why.code.to_owned()]);
        let rows: Vec<_> = silent.chain(self.rows.iter().map(StatusRow::cells)).collect();
        table(f, &HEAD, &rows)?;
        let (mut errors, mut warnings) = (Texts::default(), Texts::default());
        for StatusRow { node, known, .. } in &self.rows {
            known.errors.iter().for_each(|text| errors.add(node, text));
            known.warnings.iter().for_each(|text| warnings.add(node, text));
        }
        for (kind, texts) in [("error", errors), ("warning", warnings)] {
            for shared in texts.sorted() {
                let (nodes, text) = (node_names(shared.nodes.iter()), shared.shown());
                writeln!(f, "{kind}: {} ({})", Printable(&text), Printable(&nodes))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(node: &str, status: Value) -> StatusRow {
        let status = RawValue::from_string(status.to_string()).unwrap();
        let answers = Answers { release: Some("0.1.0".to_owned()), answers: vec![Ok(status)] };
        row(node, answers).unwrap()
    }

    #[test]
    fn the_worst_come_first_and_an_equal_error_once() {
        let good = json!({ "synced": true, "backend": "nftables", "fromTheFuture": [1] });
        let bad =
            |pod: &str| json!({ "synced": true, "errors": [format!("pod {pod} is cut off")] });
        let mut rows = vec![
            of("a", good),
            of("b", json!({ "synced": false })),
            of("c", bad("x/1")),
            of("d", bad("x/2")),
            of("e", json!({ "synced": true, "warnings": ["the clock is late"] })),
        ];
        rows.sort_by_key(|row| Reverse(row.badness()));
        let why = NoAnswer::new(NoAnswer::NO_AGENT, "");
        let silent = vec![Unanswered { node: "z".to_owned(), why }];
        let status = ClusterStatus { rows, silent };
        assert_eq!(status.level(), Level::Failure);
        let text = status.to_string();
        let order: Vec<&str> = text.lines().map(|line| &line[..1]).collect();
        assert_eq!(order, ["N", "z", "c", "d", "b", "e", "a", "e", "w"], "{text}");
        let error = "error: pod x/1 is cut off | pod x/2 is cut off (2 nodes: c, d)";
        assert!(text.contains(error), "{text}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["statuses"][4]["status"]["fromTheFuture"], json!([1]));
    }

    #[test]
    fn an_error_in_place_of_a_status_is_no_row() {
        let answers = Answers { release: None, answers: vec![Err("it hangs".to_owned())] };
        assert_eq!(row("a", answers).unwrap_err().reason, "it hangs");
    }
}
