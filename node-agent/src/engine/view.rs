//! What the engine knows, for people to look at, in pieces that a person can read.

use std::net::IpAddr;

use super::Engine;
use crate::model::{Affinity, LocalPod, Service, TrafficPolicy};
use crate::plan::{Door, DoorAddress, DoorKind, Endpoints, Outcome};
use crate::status::view::{DoorRow, EndpointRow, Fate, Found, PodRow, ServiceRow, ViewQuery};

/// The most rows of one table.
pub const ROWS: usize = 50;
/// The most endpoints of one door.
const ENDPOINTS: usize = 12;

impl<B> Engine<B> {
    /// This node's name.
    pub fn node_name(&self) -> &str {
        &self.policy.settings.node_name
    }

    /// Local pods, as many as a person reads.
    pub fn view_pods(&self, query: &ViewQuery) -> Found<PodRow> {
        let all = self.model.pods().into_iter().flat_map(|pods| &pods.pods);
        let mut pods: Vec<&LocalPod> = all
            .filter(|pod| {
                let mut texts = pod.ips.iter().map(IpAddr::to_string);
                pod.to_string().contains(&query.search)
                    || texts.any(|ip| ip.contains(&query.search))
            })
            .collect();
        pods.sort_by_key(|pod| pod.to_string());
        let row = |pod: &&LocalPod| PodRow {
            name: pod.to_string(),
            ips: pod.ips.iter().map(IpAddr::to_string).collect(),
            interface: pod.interface.to_string(),
            port: pod.port.as_deref().map(str::to_owned),
        };
        Found { total: pods.len(), shown: pods.iter().take(2 * ROWS).map(row).collect() }
    }

    /// Services; none while not all of them are known.
    pub fn view_services(&self, query: &ViewQuery) -> Found<ServiceRow> {
        let known = self.model.snapshot();
        let all = known.iter().flat_map(|world| world.services());
        let mut services: Vec<&Service> =
            all.filter(|service| is_meant(service, &query.search)).collect();
        services.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let shown = services.iter().skip(query.skip).take(ROWS);
        Found {
            total: services.len(),
            shown: shown.map(|service| self.view_service(service)).collect(),
        }
    }

    fn view_service(&self, service: &Service) -> ServiceRow {
        ServiceRow {
            name: service.name.to_string(),
            policies: policies(service),
            doors: doors(service).filter_map(|door| self.view_door(service, door)).collect(),
        }
    }

    /// Nothing where the service has no such door, as for an address of a family that it does not
    /// exist in.
    fn view_door(&self, service: &Service, (kind, door): (DoorKind, Door)) -> Option<DoorRow> {
        let frontend = self.plan.frontend(&door)?;
        let owner = &frontend.service_port.service;
        Some(DoorRow {
            kind: kind.to_string(),
            at: match door.address {
                DoorAddress::Ip(_) => door.to_string(),
                DoorAddress::Node(family) => format!("{door} {family}"),
            },
            taken_by: (*owner != service.name).then(|| owner.to_string()),
            inside: fate(&frontend.inside),
            outside: frontend.outside.as_ref().map(fate),
        })
    }
}

fn is_meant(service: &Service, text: &str) -> bool {
    let ips = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
    text.is_empty()
        || service.name.to_string().contains(text)
        || ips.into_iter().flatten().any(|ip| ip.to_string().contains(text))
}

/// Every door that a service may have.
fn doors(service: &Service) -> impl Iterator<Item = (DoorKind, Door)> {
    let kinds = [
        (DoorKind::ClusterIp, &service.cluster_ips),
        (DoorKind::LoadBalancerIp, &service.load_balancer_ips),
        (DoorKind::ExternalIp, &service.external_ips),
    ];
    let at_ips = kinds
        .into_iter()
        .flat_map(|(kind, ips)| ips.iter().map(move |ip| (kind, DoorAddress::Ip(*ip))));
    let families = service.cluster_ips.iter().map(|ip| crate::model::family_of(*ip));
    let at_node = families.map(|family| (DoorKind::NodePort, DoorAddress::Node(family)));
    at_ips.chain(at_node).flat_map(|(kind, address)| {
        service.ports.iter().filter_map(move |port| {
            let number = match kind {
                DoorKind::NodePort => port.node_port?,
                DoorKind::ClusterIp | DoorKind::LoadBalancerIp | DoorKind::ExternalIp => port.port,
            };
            let door = Door { address, protocol: port.protocol, port: number };
            Some((kind, door))
        })
    })
}

fn fate(outcome: &Outcome) -> Fate {
    match outcome {
        Outcome::Forward(endpoints) => Fate::Forward(rows(endpoints)),
        Outcome::Reject => Fate::Reject,
        Outcome::Drop => Fate::Drop,
    }
}

fn rows(endpoints: &Endpoints) -> Found<EndpointRow> {
    let shown = endpoints
        .iter()
        .take(ENDPOINTS)
        .map(|endpoint| EndpointRow { at: endpoint.address.to_string(), local: endpoint.local });
    Found { total: endpoints.count(), shown: shown.collect() }
}

/// What is not as by default, in the API's words.
fn policies(service: &Service) -> Vec<String> {
    let local = |policy| policy == TrafficPolicy::Local;
    let affinity = match service.affinity {
        Affinity::ClientIp { seconds } => Some(format!("session affinity {seconds} s")),
        Affinity::None => None,
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
