//! The tables of the status page, limited to what a person can read.

use std::net::IpAddr;

use super::view::{
    ConnectionFate, EndpointRow, FrontendRow, PodRow, ResultPart, ServiceRow, SideRow, SideState,
    ViewQuery,
};
use denizen_model::{LocalPod, Service, SessionAffinity, TrafficPolicy};
use denizen_plan::{
    Direction, Endpoints, FirewallPlan, FrontendAddress, FrontendKey, FrontendKind, Isolation,
    Outcome, Planner,
};

/// The most rows of one table.
pub const ROWS: usize = 50;
/// The most endpoints of one frontend.
const ENDPOINTS: usize = 12;

/// Local pods, up to a limit.
pub fn pod_rows(planner: &Planner, query: &ViewQuery) -> ResultPart<PodRow> {
    let all = planner.model().pods().into_iter().flat_map(|pods| &pods.pods);
    let mut pods: Vec<&LocalPod> = all
        .filter(|pod| {
            let mut texts = pod.ips.iter().map(IpAddr::to_string);
            pod.to_string().contains(&query.search) || texts.any(|ip| ip.contains(&query.search))
        })
        .collect();
    pods.sort_by_key(|pod| pod.to_string());
    let firewall = planner.plan().firewall();
    let row = |pod: &&LocalPod| PodRow {
        name: pod.to_string(),
        ips: pod.ips.iter().map(IpAddr::to_string).collect(),
        interface: pod.interface.to_string(),
        port: pod.port.as_deref().map(str::to_owned),
        redirect: pod.redirect.as_deref().map(|redirect| redirect.profile.clone()),
        policy: firewall.map(|firewall| sides(firewall, pod)).unwrap_or_default(),
    };
    ResultPart { total: pods.len(), shown: pods.iter().take(2 * ROWS).map(row).collect() }
}

/// Services; none before all of them are known.
pub fn service_rows(planner: &Planner, query: &ViewQuery) -> ResultPart<ServiceRow> {
    let known = planner.model().snapshot();
    let all = known.iter().flat_map(|world| world.services());
    let mut services: Vec<&Service> =
        all.filter(|service| is_meant(service, &query.search)).collect();
    services.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let shown = services.iter().skip(query.skip).take(ROWS);
    ResultPart {
        total: services.len(),
        shown: shown.map(|service| service_row(planner, service)).collect(),
    }
}

fn service_row(planner: &Planner, service: &Service) -> ServiceRow {
    ServiceRow {
        name: service.name.to_string(),
        policies: policies(service),
        keys: keys(service).filter_map(|key| frontend_row(planner, service, key)).collect(),
    }
}

/// `None` if the service has no such frontend, for example an address of a family that it does
/// not have.
fn frontend_row(
    planner: &Planner,
    service: &Service,
    (kind, key): (FrontendKind, FrontendKey),
) -> Option<FrontendRow> {
    let frontend = planner.plan().services()?.frontend(&key)?;
    let owner = &frontend.service_port.service;
    Some(FrontendRow {
        kind: kind.to_string(),
        at: match key.address {
            FrontendAddress::Ip(_) => key.to_string(),
            FrontendAddress::Node(family) => format!("{key} {family}"),
        },
        taken_by: (*owner != service.name).then(|| owner.to_string()),
        inside: fate(&frontend.inside),
        outside: frontend.outside.as_ref().map(fate),
    })
}

/// The isolation of a pod, by direction.
fn sides(firewall: &FirewallPlan, pod: &LocalPod) -> Vec<SideRow> {
    let side = |direction: Direction| {
        let (isolation, policies) = firewall.isolation(pod, direction);
        SideRow {
            direction: direction.to_string(),
            state: match isolation {
                Isolation::Open => SideState::Open,
                Isolation::Isolated => SideState::Isolated,
                Isolation::Pending => SideState::Pending,
            },
            policies: policies.iter().map(ToString::to_string).collect(),
        }
    };
    Direction::BOTH.map(side).into()
}

fn is_meant(service: &Service, text: &str) -> bool {
    let ips = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
    text.is_empty()
        || service.name.to_string().contains(text)
        || ips.into_iter().flatten().any(|ip| ip.to_string().contains(text))
}

/// Every frontend that a service may have.
fn keys(service: &Service) -> impl Iterator<Item = (FrontendKind, FrontendKey)> {
    let kinds = [
        (FrontendKind::ClusterIp, &service.cluster_ips),
        (FrontendKind::LoadBalancerIp, &service.load_balancer_ips),
        (FrontendKind::ExternalIp, &service.external_ips),
    ];
    let at_ips = kinds
        .into_iter()
        .flat_map(|(kind, ips)| ips.iter().map(move |ip| (kind, FrontendAddress::Ip(*ip))));
    let families = service.cluster_ips.iter().map(|ip| denizen_model::family_of(*ip));
    let at_node = families.map(|family| (FrontendKind::NodePort, FrontendAddress::Node(family)));
    at_ips.chain(at_node).flat_map(|(kind, address)| {
        service.ports.iter().filter_map(move |port| {
            let number = match kind {
                FrontendKind::NodePort => port.node_port?,
                FrontendKind::ClusterIp
                | FrontendKind::LoadBalancerIp
                | FrontendKind::ExternalIp => port.port,
            };
            let key = FrontendKey { address, protocol: port.protocol, port: number };
            Some((kind, key))
        })
    })
}

fn fate(outcome: &Outcome) -> ConnectionFate {
    match outcome {
        Outcome::Forward(endpoints) => ConnectionFate::Forward(rows(endpoints)),
        Outcome::Reject => ConnectionFate::Reject,
        Outcome::Drop => ConnectionFate::Drop,
    }
}

fn rows(endpoints: &Endpoints) -> ResultPart<EndpointRow> {
    let shown = endpoints
        .iter()
        .take(ENDPOINTS)
        .map(|endpoint| EndpointRow { at: endpoint.address.to_string(), local: endpoint.local });
    ResultPart { total: endpoints.count(), shown: shown.collect() }
}

/// Fields that differ from their defaults, in the API's words.
fn policies(service: &Service) -> Vec<String> {
    let local = |policy| policy == TrafficPolicy::Local;
    let affinity = match service.affinity {
        SessionAffinity::ClientIp { seconds } => Some(format!("session affinity {seconds} s")),
        SessionAffinity::None => None,
    };
    let ranges: Vec<String> =
        service.source_ranges.ranges.iter().map(ToString::to_string).collect();
    [
        local(service.internal_policy).then(|| "internal traffic: Local".to_owned()),
        local(service.external_policy).then(|| "external traffic: Local".to_owned()),
        affinity,
        (!ranges.is_empty()).then(|| format!("load balancer sources: {}", ranges.join(", "))),
        service.health_check_node_port.map(|port| format!("health-check node port {port}")),
    ]
    .into_iter()
    .flatten()
    .collect()
}
