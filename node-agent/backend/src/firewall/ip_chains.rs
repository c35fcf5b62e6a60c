//! All chains of a table of IP packets: which of them the settings require, and in which order.

use super::forwarded_by_ipvs;
use super::program::{POLICY_PRIORITY, Program};
use super::rule::base;
use super::schema::FirewallScope;
use denizen_model::Family;
use denizen_nft::{Chain, Hook, Rule};
use denizen_plan::{Direction, FirewallSettings, ToNode};

/// The chains, each before those that refer to it.
pub fn ip_chains(version: Family, settings: FirewallSettings, scope: FirewallScope) -> Vec<Chain> {
    let program = Program { version, scope, pods: settings.pods };
    let tiers = Direction::BOTH.into_iter().filter(|_| scope.is_tiered());
    let tiers = tiers.map(|direction| program.tiers(direction));
    let refused = Direction::BOTH.map(|direction| program.refused(direction));
    let port_ranges = Direction::BOTH.map(|direction| program.port_ranges(direction));
    let policies = Direction::BOTH.map(|direction| program.policies(direction));
    let mut to_node = Vec::from(program.translated_to_tunnel());
    match settings.to_node {
        ToNode::Enforce => to_node.extend(program.to_node()),
        ToNode::Allow => {}
    }
    let here = match settings.by_ipvs {
        true => forwarded_by_ipvs::chains(&program, to_node).into(),
        false => vec![input(to_node)],
    };
    [program.permitted(), program.forbidden(), program.tunnels()]
        .into_iter()
        .chain(refused)
        .chain(tiers)
        .chain(port_ranges)
        .chain(policies)
        .chain([program.sources(), program.forward()])
        .chain(here)
        .collect()
}

fn input(rules: Vec<Rule>) -> Chain {
    base("input", Hook::Input, POLICY_PRIORITY, "what pods send to their own node", rules)
}
