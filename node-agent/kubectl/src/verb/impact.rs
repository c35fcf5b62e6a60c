//! `impact -f POLICY`: who would lose or gain access if a policy were applied, or deleted.
//!
//! The agents' own plan decides, twice, and what differs is the answer. No agent is asked.

mod answer;
mod facts;
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
use crate::cluster::{Api, ClusterArgs};

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
}

pub async fn impact(cluster: &ClusterArgs, args: &ImpactArgs) -> anyhow::Result<PolicyImpact> {
    let change = manifest::policies(&args.filename, !args.delete)?;
    let (facts, namespace) = match &args.manifests {
        Some(folder) => {
            let namespace = cluster.namespace.clone().unwrap_or_else(|| "default".to_owned());
            (ImpactFacts::of_folder(folder)?, namespace)
        }
        None => {
            let api = Api::connect(cluster).await?;
            (ImpactFacts::of_cluster(&api).await?, api.namespace)
        }
    };
    let change: Vec<Event> =
        change.into_iter().map(|document| document.into_event(&namespace)).collect();
    let change = match args.delete {
        true => change.into_iter().map(|event| deleted(event, &facts)).collect::<Result<_, _>>()?,
        false => change,
    };
    Ok(decided(facts, change))
}

fn decided(facts: ImpactFacts, change: Vec<Event>) -> PolicyImpact {
    let ImpactFacts { events, workloads, notes } = facts;
    PolicyImpact::new(impact::impact(events, change), &workloads, notes)
}

/// The same policy's end.
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
        // It may be one that cannot be used.
        (Event::ClusterNetworkPolicy(known, _), Event::ClusterNetworkPolicy(name, _)) => {
            known == name
        }
        (_, _) => false,
    };
    let known = facts.events.iter().find(|known| is_it(known));
    known.with_context(|| format!("{what} is not there, so it cannot be deleted"))?;
    Ok(gone)
}
