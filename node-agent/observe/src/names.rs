//! The names of addresses, for commands that show real traffic. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::status::DrainingSince;
use denizen_backend::Draining;
use denizen_model::{Family, Model, Protocol, family_of};
use denizen_plan::{FrontendAddress, Plan};

/// The names that the agent knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    /// `namespace/name` of each pod: this node's and, while NetworkPolicies are enforced, the
    /// cluster's.
    pods: BTreeMap<IpAddr, String>,
    /// The service port of each frontend, by protocol. Node ports are at the unspecified address of
    /// their family.
    services: BTreeMap<String, BTreeMap<SocketAddr, String>>,
    /// Where node ports are served.
    node_ports: BTreeSet<IpAddr>,
    /// The addresses of the node's links.
    node: BTreeSet<IpAddr>,
    /// Since when endpoints drain, by service port.
    #[serde(default)]
    draining: BTreeMap<String, BTreeMap<SocketAddr, DrainingSince>>,
}

impl Names {
    /// All names that are known now.
    pub fn of(plan: &Plan, model: &Model, draining: &BTreeMap<Draining, DrainingSince>) -> Self {
        let mut names = Self {
            node_ports: plan.node().node_ports.addresses.iter().copied().collect(),
            node: plan.node().addresses.clone(),
            ..Self::default()
        };
        let mut cluster: Vec<_> =
            model.cluster().iter().flat_map(|cluster| cluster.pods()).collect();
        // Of two pods that claim one address, the younger one has it.
        cluster.sort_by_key(|pod| pod.created);
        let of_cluster = cluster.iter().map(|pod| (&pod.ips[..], pod.name.to_string()));
        let recorded = plan.recorded().iter().map(|pod| (&pod.ips[..], pod.to_string()));
        for (ips, name) in of_cluster.chain(recorded) {
            names.pods.extend(ips.iter().map(|ip| (*ip, name.clone())));
        }
        for frontend in plan.services().into_iter().flat_map(|services| services.frontends()) {
            let key = frontend.key;
            let address = match key.address {
                FrontendAddress::Ip(ip) => ip,
                FrontendAddress::Node(family) => any(family),
            };
            let of_protocol = names.services.entry(key.protocol.to_string()).or_default();
            let at = SocketAddr::new(address, key.port.get());
            of_protocol.insert(at, frontend.service_port.to_string());
        }
        for (Draining { frontend, endpoint }, since) in draining {
            let server = plan.ipvs().and_then(|ipvs| ipvs.servers().get(frontend));
            let Some(service) = server.map(|server| server.service_port.to_string()) else {
                continue;
            };
            let of_service = names.draining.entry(service).or_default();
            of_service.insert(*endpoint, since.clone());
        }
        names
    }

    /// The name of an address: of a pod, or of this node.
    pub fn owner(&self, address: IpAddr) -> Option<&str> {
        let pod = self.pods.get(&address).map(String::as_str);
        pod.or_else(|| self.node.contains(&address).then_some("this node"))
    }

    /// The service port that packets to this destination are for.
    pub fn service(&self, protocol: Protocol, destination: SocketAddr) -> Option<&str> {
        let of_protocol = self.services.get(protocol.as_str())?;
        let at_node = || {
            let is_served = self.node_ports.contains(&destination.ip());
            let node = SocketAddr::new(any(family_of(destination.ip())), destination.port());
            is_served.then_some(node).and_then(|node| of_protocol.get(&node))
        };
        of_protocol.get(&destination).or_else(at_node).map(String::as_str)
    }

    /// Since when a service port's endpoint drains; `None` if it does not.
    pub fn draining(&self, service: &str, endpoint: SocketAddr) -> Option<&DrainingSince> {
        self.draining.get(service)?.get(&endpoint)
    }

    pub fn has_pod(&self, name: &str) -> bool {
        self.pods.values().any(|pod| pod == name)
    }

    /// The families and protocols of the frontends for whose service port `is_meant` is true.
    pub fn parts_of(&self, is_meant: impl Fn(&str) -> bool) -> BTreeSet<(Family, Protocol)> {
        let mut parts = BTreeSet::new();
        for protocol in Protocol::ALL {
            let of_protocol = self.services.get(protocol.as_str()).into_iter().flatten();
            let meant = of_protocol.filter(|(_, name)| is_meant(name));
            parts.extend(meant.map(|(at, _)| (family_of(at.ip()), protocol)));
        }
        parts
    }
}

fn any(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}
