//! Where packets go to, and what becomes of packets whose sender is taken for local, and of others.

use std::net::{IpAddr, SocketAddr};

use crate::node::cluster::OTHER_NODE;
use crate::node::fixture::{Fixture, Host, service_ips};
use crate::node::manifest::{self, Port};
use crate::node::world::ip;
use crate::packets::probe::Protocol;
use anyhow::Result;
use serde_json::{Value, json};

use super::table::DetectedSender;

/// Where the host behind this node listens.
pub(super) const TARGET: u16 = 5300;

/// The ports at which another node's pod, the only endpoint, listens for each service. (If services
/// share an endpoint, IPVS carries only one of them.)
pub(super) const TARGETS: [u16; 2] = [5301, 5302];

/// Where packets go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frontend {
    /// A service's cluster IP.
    ClusterIp,
    /// Its load balancer's address.
    LoadBalancer,
    /// Its node port.
    NodePort,
    /// [`Self::LoadBalancer`] under `externalTrafficPolicy: Local`, with an endpoint on another
    /// node alone.
    LocalLoadBalancer,
    /// Its node port.
    LocalNodePort,
    /// No service's: a host behind this node, outside the ranges where pods keep their address.
    ExternalHost,
}

/// The frontends of services.
pub const FRONTENDS: [Frontend; 5] = [
    Frontend::ClusterIp,
    Frontend::LoadBalancer,
    Frontend::NodePort,
    Frontend::LocalLoadBalancer,
    Frontend::LocalNodePort,
];

/// The destinations that are tested with egress masquerade: the one that it concerns, and two
/// others.
pub const WITH_EGRESS: [Frontend; 3] =
    [Frontend::ExternalHost, Frontend::ClusterIp, Frontend::LocalLoadBalancer];

/// Where pods keep their address then: the ranges of all other hosts.
pub const KEPT: &str = "nonMasqueradeCIDRs: [10.10.0.0/16, 172.20.0.0/16, 192.168.0.0/16, 203.0.113.0/24, 'fd00::/8', '2600::/12']";

/// With which source a packet arrives at the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// With the source that it was sent with.
    Kept,
    /// With an address of the node.
    Nodes,
    /// Not at all.
    Nothing,
}

impl Frontend {
    /// What becomes of a packet whose sender is taken for local, or not.
    pub fn expected(self, sender: DetectedSender, local: bool) -> Seen {
        match self {
            // kube-proxy: off-cluster traffic to a cluster IP is masqueraded, and so is everything
            // that is not taken for local.
            Self::ClusterIp if local => Seen::Kept,
            Self::ClusterIp => Seen::Nodes,
            // The endpoint may be on another node, so everybody is masqueraded.
            Self::LoadBalancer | Self::NodePort => Seen::Nodes,
            // Policy Local applies to traffic from elsewhere: without an endpoint on this node, it
            // is dropped.
            Self::LocalLoadBalancer | Self::LocalNodePort => match (local, sender) {
                (true, _) => Seen::Kept,
                (false, DetectedSender::Node) => Seen::Nodes,
                (false, _) => Seen::Nothing,
            },
            // What ip-masq-agent does, for pods of this node only.
            Self::ExternalHost if local => Seen::Nodes,
            Self::ExternalHost => Seen::Kept,
        }
    }

    /// The address, of the same family as `like`, and the port.
    pub(super) fn at(self, like: IpAddr) -> SocketAddr {
        let v4 = like.is_ipv4();
        let of = |pair: [IpAddr; 2]| pair[usize::from(!v4)];
        let node = [ip("192.168.0.2"), ip("2001:db8::1")];
        match self {
            Self::ClusterIp => SocketAddr::new(of(service_ips(10)), 80),
            Self::LoadBalancer => SocketAddr::new(of(balancers(1)), 80),
            Self::NodePort => SocketAddr::new(of(node), 30081),
            Self::LocalLoadBalancer => SocketAddr::new(of(balancers(2)), 80),
            Self::LocalNodePort => SocketAddr::new(of(node), 30082),
            Self::ExternalHost => SocketAddr::new(of(external_host()), TARGET),
        }
    }
}

fn balancers(n: u8) -> [IpAddr; 2] {
    [ip(&format!("198.51.100.{n}")), ip(&format!("2001:db8:1b::{n}"))]
}

/// The addresses of the host behind this node.
pub(super) fn external_host() -> [IpAddr; 2] {
    [ip("198.18.0.5"), ip("2001:db8:18::5")]
}

/// A service with a load balancer IP and a node port, whose only endpoint is another node's pod.
pub(super) fn service(
    fixture: &Fixture,
    name: &str,
    number: u8,
    n: u8,
    policy: &str,
) -> Result<Vec<Value>> {
    let port = Port {
        protocol: Protocol::Udp,
        ..Port::tcp("dns", 80, TARGET + u16::from(n)).at_node(30080 + u16::from(n))
    };
    let mut service = manifest::service(name, &service_ips(number), &[port]);
    let ingress = balancers(n).map(|ip| json!({ "ip": ip }));
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = policy.into();
    service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
    let mut objects = vec![service];
    for like in service_ips(number) {
        let endpoint = fixture.address(Host::Remote, like)?;
        objects.push(manifest::slice(name, &[port], &[(endpoint, OTHER_NODE)]));
    }
    Ok(objects)
}
