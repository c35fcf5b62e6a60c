//! `impact -f POLICY`: who would lose or gain access if a policy were applied, or deleted.
//!
//! The agents' own planner decides twice, before and after the change, and the difference is the
//! answer. Agents are asked only with `--live`, for connections.

mod answer;
mod facts;
mod live;
mod manifest;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use denizen_model::Event;
use denizen_plan::impact;

use self::answer::PolicyImpact;
use self::facts::ImpactFacts;
use super::connections::ClusterConnection;
use crate::cluster::{Api, ClusterArgs};
use crate::output::{self, ClusterReport, Format, Level, PrintedAnswer};
use crate::survey::Limits;

#[derive(Debug, Args)]
pub struct ImpactArgs {
    /// NetworkPolicies and ClusterNetworkPolicies to apply, as YAML or JSON; `-`: standard input
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
    /// Delete these policies instead of applying them; their names are enough
    #[arg(long)]
    delete: bool,
    /// Take Pods, Namespaces, policies and Nodes from the manifests of a folder instead of the
    /// cluster
    #[arg(long, value_name = "FOLDER")]
    manifests: Option<PathBuf>,
    /// Ask all agents who is connected now: losses that connections would feel come first
    #[arg(long, conflicts_with = "manifests")]
    live: bool,
}

/// The answer; with `--live` also who did not answer.
#[derive(Debug)]
pub enum ImpactReport {
    Planned(PolicyImpact),
    Live(ClusterReport<PolicyImpact>),
}

impl ImpactReport {
    /// As it is printed, with the exit code.
    pub fn printed(&self, format: Format, fail_on: Level) -> anyhow::Result<PrintedAnswer> {
        match self {
            Self::Planned(answer) => output::printed(answer, format, fail_on),
            Self::Live(report) => report.printed(format, fail_on),
        }
    }
}

pub async fn impact(
    cluster: &ClusterArgs,
    limits: Limits,
    args: &ImpactArgs,
) -> anyhow::Result<ImpactReport> {
    let change = manifest::policies(&args.filename, !args.delete)?;
    let mut tracked = None;
    let (facts, namespace) = match &args.manifests {
        Some(folder) => {
            let namespace = cluster.namespace.clone().unwrap_or_else(|| "default".to_owned());
            (ImpactFacts::of_folder(folder)?, namespace)
        }
        None => {
            let api = Api::connect(cluster).await?;
            if args.live {
                tracked = Some(live::tracked(&api, limits).await?);
            }
            (ImpactFacts::of_cluster(&api).await?, api.namespace)
        }
    };
    let change: Vec<Event> =
        change.into_iter().map(|document| document.into_event(&namespace)).collect();
    let change = match args.delete {
        true => change.into_iter().map(|event| deleted(event, &facts)).collect::<Result<_, _>>()?,
        false => change,
    };
    let Some(tracked) = tracked else {
        return Ok(ImpactReport::Planned(decided(facts, change, None)));
    };
    let ClusterReport { body: tracked, nodes, unanswered, mut notes } = tracked;
    let mut body = decided(facts, change, Some(&tracked));
    notes.extend(body.take_notes());
    Ok(ImpactReport::Live(ClusterReport { body, nodes, unanswered, notes }))
}

/// `tracked`: the connections of now, if they were asked for.
fn decided(
    facts: ImpactFacts,
    change: Vec<Event>,
    tracked: Option<&[ClusterConnection]>,
) -> PolicyImpact {
    let ImpactFacts { events, workloads, nodes, notes } = facts;
    let impact = impact::impact(events, change);
    let live = tracked.map(|tracked| live::lost(&impact, &nodes, tracked));
    PolicyImpact::new(impact, live, &workloads, notes)
}

/// The deletion of the policy in `event`.
fn deleted(event: Event, facts: &ImpactFacts) -> anyhow::Result<Event> {
    let (gone, what) = if let Event::NetworkPolicy(name, _) = &event {
        (Event::NetworkPolicy(name.clone(), None), format!("NetworkPolicy {name}"))
    } else if let Event::ClusterNetworkPolicy(name, _) = &event {
        let what = format!("ClusterNetworkPolicy {name}");
        (Event::ClusterNetworkPolicy(name.clone(), None), what)
    } else {
        bail!("only policies can be deleted");
    };
    let is_it = |known: &Event| match (known, &event) {
        (Event::NetworkPolicy(known, _), Event::NetworkPolicy(name, _)) => known == name,
        // The known policy may be one that cannot be used.
        (Event::ClusterNetworkPolicy(known, _), Event::ClusterNetworkPolicy(name, _)) => {
            known == name
        }
        (_, _) => false,
    };
    let known = facts.events.iter().find(|known| is_it(known));
    known.with_context(|| format!("{what} is not there, so it cannot be deleted"))?;
    Ok(gone)
}
