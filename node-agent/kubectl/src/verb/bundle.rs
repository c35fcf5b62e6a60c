//! `bundle`: collects, in a folder, what somebody needs who is to help. It has an allow-list:
//! nothing is read that could hold a secret, so nothing has to be taken out.

#![expect(clippy::disallowed_methods, reason = "a new folder: nobody reads it before it is whole")]

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::{Api, CONTAINER, NodeAgents};
use crate::objects::{self, percent};
use crate::output::{Body, ClusterReport, Level, described};
use crate::session::Answers;
use crate::session::request::{Request, ViewQuery};
use crate::survey::{Limits, survey};
use denizen_text::Printable;

/// More nodes are asked only with `--nodes` or `--all`.
const NODES: usize = 20;

/// Size limit of one log, in bytes.
const LONGEST_LOG: &str = "4194304";

#[derive(Debug, Clone, Args)]
pub struct BundleArgs {
    /// The folder, which must not exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Only these nodes
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<String>,
    /// All nodes, however many there are
    #[arg(long, conflicts_with = "nodes")]
    all: bool,
    /// No logs: they have the names of objects
    #[arg(long)]
    without_logs: bool,
}

#[derive(Debug, Serialize)]
pub struct Bundle {
    folder: PathBuf,
    /// Paths of the files, below the folder, and their sizes in bytes.
    files: BTreeMap<String, usize>,
    /// What could not be collected, and why.
    missing: BTreeMap<String, String>,
}

/// What agents are asked, and the name of the file for each answer.
fn questions() -> [(&'static str, Request); 4] {
    [
        ("status.json", Request::STATUS),
        ("check.json", Request::CHECK),
        ("drops.json", Request::DROPS),
        ("view.json", Request::View(ViewQuery::default())),
    ]
}

pub async fn bundle(
    api: &Api,
    limits: Limits,
    args: &BundleArgs,
) -> anyhow::Result<ClusterReport<Bundle>> {
    let NodeAgents { mut all, notes } = api.node_agents().await?;
    if !args.nodes.is_empty() {
        let is_there = |node: &&String| !all.iter().any(|node_agent| node_agent.node == **node);
        let unknown: Vec<&str> = args.nodes.iter().filter(is_there).map(String::as_str).collect();
        ensure!(unknown.is_empty(), "there is no node {}", unknown.join(", "));
        all.retain(|node_agent| args.nodes.contains(&node_agent.node));
    }
    let number = all.len();
    ensure!(
        args.all || !args.nodes.is_empty() || number <= NODES,
        "{number} nodes: say --nodes NODE,NODE, or --all"
    );
    fs::create_dir(&args.folder)
        .with_context(|| format!("cannot make {}", args.folder.display()))?;
    let mut bundle =
        Bundle { folder: args.folder.clone(), files: BTreeMap::new(), missing: BTreeMap::new() };
    let release = objects::get::<Value>(&api.client, "/version").await;
    bundle.add("version.json", release.map(|version| version.to_string()).map_err(Into::into))?;
    let nodes: Vec<Value> = all.iter().map(node_facts).collect();
    bundle.add("nodes.json", Ok(serde_json::to_string_pretty(&nodes)?))?;
    if !args.without_logs {
        for agent in all
            .iter()
            .filter_map(|node_agent| Some((&node_agent.node, node_agent.agent.as_ref().ok()?)))
        {
            let (node, agent) = agent;
            for (file, previous) in [("agent.log", false), ("agent.previous.log", true)] {
                let log = log_path(&agent.namespace, &agent.name, previous);
                let name = format!("{}/{file}", file_name(node));
                bundle.add(&name, objects::get_text(&api.client, &log).await)?;
            }
        }
    }
    let requests = questions().map(|(_, request)| request);
    let node_agents = NodeAgents { all, notes };
    let surveyed =
        survey(&api.client, node_agents, limits, &requests, |_, answers| Ok(answers)).await;
    for (node, Answers { answers, .. }) in &surveyed.answered {
        for ((file, _), answer) in questions().iter().zip(answers) {
            let text = answer.as_ref().map(|answer| answer.get().to_owned());
            let text = text.map_err(|why| anyhow::anyhow!(why.clone()));
            bundle.add(&format!("{}/{file}", file_name(node)), text)?;
        }
    }
    let unanswered = serde_json::to_string_pretty(&surveyed.unanswered)?;
    bundle.add("unanswered.json", Ok(unanswered))?;
    let manifest = serde_json::to_string_pretty(&bundle)?;
    bundle.add("manifest.json", Ok(manifest))?;
    Ok(ClusterReport::of(surveyed, |_| bundle))
}

/// Selected fields of a node. Labels and annotations are left out: anything may be in them.
fn node_facts(node_agent: &crate::cluster::NodeAgent) -> Value {
    let object = node_agent.object.as_ref();
    json!({
        "node": node_agent.node,
        "ready": object.and_then(|node| node.is_ready()),
        "podCIDRs": object.map(|node| &node.spec.pod_cidrs),
        "internalIPs": object.map(|node| node.internal_ips().collect::<Vec<_>>()),
        "agent": node_agent.agent.as_ref().map(|agent| &agent.name).ok(),
    })
}

fn log_path(namespace: &str, pod: &str, previous: bool) -> String {
    let (namespace, pod) = (percent(namespace), percent(pod));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log");
    format!("{path}?container={CONTAINER}&limitBytes={LONGEST_LOG}&previous={previous}")
}

/// The file name for a node. The API's names should be safe, but this writes on the operator's
/// machine: replace everything else.
fn file_name(node: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let name: String = node.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    format!("node-{name}")
}

impl Bundle {
    fn add(&mut self, name: &str, text: anyhow::Result<String>) -> anyhow::Result<()> {
        let text = match text {
            Ok(text) => text,
            Err(why) => {
                self.missing.insert(name.to_owned(), described(&why));
                return Ok(());
            }
        };
        let path = self.folder.join(name);
        let write = |path: &Path| -> std::io::Result<()> {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, &text)
        };
        write(&path).with_context(|| format!("cannot write {}", path.display()))?;
        self.files.insert(name.to_owned(), text.len());
        Ok(())
    }
}

impl Body for Bundle {
    fn level(&self) -> Level {
        Level::Good
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, files, missing } = self;
        let bytes: usize = files.values().sum();
        let folder = folder.display().to_string();
        writeln!(f, "{}: {} files, {bytes} bytes", Printable(&folder), files.len())?;
        missing.iter().try_for_each(|(name, why)| {
            writeln!(f, "without {}: {}", Printable(name), Printable(why))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_name_leads_to_no_other_folder() {
        for (node, expected) in
            [("n-1.example", "node-n-1.example"), ("../../x", "node-.._.._x"), ("", "node-")]
        {
            assert_eq!(file_name(node), expected);
        }
    }
}
