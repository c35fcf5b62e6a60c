//! The suite's namespaces and pods.

use denizen_tests::node::world::ip;
use denizen_tests::policy::{
    Container, ContainerPort, Labels, NamespaceObject, NodeObject, ObjectMeta, PodIp, PodObject,
    PodSpec, PodStatus, PolicyWorld,
};

use super::{HOUSES, House, LABEL, ProtocolPort, T80, U80};

/// Where a pod of a house stands in [`world`].
pub fn number_of(house: House, pod: usize) -> usize {
    HOUSES.iter().position(|other| *other == house).expect("one of the four") * 2 + pod
}

fn namespace_of(house: House) -> String {
    house.to_ascii_lowercase().to_string()
}

pub fn labels_of(house: House) -> Labels {
    Labels::from([(LABEL.to_owned(), house.to_string())])
}

pub fn namespaces() -> Vec<NamespaceObject> {
    let namespace = |house| {
        let (name, labels) = (namespace_of(house), labels_of(house));
        NamespaceObject { metadata: ObjectMeta { name, labels, ..ObjectMeta::default() } }
    };
    HOUSES.map(namespace).into()
}

pub fn container() -> Container {
    let port = |name: &str, (protocol, number): ProtocolPort| ContainerPort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_string()),
        container_port: number,
    };
    Container {
        name: "c".to_owned(),
        restart_policy: None,
        ports: vec![port("web", T80), port("dns", U80)],
    }
}

pub fn world() -> PolicyWorld {
    let node = |number: usize| NodeObject {
        name: format!("node-{number}"),
        addresses: vec![ip(&format!("192.168.0.{number}")), ip(&format!("2001:db8::{number}"))],
        ..NodeObject::default()
    };
    let pod = |(house, number): (House, usize)| {
        let host = 10 + number_of(house, number);
        let addresses = [ip(&format!("10.0.0.{host}")), ip(&format!("fd00::{host}"))];
        PodObject {
            metadata: ObjectMeta {
                namespace: namespace_of(house),
                name: format!("pod-{number}"),
                uid: format!("uid-{house}-{number}"),
                labels: labels_of(house),
                ..ObjectMeta::default()
            },
            spec: PodSpec {
                node_name: format!("node-{}", number + 1),
                containers: vec![container()],
                ..PodSpec::default()
            },
            status: PodStatus {
                phase: "Running".to_owned(),
                pod_ips: addresses.map(|ip| PodIp { ip }).into(),
            },
        }
    };
    PolicyWorld {
        nodes: vec![node(1), node(2)],
        namespaces: namespaces(),
        pods: HOUSES.into_iter().flat_map(|house| [(house, 0), (house, 1)]).map(pod).collect(),
        ..PolicyWorld::default()
    }
}
