//! The engine's part of `status`.

use std::fmt::Display;
use std::net::IpAddr;

use super::Engine;
use denizen_backend::{Backend, Figures};
use denizen_model::Listing;
use denizen_observe::status::{
    DrainingStatus, HostPortsStatus, IpvsStatus, NetworkPolicyStatus, Status,
};
use denizen_plan::{FirewallPlan, HostPortPlan, Plan, PodRules, Remark, ServicePlan};

/// The most remarks of one kind that are shown.
const MOST_REMARKS: usize = 32;

/// What the agent knows and has programmed. `problems` are the sources'. The caller adds what
/// the engine does not know, such as the backend's name.
pub fn status<B: Backend>(engine: &mut Engine<B>, problems: Vec<String>) -> Status {
    let mut errors = problems;
    errors.extend(engine.failures.iter().cloned());
    errors.extend(engine.report.contended.clone());
    errors.extend(engine.report.rejected.iter().cloned());
    errors.extend(lost_health_ports(engine.planner.plan()));
    let (wrong, surprising) = remarks(engine.planner.plan());
    errors.extend(wrong);
    engine.figures = engine.backend.figures();
    errors.append(&mut engine.figures.errors);
    let network_policy = network_policy(engine, &mut errors);
    let Figures { missed_lookups, affinity, .. } = &engine.figures;
    let (model, services) = (engine.planner.model(), engine.planner.plan().services());
    let pods = engine.planner.plan().recorded();
    Status {
        redirected_pods: pods.iter().filter(|pod| pod.redirect.is_some()).count(),
        warnings: affinity
            .warnings()
            .chain(surprising)
            .chain(host_port_warnings(engine.planner.plan()))
            .chain(policy_ties(engine.planner.plan()))
            .chain(excess_policies(engine.planner.plan()))
            .collect(),
        detect_local: engine.planner.plan().policy().detector.to_string(),
        synced: engine.synced,
        waiting_for: model.owed(Listing::SERVICES).map(|listing| listing.to_string()).collect(),
        pods: model.pods().map_or(0, |pods| pods.pods.len()),
        ipvs: ipvs(engine),
        host_ports: host_ports(engine.planner.plan()),
        services: model.service_count(),
        endpoints: services.map_or(0, ServicePlan::endpoint_count),
        generation: engine.programmed_pods.as_ref().map(|(_, generation)| generation.0),
        missed_lookups: *missed_lookups,
        network_policy,
        affinity: affinity.clone(),
        flushing: !engine.report.is_programmed,
        errors,
        ..Status::default()
    }
}

fn ipvs<B>(engine: &Engine<B>) -> Option<IpvsStatus> {
    let ipvs = engine.planner.plan().ipvs()?;
    let draining = engine.figures.draining.iter().filter_map(|(endpoint, left)| {
        let server = ipvs.servers().get(&endpoint.frontend)?;
        Some(DrainingStatus {
            service: server.service_port.to_string(),
            endpoint: endpoint.endpoint.to_string(),
            since: engine.draining.get(endpoint)?.clone(),
            active: left.active,
            inactive: left.inactive,
        })
    });
    Some(IpvsStatus {
        virtual_servers: ipvs.servers().len(),
        carried_by_nftables: ipvs.carried_by_nftables(),
        draining: draining.collect(),
        ended_connections: engine.figures.ended,
    })
}

fn network_policy<B>(
    engine: &mut Engine<B>,
    errors: &mut Vec<String>,
) -> Option<NetworkPolicyStatus> {
    let plan = engine.planner.plan();
    let decided = plan.firewall()?;
    let firewall = engine.firewall.as_mut()?;
    let report = firewall.report(plan);
    errors.extend(report.rejected.into_iter().chain(report.errors));
    let count = |is: fn(&PodRules) -> bool| {
        let has = |ip: &IpAddr| decided.pod_rules(*ip).is_some_and(is);
        plan.recorded().iter().filter(|pod| pod.ips.iter().any(has)).count()
    };
    let model = engine.planner.model();
    let refused = model.refused().filter(|_| decided.is_left_open());
    let cluster = model.cluster();
    let policies = cluster.into_iter().flat_map(|cluster| cluster.policies());
    let tiers = cluster.into_iter().flat_map(|cluster| cluster.tiers());
    Some(NetworkPolicyStatus {
        waiting_for: model.owed(Listing::FIREWALL).map(|listing| listing.to_string()).collect(),
        refused: refused.map(|listing| listing.to_string()).collect(),
        policies: decided.policies_in_force(),
        cluster_policies: decided.tiers_in_force(),
        not_understood: policies.filter(|policy| !policy.is_understood).count()
            + tiers.filter(|policy| !policy.is_understood).count(),
        isolated: count(PodRules::is_isolated),
        pending: count(PodRules::is_pending),
        identities: decided.identity_count(),
        elements: report.elements,
        waiting: report.waiting,
        dropped: report.dropped,
        unfiltered_bridges: firewall.unfiltered_bridges().map(str::to_owned).collect(),
        // The caller knows which pods are watched, and why, and fills this in.
        watched_pods: None,
    })
}

/// ClusterNetworkPolicies whose order the API leaves open.
fn policy_ties(plan: &Plan) -> Vec<String> {
    let ties = plan.firewall().map(FirewallPlan::ties).unwrap_or_default();
    shown(ties.iter())
}

/// NetworkPolicies whose rules are left out, since they would cost too much.
fn excess_policies(plan: &Plan) -> Vec<String> {
    let excess = plan.firewall().map(FirewallPlan::excess).unwrap_or_default();
    shown(excess.iter())
}

/// The plan's remarks: errors and warnings.
fn remarks(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let services = plan.services().into_iter();
    let (wrong, surprising): (Vec<&Remark>, Vec<&Remark>) =
        services.flat_map(ServicePlan::remarks).partition(|remark| remark.is_error());
    (shown(wrong.into_iter()), shown(surprising.into_iter()))
}

/// The first of these remarks, and how many more there are.
fn shown<'a, R: Display + 'a>(remarks: impl Iterator<Item = &'a R> + Clone) -> Vec<String> {
    let more = remarks.clone().count().saturating_sub(MOST_REMARKS);
    let lines = remarks.take(MOST_REMARKS).map(ToString::to_string);
    let more = (more > 0).then(|| format!("and {more} more like these"));
    lines.chain(more).collect()
}

fn host_ports(plan: &Plan) -> Option<HostPortsStatus> {
    let decided = plan.host_ports()?;
    Some(HostPortsStatus {
        served: decided.served().len(),
        asking_pods: asking_pods(plan),
        conflicts: shown(decided.remarks()),
    })
}

/// How many recorded pods ask for host ports.
fn asking_pods(plan: &Plan) -> usize {
    plan.recorded().iter().filter(|pod| !pod.host_ports.is_empty()).count()
}

/// Host ports that a pod asked for and does not get.
fn host_port_warnings(plan: &Plan) -> Vec<String> {
    let unserved = asking_pods(plan);
    let is_off = plan.policy().host_ports.is_none() && unserved > 0;
    let off = is_off.then(|| {
        format!("pods with recorded host ports, which are not served: {unserved}; see --host-ports")
    });
    let remarks = plan.host_ports().into_iter().flat_map(HostPortPlan::remarks);
    let lines = shown(remarks.filter(|remark| remark.is_warning()));
    lines.into_iter().chain(off).collect()
}

/// Health-check node ports that a service asks for and another service has.
fn lost_health_ports(plan: &Plan) -> impl Iterator<Item = String> {
    let services = plan.services();
    let lost = services.map(|services| services.health_checks().by_port().1);
    lost.into_iter().flatten().map(|(check, winner)| {
        let (port, service) = (check.port, check.service);
        format!(
            "health-check node port {port} of {service} is {winner}'s: it is not served for {service}"
        )
    })
}
