use std::net::IpAddr;

use crate::{
    Arrival, BridgePort, Detection, Detector, Local, NodePortAddresses, NodePorts,
    node_port_addresses,
};
use denizen_fixture::*;
use denizen_model::NodeAddress;

fn links() -> Vec<NodeAddress> {
    vec![
        address("127.0.0.1", "lo"),
        address("::1", "lo"),
        address("192.168.0.2", "eth0"),
        address("192.168.0.3", "eth0"),
        address("fe80::2", "eth0"),
        address("2001:db8::2", "eth0"),
        address("10.1.2.1", "cni0"),
        address("169.254.1.1", "eth0"),
    ]
}

fn ranges(texts: &[&str]) -> NodePortAddresses {
    NodePortAddresses::In(texts.iter().map(|text| range(text)).collect())
}

#[test]
fn node_ports_are_served_where_the_operator_says() {
    let named = node(None, &["192.168.0.3", "192.168.0.2", "2001:db8::2"], &[]);
    let v4_only = node(None, &["192.168.0.2"], &[]);
    let cases: [(&str, NodePortAddresses, Option<_>, &[&str]); 8] = [
        (
            "primary: the first that the Node names",
            NodePortAddresses::Primary,
            Some(&named),
            &["192.168.0.3", "2001:db8::2"],
        ),
        (
            "primary, unnamed family: all that could be meant",
            NodePortAddresses::Primary,
            Some(&v4_only),
            &["192.168.0.2", "2001:db8::2"],
        ),
        (
            "primary without a Node: neither loopback, link-local nor a pods' interface",
            NodePortAddresses::Primary,
            None,
            &["192.168.0.2", "192.168.0.3", "2001:db8::2"],
        ),
        ("a range", ranges(&["192.168.0.2/32"]), Some(&named), &["192.168.0.2"]),
        (
            "a family without a range serves none",
            ranges(&["192.168.0.0/24"]),
            None,
            &["192.168.0.2", "192.168.0.3"],
        ),
        (
            "everything but loopback",
            ranges(&["0.0.0.0/0"]),
            None,
            &["10.1.2.1", "169.254.1.1", "192.168.0.2", "192.168.0.3"],
        ),
        ("a range that no address is in", ranges(&["172.16.0.0/12"]), Some(&named), &[]),
        (
            "overlapping ranges name an address once",
            ranges(&["192.168.0.2/32", "192.168.0.0/31", "192.168.0.2/31"]),
            None,
            &["192.168.0.2", "192.168.0.3"],
        ),
    ];
    for (name, wanted, node, expected) in cases {
        let found =
            node_port_addresses(&wanted, node, &links(), &pods(1, &[("10.1.2.3", "cni0")]).pods);
        let expected: Vec<IpAddr> = expected.iter().map(|text| ip(text)).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn health_checks_listen_where_node_ports_are_served() {
    let all = NodePortAddresses::All { localhost: true };
    let cases: [(NodePortAddresses, &[&str]); 5] = [
        (NodePortAddresses::Primary, &["192.168.0.2", "192.168.0.3", "2001:db8::2"]),
        (all, &["0.0.0.0", "::"]),
        (ranges(&["0.0.0.0/0"]), &["0.0.0.0"]),
        (ranges(&["192.168.0.2/32", "::/0"]), &["192.168.0.2", "::"]),
        (ranges(&["fe80::/10", "169.254.0.0/16", "2000::/3"]), &["169.254.1.1", "2001:db8::2"]),
    ];
    for (configured, expected) in cases {
        let pods = pods(1, &[("10.1.2.3", "cni0")]).pods;
        let addresses = node_port_addresses(&configured, None, &links(), &pods);
        let found = NodePorts { configured, addresses }.listening();
        assert_eq!(found, expected.iter().map(|text| ip(text)).collect::<Vec<_>>());
    }
}

#[test]
fn each_detector_tells_its_own_pods_apart() {
    let pods = pods(1, &[("10.1.2.3", "cni0/veth9"), ("172.20.0.4", "veth1")]);
    let cidrs = [range("10.1.2.0/24")];
    let names = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    let explicit = || Detector::NodeCidr(Some(vec![range("172.20.0.0/15")]));
    let cases = [
        ("a recorded pod", Detector::PodState, "10.1.2.3", Some("cni0"), true),
        (
            "its address through another interface",
            Detector::PodState,
            "10.1.2.3",
            Some("veth1"),
            false,
        ),
        ("its interface with another address", Detector::PodState, "10.1.2.4", Some("cni0"), false),
        ("its address from this node itself", Detector::PodState, "10.1.2.3", None, false),
        (
            "through another port of the bridge",
            Detector::PodState,
            "10.1.2.3",
            Some("cni0/veth8"),
            true,
        ),
        ("port-exact: a recorded pod", Detector::PodPort, "10.1.2.3", Some("cni0/veth9"), true),
        (
            "port-exact: through another port of the bridge",
            Detector::PodPort,
            "10.1.2.3",
            Some("cni0/veth8"),
            false,
        ),
        (
            "port-exact: through this port of another bridge",
            Detector::PodPort,
            "10.1.2.3",
            Some("cni1/veth9"),
            false,
        ),
        ("port-exact: through no port", Detector::PodPort, "10.1.2.3", Some("cni0"), false),
        (
            "port-exact: nobody says through which port",
            Detector::PodPort,
            "10.1.2.3",
            Some("cni0/"),
            true,
        ),
        ("port-exact: a routed pod", Detector::PodPort, "172.20.0.4", Some("veth1"), true),
        (
            "port-exact: a routed pod's interface with another address",
            Detector::PodPort,
            "172.20.0.5",
            Some("veth1"),
            false,
        ),
        ("a port, whoever sends", Detector::BridgePort, "8.8.8.8", Some("br7/eth3"), true),
        ("one of a bridge's ports", Detector::BridgePort, "8.8.8.8", Some("br7/"), true),
        ("no port of a bridge", Detector::BridgePort, "10.1.2.3", Some("veth1"), false),
        ("no port, from this node itself", Detector::BridgePort, "10.1.2.3", None, false),
        (
            "through the bridge",
            Detector::Bridge(names(&["br1", "cni0"])),
            "8.8.8.8",
            Some("cni0"),
            true,
        ),
        (
            "through a bridge of a longer name",
            Detector::Bridge(names(&["cni0"])),
            "8.8.8.8",
            Some("cni01"),
            false,
        ),
        ("through no interface", Detector::Bridge(names(&["cni0"])), "8.8.8.8", None, false),
        (
            "a prefix",
            Detector::InterfacePrefix(names(&["cali", "veth"])),
            "8.8.8.8",
            Some("veth9"),
            true,
        ),
        (
            "not a prefix",
            Detector::InterfacePrefix(names(&["veth"])),
            "8.8.8.8",
            Some("xveth"),
            false,
        ),
        ("the Node's range", Detector::NodeCidr(None), "10.1.2.77", Some("eth0"), true),
        ("outside of the Node's range", Detector::NodeCidr(None), "10.1.3.77", Some("cni0"), false),
        ("named ranges replace the Node's", explicit(), "10.1.2.77", None, false),
        ("a named range, whoever sends", explicit(), "172.21.9.9", None, true),
    ];
    for (name, detector, source, arrival, local) in cases {
        let detection = Detection::new(&detector, &cidrs);
        let found = detection.local(&pods.pods, ip(source), arrival.map(parse));
        assert_eq!(found.is_some(), local, "{name}: {found:?}");
        if let (Detector::PodState, Some(found)) = (&detector, &found) {
            assert!(matches!(found, Local::Pod(pod) if pod.ips.contains(&ip(source))), "{name}");
        }
    }
}

/// `veth1` is an interface, `cni0/veth1` the port of a bridge, and `cni0/` one of its ports.
fn parse(arrival: &str) -> Arrival<'_> {
    let (interface, port) = match arrival.split_once('/') {
        None => (arrival, BridgePort::None),
        Some((bridge, "")) => (bridge, BridgePort::Unnamed),
        Some((bridge, port)) => (bridge, BridgePort::Named(port)),
    };
    Arrival { interface, port }
}
