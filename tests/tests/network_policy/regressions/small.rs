//! A small cluster: pods `x/a` and `x/b` on the first node, `y/a` and `y/b` on the second.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{
    Container, ContainerPort, NamespaceObject, NetworkPolicy, ObjectMeta, PodIp, PodObject,
    PodSpec, PodStatus, PolicyPacket, PolicyWorld, Transport,
};

use crate::case::labels;
use crate::evaluated::EvaluatedWorld;
use crate::random::{NODES, nodes};

/// Addresses of pods: the first is IPv4, the second IPv6.
pub const XA: [&str; 2] = ["10.0.0.10", "fd00::10"];
pub const XB: [&str; 2] = ["10.0.0.11", "fd00::11"];
pub const YA: [&str; 2] = ["10.0.1.10", "fd00::1:10"];
pub const YB: [&str; 2] = ["10.0.1.11", "fd00::1:11"];
/// An address that is nobody's.
pub const OUTSIDE: [&str; 2] = ["203.0.113.9", "2600::9"];
/// The second node's.
pub const OTHER_NODE: [&str; 2] = ["192.168.0.2", "2001:db8::2"];

pub fn world(policies: impl IntoIterator<Item = NetworkPolicy>) -> PolicyWorld {
    PolicyWorld {
        nodes: nodes(),
        namespaces: vec![namespace("x"), namespace("y")],
        pods: vec![
            pod("x", "a", 0, XA),
            pod("x", "b", 0, XB),
            pod("y", "a", 1, YA),
            pod("y", "b", 1, YB),
        ],
        policies: policies.into_iter().collect(),
        tiers: Vec::new(),
    }
}

pub fn namespace(name: &str) -> NamespaceObject {
    let labels = labels(&[("ns", name)]);
    NamespaceObject {
        metadata: ObjectMeta { name: name.to_owned(), labels, ..ObjectMeta::default() },
    }
}

/// A pod with its name as a label, created when the pods before it were.
pub fn pod(namespace: &str, name: &str, node: usize, addresses: [&str; 2]) -> PodObject {
    PodObject {
        metadata: ObjectMeta {
            annotations: std::collections::BTreeMap::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{}", addresses[0]),
            labels: labels(&[("pod", name)]),
            creation_timestamp: Some("2026-11-20T12:00:00Z".to_owned()),
            deletion_timestamp: None,
        },
        spec: PodSpec {
            node_name: NODES[node].to_owned(),
            containers: vec![container(&[])],
            ..PodSpec::default()
        },
        status: PodStatus {
            phase: "Running".to_owned(),
            pod_ips: addresses.map(|address| PodIp { ip: ip(address) }).into(),
        },
    }
}

/// A container with ports of TCP that have names.
pub fn container(ports: &[(&str, u16)]) -> Container {
    let port = |(name, port): &(&str, u16)| ContainerPort {
        name: Some((*name).to_owned()),
        protocol: None,
        container_port: *port,
    };
    Container {
        name: "c".to_owned(),
        ports: ports.iter().map(port).collect(),
        ..Container::default()
    }
}

/// A connection over TCP.
pub fn tcp(from: &str, to: &str, port: u16) -> PolicyPacket {
    packet(from, to, Transport::Port(Protocol::Tcp, port))
}

pub fn packet(from: &str, to: &str, transport: Transport) -> PolicyPacket {
    PolicyPacket { from: ip(from), to: ip(to), transport }
}

/// Whether all who judge say of each connection to port 80, in both families, what is expected.
pub fn expect(world: &PolicyWorld, expected: &[([&str; 2], [&str; 2], bool)]) -> Result<()> {
    let evaluated = EvaluatedWorld::new(world)?;
    for (from, to, arrives) in expected {
        for family in 0..2 {
            let packet = tcp(from[family], to[family], 80);
            ensure!(evaluated.passes(packet)? == *arrives, "{packet:?} arrives: {}", !arrives);
        }
    }
    Ok(())
}

/// Addresses of a pod, of both families.
pub fn addresses(of: [&str; 2]) -> [IpAddr; 2] {
    of.map(ip)
}
