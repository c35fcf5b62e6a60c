//! The planned routes, and the commands that lead to them. Pure.

use std::collections::BTreeMap;

use denizen_route::{MAIN, ObservedRoute, Route, RouteCommand, RouteKey, RouteTarget};

use super::METRIC;
use denizen_plan::{DirectRoutes, NextHop};

pub(super) fn wanted(plan: &DirectRoutes) -> BTreeMap<RouteKey, Route> {
    let route = |(range, next_hop): (&_, &NextHop)| {
        let key = RouteKey { table: MAIN, destination: *range, metric: METRIC };
        let gateway = Some(next_hop.address);
        let target = RouteTarget::Unicast { gateway, link: next_hop.link };
        (key, Route { key, target, source: None, window: None })
    };
    plan.routes.iter().map(route).collect()
}

/// The commands from our routes in the kernel to the planned ones. Nothing is removed before
/// everything else is there.
pub(super) fn commands(
    wanted: &BTreeMap<RouteKey, Route>,
    own: &[ObservedRoute],
) -> Vec<RouteCommand> {
    let own: BTreeMap<RouteKey, &ObservedRoute> =
        own.iter().map(|route| (route.key, route)).collect();
    let written = wanted.values().filter_map(|route| match own.get(&route.key) {
        None => Some(RouteCommand::Add(*route)),
        Some(observed) if observed.is(route) => None,
        Some(_other) => Some(RouteCommand::Replace(*route)),
    });
    let removed =
        own.keys().filter(|key| !wanted.contains_key(key)).copied().map(RouteCommand::Remove);
    written.chain(removed).collect()
}
