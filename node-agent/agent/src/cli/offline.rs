//! `render` and `explain --manifests`: the agent's answers without an agent, a kernel or root.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use super::{Output, show};
use crate::config::PolicyArgs;
use denizen_backend::BackendName;
use denizen_backend::chosen::RenderedPlan;
use serde::Serialize;

use denizen_backend::firewall;
use denizen_model::{Event, Listing, Node, NodeAddress};
use denizen_plan::explain::{self, Explanation, FirstPacket};
use denizen_plan::{FirewallPlan, Planner};
use denizen_source::{egress, manifests, state_file};
use denizen_text::{Printable, eprint_line};

/// The inputs that replace the kernel and the API.
#[derive(Debug, Args)]
pub(super) struct Facts {
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    /// A folder of manifests (Services, EndpointSlices, Nodes, ServiceCIDRs, NetworkPolicies,
    /// Namespaces, Pods). The node's addresses come from its Node object
    #[arg(long, value_name = "DIR")]
    pub(super) manifests: PathBuf,
    /// The run directory with the state file of local pods. Without it there are no local pods
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RenderArgs {
    #[command(flatten)]
    facts: Facts,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// The backend for `--backend auto` without a kernel.
const AUTO: BackendName = BackendName::Nftables;

/// The rules of services and of NetworkPolicies.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rendered {
    #[serde(flatten)]
    services: RenderedPlan,
    /// `None` without policies: then the tables are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    network_policy: Option<denizen_nft::Rendering>,
}

impl std::fmt::Display for Rendered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.services.fmt(f)?;
        self.network_policy.iter().try_for_each(|tables| tables.fmt(f))
    }
}

/// Prints the rules that the agent would program.
pub(super) fn render(args: &RenderArgs) -> anyhow::Result<()> {
    let backend = args.facts.policy.backend(AUTO).name;
    let planner = planner(&args.facts)?;
    let plan = planner.plan();
    let is_enforced = plan.firewall().is_some_and(FirewallPlan::is_enforced);
    let rendered = Rendered {
        services: RenderedPlan::of(backend, plan),
        network_policy: is_enforced.then(|| firewall::render(plan)),
    };
    show(&rendered, args.output)
}

/// Explains what would happen to a packet.
pub(super) fn explain(facts: &Facts, from: &str, to: &str) -> anyhow::Result<Explanation> {
    let planner = planner(facts)?;
    let packet = FirstPacket::resolve(planner.plan(), from, to)?;
    Ok(explain::explain(&planner, &packet, |_| Vec::new(), &|_| None)?)
}

/// A planner that has planned the facts.
fn planner(facts: &Facts) -> anyhow::Result<Planner> {
    let policy = facts.policy.check(AUTO)?;
    let (mut events, problems) = manifests::read(&manifests::ManifestsConfig {
        folder: facts.manifests.clone(),
        node_name: policy.settings.node_name.to_string(),
        features: facts.policy.features(),
    })?;
    for problem in problems {
        eprint_line(format_args!("denizen-agent: ignored: {}", Printable(&problem)));
    }
    events.push(addresses(&events));
    events.push(Event::Listed(Listing::Addresses));
    if let Some(file) = &facts.policy.node_side.egress_masquerade_config {
        events.push(Event::Egress(egress::read(file)?.egress));
    }
    if let Some(run_dir) = &facts.run_dir {
        let run_dir = run_dir.clone();
        let pods = state_file::read(&state_file::StateFileConfig { run_dir })
            .context("cannot use the state file")?;
        events.extend(pods.map(Event::Pods));
    }
    let capabilities = facts.policy.backend(AUTO).name.capabilities();
    let mut planner = Planner::new(policy, capabilities);
    planner.apply(events);
    planner.update();
    Ok(planner)
}

/// The node's addresses from its Node object, on an interface that is not known here.
fn addresses(events: &[Event]) -> Event {
    let node = events
        .iter()
        .rev()
        .find_map(|event| if let Event::Node(node) = event { node.as_ref() } else { None });
    let interface: Arc<str> = "unknown".into();
    let of = |node: &Node| -> Vec<NodeAddress> {
        let on = |address: &_| NodeAddress {
            address: *address,
            interface: interface.clone(),
            dummy: false,
        };
        node.addresses.iter().map(on).collect()
    };
    let mut addresses = node.map(of).unwrap_or_default();
    addresses.sort_unstable();
    Event::Addresses(addresses)
}
