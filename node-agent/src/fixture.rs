//! Facts for tests.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use denizen_netlink::Writer;
use ipnetwork::IpNetwork;

use crate::model::{
    Affinity, EndpointState, LocalPod, Node, NodeAddress, PodName, PodSet, Protocol, Service,
    ServiceName, ServicePort, Slice, SliceEndpoint, SliceName, SlicePort, SourceRanges,
    TrafficPolicy, family_of,
};
use crate::plan::{
    Capabilities, Detector, NodePortAddresses, NodeSide, Policy, Scheduler, Settings,
};

/// This node's name.
pub const HERE: &str = "node-1";
/// Another node's name.
pub const AWAY: &str = "node-2";

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

pub fn range(text: &str) -> IpNetwork {
    text.parse().expect(text)
}

pub fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("not 0")
}

pub fn settings() -> Settings {
    Settings { node_name: HERE.into(), node_hints: true, masquerade_all: false }
}

/// By default, as the agent's flags have it.
pub fn policy() -> Policy {
    Policy {
        settings: settings(),
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        services: true,
        firewall: None,
        scheduler: Scheduler::default(),
    }
}

/// A backend that can do everything.
pub const CAPABLE: Capabilities = Capabilities {
    unused_addresses: true,
    guards_loopback_first: true,
    restricts_first: true,
    balances_by_ipvs: false,
};

pub fn service_port(
    name: &str,
    protocol: Protocol,
    number: u16,
    node_port: Option<u16>,
) -> ServicePort {
    ServicePort { name: name.into(), protocol, port: port(number), node_port: node_port.map(port) }
}

/// A service at TCP port 80, called `http`.
pub fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        name: ServiceName::new("default", name),
        cluster_ips: cluster_ips.iter().map(|text| ip(text)).collect(),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        proxied_ips: Vec::new(),
        source_ranges: SourceRanges::default(),
        ports: vec![service_port("http", Protocol::Tcp, 80, None)],
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity: Affinity::None,
        health_check_node_port: None,
        created: "".into(),
        scheduler: None,
        opts_out: false,
    }
}

/// A ready endpoint, without hints.
pub fn endpoint(address: &str, node: Option<&str>) -> SliceEndpoint {
    SliceEndpoint {
        address: ip(address),
        state: EndpointState::Ready,
        terminating: false,
        node: node.map(Arc::from),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    }
}

/// A terminating endpoint that still serves.
pub fn draining(address: &str, node: Option<&str>) -> SliceEndpoint {
    SliceEndpoint { state: EndpointState::Draining, terminating: true, ..endpoint(address, node) }
}

/// An endpoint that does not serve.
pub fn down(address: &str, node: Option<&str>) -> SliceEndpoint {
    SliceEndpoint { state: EndpointState::Down, ..endpoint(address, node) }
}

/// Endpoints of `service` at TCP port 8080, called `http`, of the first endpoint's family.
pub fn slice(name: &str, service: &str, endpoints: Vec<SliceEndpoint>) -> Slice {
    let family = family_of(endpoints.first().map_or(ip("0.0.0.0"), |first| first.address));
    Slice {
        name: SliceName { namespace: "default".into(), name: name.into() },
        service: ServiceName::new("default", service),
        family,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: port(8080) }],
        endpoints,
    }
}

pub fn node(zone: Option<&str>, addresses: &[&str], pod_cidrs: &[&str]) -> Node {
    Node {
        name: HERE.into(),
        created: "".into(),
        zone: zone.map(Arc::from),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        pod_cidrs: pod_cidrs.iter().map(|text| range(text)).collect(),
        leaving: false,
        excluded: false,
        network_unavailable: false,
        taints: Vec::new(),
        labels: crate::model::Labels::default(),
    }
}

pub fn address(address: &str, interface: &str) -> NodeAddress {
    NodeAddress { address: ip(address), interface: interface.into(), dummy: false }
}

/// Pods, each with its input interface, and for a bridged pod the bridge port: `veth1`,
/// `cni0/veth1`.
pub fn pods(generation: u64, pods: &[(&str, &str)]) -> PodSet {
    use denizen_state::{AttachmentId, Epoch, Generation};
    let pod = |(n, (address, arrival)): (usize, &(&str, &str))| {
        let (interface, port) = match arrival.split_once('/') {
            Some((bridge, port)) => (bridge, Some(port)),
            None => (*arrival, None),
        };
        LocalPod {
            id: AttachmentId::new(&format!("c{n}"), "eth0"),
            pod: Some(PodName { namespace: "default".into(), name: format!("pod-{n}").into() }),
            uid: None,
            bridge: port.map(|_| interface.into()),
            interface: interface.into(),
            port: port.map(Arc::from),
            ips: vec![ip(address)],
            vlan_port: None,
            mac: None,
            added_at: "2026-11-20T12:00:00Z".into(),
            adopted: false,
            redirect: None,
        }
    };
    PodSet {
        version: Some((Epoch("test".into()), Generation(generation))),
        pods: pods.iter().enumerate().map(pod).collect(),
    }
}

/// Puts a tuple of a conntrack entry into a request of ctnetlink: `kind` is 1 for the original
/// direction, 2 for the reply's.
pub fn put_tuple(
    request: &mut Writer,
    kind: u16,
    protocol: Protocol,
    source: ([u8; 4], u16),
    destination: ([u8; 4], u16),
) {
    let tuple = request.begin(kind);
    let addresses = request.begin(1);
    request.put(1, &source.0);
    request.put(2, &destination.0);
    request.end(addresses);
    let ports = request.begin(2);
    request.put(1, &[protocol.number()]);
    request.put(2, &source.1.to_be_bytes());
    request.put(3, &destination.1.to_be_bytes());
    request.end(ports);
    request.end(tuple);
}
