//! `policies POD`: which NetworkPolicies restrict a pod, as its own node enforces them.

use std::fmt;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::only;
use crate::cluster::{Api, NodeAgents};
use crate::objects::{self, PodObject, percent};
use crate::output::{Body, ClusterReport, Level};
use crate::session::request::{Request, ViewQuery};
use crate::survey::{Limits, survey};
use denizen_text::Printable;

#[derive(Debug, Serialize)]
pub struct PodPolicies {
    pod: String,
    node: String,
    /// Empty if the agent does not enforce policies, or did not answer.
    sides: Vec<DirectionRow>,
    /// Whether the node's agent knows the pod.
    known: bool,
}

/// `ingress` or `egress`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DirectionRow {
    direction: String,
    /// `open`, `isolated` or `pending`.
    state: String,
    policies: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodePolicies {
    pods: Rows,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rows {
    shown: Vec<PodRow>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodRow {
    name: String,
    policy: Vec<DirectionRow>,
}

pub async fn policies(
    api: &Api,
    limits: Limits,
    name: &str,
) -> anyhow::Result<ClusterReport<PodPolicies>> {
    let pod = api.qualified(name);
    let object = pod_object(api, &pod).await?;
    let node = object.spec.node_name.clone();
    if node.is_empty() {
        bail!("pod {pod} is on no node yet");
    }
    if object.spec.host_network {
        bail!("pod {pod} is in its node's network: NetworkPolicies do not restrict it");
    }
    let NodeAgents { all, notes } = api.node_agents().await?;
    let all: Vec<_> = all.into_iter().filter(|node_agent| node_agent.node == node).collect();
    if all.is_empty() {
        bail!("node {node} of pod {pod} has no agent");
    }
    let search = pod.clone();
    let request = Request::View(ViewQuery { search, skip: 0 });
    let read = |_: &str, answers| {
        let NodePolicies { pods } = only(answers)?;
        Ok(pods.shown.into_iter().find(|row| row.name == pod))
    };
    let surveyed = survey(&api.client, NodeAgents { all, notes }, limits, &[request], read).await;
    Ok(ClusterReport::of(surveyed, |answered| {
        let row = answered.into_iter().find_map(|(_, row)| row);
        let known = row.is_some();
        let sides = row.map(|row| row.policy).unwrap_or_default();
        PodPolicies { pod: pod.clone(), node, sides, known }
    }))
}

/// The pod of this name, `NAMESPACE/NAME`.
pub async fn pod_object(api: &Api, pod: &str) -> anyhow::Result<PodObject> {
    let (namespace, name) = pod.split_once('/').context("a pod's name is NAMESPACE/NAME")?;
    let path = format!("/api/v1/namespaces/{}/pods/{}", percent(namespace), percent(name));
    match objects::get(&api.client, &path).await {
        Err(kube::Error::Api(status)) if status.code == 404 => bail!("there is no pod {pod}"),
        found => found.with_context(|| format!("cannot read pod {pod} (needs: get pods)")),
    }
}

impl Body for PodPolicies {
    const NEEDS_ANSWERS: bool = true;

    fn level(&self) -> Level {
        let is_pending = self.sides.iter().any(|side| side.state == "pending");
        if is_pending { Level::Warning } else { Level::Good }
    }
}

impl fmt::Display for PodPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, node, sides, known } = self;
        writeln!(f, "pod {} on node {}", Printable(pod), Printable(node))?;
        match (known, sides.is_empty()) {
            (false, _) => writeln!(f, "its node's agent does not know it"),
            (true, true) => writeln!(f, "its node's agent enforces no NetworkPolicies"),
            (true, false) => sides.iter().try_for_each(|side| {
                let policies = match side.policies.is_empty() {
                    true => String::new(),
                    false => format!(" by {}", side.policies.join(", ")),
                };
                let line = format!("{}: {}{policies}", side.direction, side.state);
                writeln!(f, "{}", Printable(&line))
            }),
        }
    }
}
