//! The pods that every case begins with: `a`, `b` and `c` in namespaces `x`, `y` and `z`.

use std::net::IpAddr;

use anyhow::Result;
use denizen_tests::node::world::ip;
use denizen_tests::policy::{
    Container, ContainerPort, Labels, NamespaceObject, NodeObject, ObjectMeta, PodIp, PodObject,
    PodSpec, PodStatus, PolicyWorld,
};

pub const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub const PODS: [&str; 3] = ["a", "b", "c"];
pub const PORTS: [u16; 2] = [80, 81];

/// Where a pod is.
#[derive(Debug, Clone)]
pub struct PodLocation {
    pub node: String,
    pub uid: String,
    /// One of each family, IPv4 first.
    pub addresses: [IpAddr; 2],
}

/// Whoever gives pods a place: real hosts, or paper.
pub trait Hosts {
    fn nodes(&self) -> Vec<NodeObject>;
    fn add(&mut self, namespace: &str, name: &str) -> Result<PodLocation>;
    fn remove(&mut self, namespace: &str, name: &str) -> Result<()>;
}

/// Hosts that are only thought of.
#[derive(Debug, Default)]
pub struct OnPaper {
    given: u16,
}

impl Hosts for OnPaper {
    fn nodes(&self) -> Vec<NodeObject> {
        let node = |number: u16| NodeObject {
            name: format!("node-{number}"),
            addresses: vec![ip(&format!("192.168.0.{number}")), ip(&format!("2001:db8::{number}"))],
            ..NodeObject::default()
        };
        vec![node(1), node(2)]
    }

    fn add(&mut self, namespace: &str, name: &str) -> Result<PodLocation> {
        self.given += 1;
        let (number, node) = (self.given, 1 + self.given % 2);
        Ok(PodLocation {
            node: format!("node-{node}"),
            uid: format!("uid-{namespace}-{name}"),
            addresses: [
                ip(&format!("10.10.{node}.{number}")),
                ip(&format!("fd00:10:{node}::{number}")),
            ],
        })
    }

    fn remove(&mut self, _namespace: &str, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// The nine pods, and no policy.
pub fn nine(hosts: &mut dyn Hosts) -> Result<PolicyWorld> {
    some(hosts, &NAMESPACES.map(|namespace| PODS.map(|pod| (namespace, pod))).concat())
}

/// These pods, and no policy.
pub fn some(hosts: &mut dyn Hosts, pods: &[(&str, &str)]) -> Result<PolicyWorld> {
    let mut world = PolicyWorld { nodes: hosts.nodes(), ..PolicyWorld::default() };
    world.namespaces = NAMESPACES.map(|name| namespace(name, name)).into();
    for (namespace, name) in pods {
        world.pods.push(pod(hosts, namespace, name)?);
    }
    Ok(world)
}

/// A namespace with a label `ns`.
pub fn namespace(name: &str, label: &str) -> NamespaceObject {
    let labels = Labels::from([("ns".to_owned(), label.to_owned())]);
    NamespaceObject {
        metadata: ObjectMeta { name: name.to_owned(), labels, ..ObjectMeta::default() },
    }
}

/// A pod with a label `pod`, which is its name, and six ports, each with a name.
pub fn pod(hosts: &mut dyn Hosts, namespace: &str, name: &str) -> Result<PodObject> {
    let place = hosts.add(namespace, name)?;
    let labels = Labels::from([("pod".to_owned(), name.to_owned())]);
    let metadata = ObjectMeta {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: place.uid,
        labels,
        ..ObjectMeta::default()
    };
    let port = |(port, protocol): (u16, &str)| ContainerPort {
        name: Some(format!("serve-{port}-{}", protocol.to_lowercase())),
        protocol: Some(protocol.to_owned()),
        container_port: port,
    };
    let ports = PORTS.into_iter().flat_map(|port| ["TCP", "UDP", "SCTP"].map(|name| (port, name)));
    let container = Container {
        name: "serve".to_owned(),
        ports: ports.map(port).collect(),
        ..Container::default()
    };
    Ok(PodObject {
        metadata,
        spec: PodSpec { node_name: place.node, containers: vec![container], ..PodSpec::default() },
        status: PodStatus {
            phase: "Running".to_owned(),
            pod_ips: place.addresses.map(|ip| PodIp { ip }).into(),
        },
    })
}
