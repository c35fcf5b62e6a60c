//! A random world: what the API says, what the node is, how the agent is configured; and packets in
//! it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::place::{AWAY, FAMILIES, HERE, NODE_PORTS, PORTS, PROTOCOLS, Places, TARGETS, ZONES};
use super::sender::sender;
use super::services::{Wildness, service, slices};
use denizen_tests::oracle::reader::Arrival;
use denizen_tests::random::Draw;

/// Most of each in a world, and how many numbers each may draw.
const SERVICES: usize = 5;
const PACKETS: usize = 60;
const OF_NODE: usize = 64;
const A_SERVICE: usize = 320;
const A_PACKET: usize = 8;

/// What a world is drawn from: what one part draws does not shift another's numbers.
#[derive(Debug)]
struct Numbers {
    node: Vec<u16>,
    services: Vec<Vec<u16>>,
    packets: Vec<Vec<u16>>,
}

/// A cluster, as one node of it sees it.
#[derive(Debug)]
pub struct World {
    pub services: Vec<Value>,
    pub slices: Vec<Value>,
    pub node: Option<Value>,
    pub ranges: Vec<Value>,
    pub pods: Vec<Pod>,
    /// The node's addresses, each with its interface.
    pub addresses: Vec<(IpAddr, &'static str)>,
    /// Of the agent's command line.
    pub flags: Vec<String>,
    pub packets: Vec<Arrival>,
}

/// A recorded pod.
#[derive(Debug, Clone)]
pub struct Pod {
    pub ips: Vec<IpAddr>,
    /// The node's end of its veth.
    pub veth: String,
    pub bridged: bool,
    /// Where its packets come in, if neither at the veth nor at the bridge.
    pub behind: Option<&'static str>,
}

impl Pod {
    /// Where the IP stack sees its packets come in.
    pub fn interface(&self) -> &str {
        match self.behind {
            Some(interface) => interface,
            None if self.bridged => "cni0",
            None => &self.veth,
        }
    }

    /// The bridge's port that they come in through before that. (Behind a VLAN's device it is not
    /// known.)
    pub fn port(&self) -> Option<&str> {
        (self.bridged && self.behind.is_none()).then_some(&*self.veth)
    }
}

/// The node's addresses. Real hosts are given those alone that others may send to.
fn own(family: &Places, wildness: Wildness) -> &[(&'static str, &'static str)] {
    match wildness {
        Wildness::Any => family.node,
        Wildness::Playable => &family.node[..2],
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address written in this test")
}

/// Worlds; a failing one is shrunk by leaving out services and packets, and by plainer decisions.
pub fn worlds(wildness: Wildness) -> impl Strategy<Value = World> {
    let numbers = |count| vec(any::<u16>(), count);
    let services = vec(numbers(A_SERVICE), 1..=SERVICES);
    let packets = vec(numbers(A_PACKET), 1..=PACKETS);
    let all = (numbers(OF_NODE), services, packets);
    all.prop_map(move |(node, services, packets)| {
        World::drawn(&Numbers { node, services, packets }, wildness)
    })
}

impl World {
    fn drawn(numbers: &Numbers, wildness: Wildness) -> Self {
        let of_node = &mut Draw::new(&numbers.node);
        let flags = flags(of_node, wildness);
        let pods = pods(of_node, wildness);
        let node = node(of_node, wildness);
        let ranges: Vec<&str> =
            FAMILIES.iter().flat_map(|family| of_node.subset(family.service_ranges, 30)).collect();
        // A load balancer's address on an interface of the node's own, as some load balancers want
        // it.
        let borrows = wildness == Wildness::Any && of_node.percent(20);
        let (mut services, mut all_slices) = (Vec::new(), Vec::new());
        for (index, of_service) in numbers.services.iter().enumerate() {
            let of_service = &mut Draw::new(of_service);
            let service = service(of_service, index, wildness);
            all_slices.extend(slices(of_service, &service, wildness));
            services.push(service);
        }
        let on_links = |family: &&Places| {
            let own = own(family, wildness).iter();
            own.map(|(address, on)| (ip(address), *on)).collect::<Vec<_>>()
        };
        let mut world = Self {
            services,
            slices: all_slices,
            node,
            ranges: ranges.iter().enumerate().map(|(n, range)| service_cidr(n, range)).collect(),
            pods,
            addresses: FAMILIES.iter().flat_map(on_links).collect(),
            flags,
            packets: Vec::new(),
        };
        if borrows {
            world.addresses.extend(FAMILIES.iter().map(|family| (ip(family.external[0]), "lo")));
        }
        let packets = numbers.packets.iter();
        world.packets = packets.map(|of| world.packet(&mut Draw::new(of), wildness)).collect();
        world
    }

    /// A packet of anybody's, mostly to a frontend of a service, else close by.
    fn packet(&self, draw: &mut Draw<'_>, wildness: Wildness) -> Arrival {
        let (mut destination, mut protocol) = self.frontend(draw, wildness);
        let family = FAMILIES[usize::from(destination.is_ipv6())];
        let (source, link) = sender(self, draw, family, wildness);
        let (interface, port) = link.unzip();
        match draw.below(20) {
            16 | 17 => {
                let own = own(family, wildness).iter().map(|(address, _)| *address);
                let others =
                    [family.unallocated, family.remote[0], family.bridged[0], family.outside[0]];
                let pool: Vec<&str> =
                    own.chain(others).chain(family.external.iter().copied()).collect();
                destination.set_ip(ip(draw.one(&pool)));
            }
            18 => {
                let pool = [&PORTS[..], &NODE_PORTS, &TARGETS, &[9]].concat();
                destination.set_port(draw.one(&pool));
            }
            19 => protocol = draw.one(&PROTOCOLS).1,
            _ => {}
        }
        Arrival { source, interface, port: port.flatten(), destination, protocol }
    }

    /// An address, port and protocol that a service names, whether it is served or not.
    fn frontend(&self, draw: &mut Draw<'_>, wildness: Wildness) -> (SocketAddr, u8) {
        let service = &self.services[draw.below(self.services.len())];
        let ports = service["spec"]["ports"].as_array().expect("a service has ports");
        let port = &ports[draw.below(ports.len())];
        let number =
            |field: &str| port[field].as_u64().and_then(|number| u16::try_from(number).ok());
        let protocol = PROTOCOLS
            .iter()
            .find(|(name, _)| port["protocol"] == *name)
            .map_or(6, |(_, number)| *number);
        let named = frontends(service);
        let address = if named.is_empty() { ip(FAMILIES[0].unallocated) } else { draw.one(&named) };
        if let Some(at_node) = number("nodePort").filter(|_| draw.percent(35)) {
            let family = FAMILIES[usize::from(address.is_ipv6())];
            return ((ip(draw.one(own(family, wildness)).0), at_node).into(), protocol);
        }
        ((address, number("port").expect("a port has a number")).into(), protocol)
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "flags {:?}\naddresses {:?}", self.flags, self.addresses)?;
        for pod in &self.pods {
            writeln!(f, "pod {:?} behind {}", pod.ips, pod.interface())?;
        }
        let objects = [&self.services, &self.slices, &self.ranges].into_iter().flatten();
        objects.chain(&self.node).try_for_each(|object| writeln!(f, "{object}"))
    }
}

/// Every address that a service names.
pub fn frontends(service: &Value) -> Vec<IpAddr> {
    let texts = |list: &Value| -> Vec<IpAddr> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|text| text.as_str()?.parse().ok()).collect()
    };
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
    let ingress =
        ingress.into_iter().flatten().filter_map(|entry| entry["ip"].as_str()?.parse().ok());
    let spec = &service["spec"];
    [texts(&spec["clusterIPs"]), texts(&spec["externalIPs"]), ingress.collect()].concat()
}

fn flags(draw: &mut Draw<'_>, wildness: Wildness) -> Vec<String> {
    let mut flags = Vec::new();
    if draw.percent(15) {
        flags.push("--masquerade-all".to_owned());
    }
    if draw.percent(20) {
        flags.push("--feature-gates=PreferSameTrafficDistribution=false".to_owned());
    }
    if draw.percent(40) {
        let all: Vec<&str> =
            FAMILIES.iter().flat_map(|family| family.node_port_ranges).copied().collect();
        let ranges = draw.subset(&all, 30);
        if !ranges.is_empty() {
            flags.push(format!("--nodeport-addresses={}", ranges.join(",")));
        }
    }
    if wildness == Wildness::Any {
        let ranges: Vec<&str> =
            FAMILIES.iter().flat_map(|family| family.pod_ranges).copied().collect();
        let mode = match draw.below(12) {
            6 => "bridge=cni0".to_owned(),
            7 => "bridge=br9,cni0,cni0.7".to_owned(),
            8 => "interface-prefix=veth".to_owned(),
            9 => "interface-prefix=cni,veth1".to_owned(),
            10 => "node-cidr".to_owned(),
            11 => format!("node-cidr={}", draw.one(&[&ranges[..2], &ranges[1..]]).join(",")),
            _ => return flags,
        };
        flags.push(format!("--detect-local={mode}"));
    }
    flags
}

fn pods(draw: &mut Draw<'_>, wildness: Wildness) -> Vec<Pod> {
    let mut pods = Vec::new();
    for index in 0..4 {
        // A pod that nobody recorded is not local.
        let recorded = !draw.percent(15);
        let bridged = index < 2;
        let families = match draw.below(4) {
            2 if wildness == Wildness::Any => &FAMILIES[..1],
            3 if wildness == Wildness::Any => &FAMILIES[1..],
            _ => &FAMILIES[..],
        };
        let own =
            |family: &&Places| ip(if bridged { family.bridged } else { family.routed }[index % 2]);
        let behind = (wildness == Wildness::Any && draw.percent(5)).then_some("cni0.7");
        let pod = Pod {
            ips: families.iter().map(own).collect(),
            veth: format!("veth{index}"),
            bridged,
            behind,
        };
        if recorded || wildness == Wildness::Playable {
            pods.push(pod);
        }
    }
    pods
}

fn node(draw: &mut Draw<'_>, wildness: Wildness) -> Option<Value> {
    if wildness == Wildness::Any && draw.percent(5) {
        return None;
    }
    let mut labels = json!({});
    if draw.percent(70) {
        labels["topology.kubernetes.io/zone"] = draw.one(&ZONES).into();
    }
    let mut addresses = Vec::new();
    for family in FAMILIES {
        let first = if wildness == Wildness::Any { draw.below(2) } else { 0 };
        if !draw.percent(10) || wildness == Wildness::Playable {
            addresses.push(json!({ "type": "InternalIP", "address": family.node[first].0 }));
        }
        if draw.percent(20) {
            addresses.insert(0, json!({ "type": "ExternalIP", "address": family.node[1].0 }));
        }
    }
    let ranges: Vec<&str> =
        FAMILIES.iter().flat_map(|family| draw.subset(family.pod_ranges, 50)).collect();
    Some(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": HERE, "labels": labels },
        "spec": { "podCIDRs": ranges }, "status": { "addresses": addresses },
    }))
}

/// Another node's object, which says nothing about this one.
pub fn another_node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": AWAY, "labels": { "topology.kubernetes.io/zone": "b" } },
        "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.0.3" }] },
    })
}

fn service_cidr(index: usize, range: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": format!("range-{index}") }, "spec": { "cidrs": [range] },
    })
}
