//! Decides the frontends of one service.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::external_addresses::ExternalAddresses;
use super::frontend::{Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade};
use super::outcome::{Endpoints, Outcome};
use super::permitted::PermittedRanges;
use super::ranges::joined;
use super::selection::{EndpointSelection, NodeLocation, select};
use denizen_model::{
    Family, Node, Service, ServicePort, ServicePortName, Slice, TrafficPolicy, family_of,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub node_name: Arc<str>,
    /// Whether `hints.forNodes` count (kube-proxy's gate PreferSameTrafficDistribution).
    pub node_hints: bool,
    /// Masquerade all connections to cluster IPs, those of local pods too.
    pub masquerade_all: bool,
    /// Which external IPs and load balancer IPs are served.
    pub permitted: PermittedRanges,
}

/// This node's place, by which endpoints are selected.
pub(crate) fn location<'a>(settings: &'a Settings, node: Option<&'a Node>) -> NodeLocation<'a> {
    NodeLocation {
        node: &settings.node_name,
        zone: node.and_then(|node| node.zone.as_deref()),
        node_hints: settings.node_hints,
    }
}

/// Every frontend of `service`, whose slices are `slices`, on this node.
pub fn frontends(
    settings: &Settings,
    node: Option<&Node>,
    service: &Service,
    slices: &[&Slice],
) -> Vec<Frontend> {
    let here = location(settings, node);
    let external = ExternalAddresses::of(service, &settings.permitted).served;
    let mut found = Vec::new();
    for family in Family::BOTH {
        // A service that has no cluster IP of a family does not exist in it.
        if !service.cluster_ips.iter().any(|ip| family_of(*ip) == family) {
            continue;
        }
        for port in &service.ports {
            let selection = select(port, family, slices.iter().copied(), here);
            let decided = SelectedPort { settings, node, service, port, family, selection };
            found.extend(decided.frontends(&external));
        }
    }
    // An external address may be the cluster IP too: it is one frontend.
    found.sort_by(|a, b| (a.key, a.rank()).cmp(&(b.key, b.rank())));
    found.dedup_by_key(|frontend| frontend.key);
    found
}

/// The decisions about connections to a frontend: see the fields of [`Frontend`].
struct FrontendDecision {
    policy: TrafficPolicy,
    inside: Outcome,
    masquerade: Masquerade,
    outside: Option<Outcome>,
}

/// One service port in one family, its endpoints selected.
struct SelectedPort<'a> {
    settings: &'a Settings,
    node: Option<&'a Node>,
    service: &'a Service,
    port: &'a ServicePort,
    family: Family,
    selection: EndpointSelection,
}

impl SelectedPort<'_> {
    fn frontends(&self, external: &[(FrontendKind, IpAddr)]) -> impl Iterator<Item = Frontend> {
        let cluster_ips = self.service.cluster_ips.iter().map(|ip| (FrontendKind::ClusterIp, *ip));
        let ours = cluster_ips
            .chain(external.iter().copied())
            .filter(|(_, ip)| family_of(*ip) == self.family)
            .map(|(kind, ip)| self.frontend(kind, FrontendAddress::Ip(ip), self.port.port));
        let node_port = self.port.node_port.map(|port| {
            let address = FrontendAddress::Node(self.family);
            self.frontend(FrontendKind::NodePort, address, port)
        });
        ours.chain(node_port)
    }

    fn frontend(&self, kind: FrontendKind, address: FrontendAddress, port: NonZeroU16) -> Frontend {
        let service = self.service;
        let FrontendDecision { policy, inside, masquerade, outside } = match kind {
            FrontendKind::ClusterIp => self.internal(),
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                self.external()
            }
        };
        Frontend {
            key: FrontendKey { address, protocol: self.port.protocol, port },
            kind,
            service_port: ServicePortName {
                service: service.name.clone(),
                port: self.port.name.clone(),
                protocol: self.port.protocol,
            },
            policy,
            sources: match (kind, address) {
                (FrontendKind::LoadBalancerIp, FrontendAddress::Ip(ip)) => self.sources(ip),
                _ => None,
            },
            inside,
            masquerade,
            outside,
            affinity: service.affinity,
            created: service.created.clone(),
        }
    }

    /// Decides about a cluster IP.
    fn internal(&self) -> FrontendDecision {
        let policy = self.service.internal_policy;
        let masquerade = match self.settings.masquerade_all {
            true => Masquerade::Always,
            false => Masquerade::UnlessLocalPod,
        };
        let inside = self.by_policy(policy);
        FrontendDecision { policy, inside, masquerade, outside: None }
    }

    /// Decides about an external frontend. Under policy Local, traffic from this node and its pods
    /// is not external: it may use every endpoint, as at the cluster IP (kubernetes #77523,
    /// #78662).
    fn external(&self) -> FrontendDecision {
        let policy = self.service.external_policy;
        let inside = self.by_policy(TrafficPolicy::Cluster);
        let (masquerade, outside) = match policy {
            TrafficPolicy::Cluster => (Masquerade::Always, None),
            TrafficPolicy::Local => {
                (Masquerade::UnlessLocalPod, Some(self.by_policy(TrafficPolicy::Local)))
            }
        };
        FrontendDecision { policy, inside, masquerade, outside }
    }

    fn by_policy(&self, policy: TrafficPolicy) -> Outcome {
        let forward = |endpoints: &Option<Endpoints>| endpoints.clone().map(Outcome::Forward);
        match policy {
            TrafficPolicy::Cluster => forward(&self.selection.cluster).unwrap_or(Outcome::Reject),
            TrafficPolicy::Local => forward(&self.selection.local).unwrap_or_else(|| {
                let elsewhere = self.selection.cluster.is_some();
                if elsewhere { Outcome::Drop } else { Outcome::Reject }
            }),
        }
    }

    /// The sources that may use this load balancer IP; `None` if all may.
    ///
    /// If a range contains this node, the load balancer IP itself is added: a node that has the
    /// address on an interface uses it as the source when it connects to it.
    fn sources(&self, own: IpAddr) -> Option<Arc<[IpNetwork]>> {
        let mut allowed = self.service.source_ranges.of(self.family)?;
        let nodes = self.node.into_iter().flat_map(|node| &node.addresses);
        if nodes.into_iter().any(|node| allowed.iter().any(|range| range.contains(*node))) {
            allowed.push(IpNetwork::from(own));
        }
        // The kernel's sets allow no overlaps, and fewer ranges cost less.
        Some(joined(allowed).into())
    }
}
