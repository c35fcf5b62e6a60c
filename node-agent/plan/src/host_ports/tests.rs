mod paths;

use super::*;
use crate::fixture::{CAPABLE, policy};
use crate::{Plan, PlanChanges, Policy};
use denizen_fixture::{address, endpoint, ip, node, port, service, slice};
use denizen_model::{
    Event, Family, HostPort, HostPortAddress, Listing, LocalPod, Model, ModelChange, PodName,
    PodSet, ServicePort,
};
use denizen_state::{Epoch, Generation};

/// A pod with its addresses, what it asks for as in `192.168.0.2:80/tcp->8080`, and when it was
/// recorded.
fn pod(name: &str, ips: &[&str], asked: &[&str], second: u8) -> LocalPod {
    let mut set = denizen_fixture::pods(1, &[("10.1.0.1", "veth1")]);
    LocalPod {
        id: AttachmentId::new(name, "eth0"),
        pod: Some(PodName { namespace: "default".into(), name: name.into() }),
        ips: ips.iter().map(|text| ip(text)).collect(),
        host_ports: asked.iter().map(|text| parse(text)).collect(),
        added_at: format!("2026-11-20T12:00:{second:02}Z").into(),
        ..set.pods.remove(0)
    }
}

fn parse(text: &str) -> HostPort {
    let (end, pod_port) = text.split_once("->").unwrap();
    let (end, protocol) = end.split_once('/').unwrap();
    let (at, number) = end.rsplit_once(':').unwrap();
    HostPort {
        at: match at {
            "*" => HostPortAddress::Any,
            "0.0.0.0" => HostPortAddress::AnyOf(Family::V4),
            "::" => HostPortAddress::AnyOf(Family::V6),
            at => HostPortAddress::Ip(ip(at)),
        },
        protocol: Protocol::parse(protocol).unwrap(),
        port: port(number.parse().unwrap()),
        pod_port: port(pod_port.parse().unwrap()),
    }
}

struct HostPortNode {
    model: Model,
    change: ModelChange,
    plan: Plan,
}

impl HostPortNode {
    fn new(localhost: bool) -> Self {
        let host_ports = Some(HostPortSettings { localhost });
        let plan = Plan::new(Policy { host_ports, ..policy() }, CAPABLE);
        let mut node = Self { model: Model::default(), change: ModelChange::default(), plan };
        node.apply(Event::Addresses(vec![
            address("127.0.0.1", "lo"),
            address("::1", "lo"),
            address("192.168.0.2", "eth0"),
            address("192.168.1.2", "eth1"),
            address("2001:db8::2", "eth0"),
            address("10.96.0.1", "kube-ipvs0"),
        ]));
        node.apply(Event::Listed(Listing::Addresses));
        node
    }

    fn apply(&mut self, event: Event) -> PlanChanges {
        self.model.apply(event, &mut self.change);
        self.plan.update(&self.model, &mut self.change)
    }

    fn pods(&mut self, pods: Vec<LocalPod>) -> PlanChanges {
        let version = Some((Epoch("test".into()), Generation(1)));
        self.apply(Event::Pods(PodSet { version, pods }))
    }

    fn services(&mut self, ports: Vec<ServicePort>, endpoints: &[&str]) {
        let mut web = service("web", &["10.96.0.10", "fd00:96::10"]);
        web.ports = ports;
        web.load_balancer_ips = vec![ip("192.168.1.2")];
        self.apply(Event::Node(Some(node(None, &["192.168.0.2", "2001:db8::2"], &[]))));
        let all = endpoints.iter().map(|text| endpoint(text, None)).collect();
        let slice = slice("web-1", "web", all);
        self.apply(Event::Slice(slice.name.clone(), Some(slice)));
        self.apply(Event::Service(web.name.clone(), Some(web)));
        Listing::SERVICES.into_iter().for_each(|listing| drop(self.apply(Event::Listed(listing))));
    }

    fn decided(&self) -> &HostPortPlan {
        self.plan.host_ports().unwrap()
    }

    /// Where a packet to this end leads.
    fn at(&self, end: &str) -> String {
        let (end, protocol) = end.split_once('/').unwrap();
        let end: SocketAddr = end.parse().unwrap();
        let protocol = Protocol::parse(protocol).unwrap();
        let found = self.decided().at(end.ip(), protocol, port(end.port()));
        found.map(|(_, served)| served.endpoint.to_string()).unwrap_or_default()
    }

    fn remarks(&self) -> Vec<String> {
        self.decided().remarks().map(ToString::to_string).collect()
    }
}

/// An agent that starts would take an earlier run's host ports away from all of them.
#[test]
fn nothing_is_decided_before_the_nodes_addresses_are_known() {
    let host_ports = Some(HostPortSettings { localhost: true });
    let plan = Plan::new(Policy { host_ports, ..policy() }, CAPABLE);
    let mut node = HostPortNode { model: Model::default(), change: ModelChange::default(), plan };
    node.pods(Vec::new());
    assert!(node.plan.host_ports().is_none());
    node.apply(Event::Listed(Listing::Addresses));
    assert!(node.plan.host_ports().is_some());
}

#[test]
fn any_address_is_one_of_the_nodes_and_nobody_elses() {
    let mut node = HostPortNode::new(true);
    node.pods(vec![pod("web", &["10.1.0.5", "fd00:1::5"], &["*:443/tcp->8443"], 0)]);
    let cases = [
        ("192.168.0.2:443/tcp", "10.1.0.5:8443"),
        ("192.168.1.2:443/tcp", "10.1.0.5:8443"),
        ("[2001:db8::2]:443/tcp", "[fd00:1::5]:8443"),
        ("127.0.0.1:443/tcp", "10.1.0.5:8443"),
        ("127.1.2.3:443/tcp", "10.1.0.5:8443"),
        ("[::1]:443/tcp", ""),
        ("192.168.0.2:443/udp", ""),
        ("192.168.0.2:444/tcp", ""),
        ("192.168.0.3:443/tcp", ""),
        ("10.96.0.1:443/tcp", ""),
    ];
    for (end, expected) in cases {
        assert_eq!(node.at(end), expected, "{end}");
    }
    let mut node = HostPortNode::new(false);
    node.pods(vec![pod("web", &["10.1.0.5"], &["*:443/tcp->8443", "127.0.0.1:9/tcp->9"], 0)]);
    assert_eq!(node.at("127.0.0.1:443/tcp") + &node.at("127.0.0.1:9/tcp"), "");
    assert_eq!(node.remarks().len(), 1, "{:?}", node.remarks());
}

#[test]
fn who_names_the_address_comes_first_and_then_the_newest() {
    let mut node = HostPortNode::new(true);
    let any = ["*:80/tcp->8080"];
    node.pods(vec![
        pod("a-new", &["10.1.0.1"], &any, 9),
        pod("b-exact", &["10.1.0.2"], &["192.168.0.2:80/tcp->8080"], 1),
        pod("c-old", &["10.1.0.3"], &any, 2),
        pod("d-v4", &["10.1.0.4"], &["0.0.0.0:80/tcp->8080"], 3),
    ]);
    assert_eq!(node.at("192.168.0.2:80/tcp"), "10.1.0.2:8080");
    assert_eq!(node.at("192.168.1.2:80/tcp"), "10.1.0.1:8080");
    let said = [
        "host port 80/tcp of default/c-old is served by default/a-new, which is newer",
        "host port 0.0.0.0:80/tcp of default/d-v4 is served by default/a-new, which is newer",
    ];
    assert_eq!(node.remarks(), said);
    // The newest goes, then its successor's sandbox gets the address of another one that was not
    // removed.
    node.pods(vec![
        pod("c-old", &["10.1.0.3"], &any, 2),
        pod("d-v4", &["10.1.0.3"], &["0.0.0.0:80/tcp->8080"], 3),
    ]);
    assert_eq!(node.at("192.168.0.2:80/tcp"), "10.1.0.3:8080");
    assert_eq!(node.decided().served().values().next().unwrap().pod, "default/d-v4".into());
    assert_eq!(node.remarks(), [""; 0], "the older record is of a pod that is gone");
}

#[test]
fn a_service_comes_first_with_endpoints_and_without() {
    for endpoints in [&["10.1.0.9"][..], &[]] {
        let mut node = HostPortNode::new(true);
        let number = |name: &str, number: u16, node: Option<u16>| {
            denizen_fixture::service_port(name, Protocol::Tcp, number, node)
        };
        node.services(vec![number("http", 80, Some(30080))], endpoints);
        let asked = ["*:80/tcp->8080", "*:30080/tcp->8080", "192.168.0.2:30080/tcp->8081"];
        node.pods(vec![pod("web", &["10.1.0.5", "fd00:1::5"], &asked, 0)]);
        let cases = [
            // A load balancer's IP that the node has.
            ("192.168.1.2:80/tcp", ""),
            ("192.168.0.2:80/tcp", "10.1.0.5:8080"),
            // The node port is served at the primary address of each family.
            ("192.168.0.2:30080/tcp", ""),
            ("[2001:db8::2]:30080/tcp", ""),
            ("192.168.1.2:30080/tcp", "10.1.0.5:8080"),
        ];
        for (end, expected) in cases {
            assert_eq!(node.at(end), expected, "{end}");
        }
        let text = node.remarks().join("\n");
        for part in [
            "host port 80/tcp of default/web is shadowed at 192.168.1.2 by load balancer IP of \
             default/web:http",
            "host port 30080/tcp of default/web is shadowed at 192.168.0.2 by node port of \
             default/web:http",
            "host port 192.168.0.2:30080/tcp of default/web is shadowed at 192.168.0.2 by node port",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let name = denizen_model::ServiceName::new("default", "web");
        node.apply(Event::Service(name, None));
        assert_eq!(node.at("192.168.0.2:30080/tcp"), "10.1.0.5:8081");
        assert_eq!(node.remarks(), [""; 0]);
    }
}

#[test]
fn changes_name_where_a_port_led() {
    let mut node = HostPortNode::new(true);
    let key = |at| HostPortKey { at, protocol: Protocol::Udp, port: port(53) };
    let any = key(HostPortPlace::Any(Family::V4));
    let ask = |name, address, second| pod(name, &[address], &["*:53/udp->53"], second);
    let end = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
    let changes = node.pods(vec![ask("a", "10.1.0.1", 0)]).host_ports;
    assert_eq!(changes.former, [(any, None)].into());
    let both = || vec![ask("a", "10.1.0.1", 0), ask("b", "10.1.0.2", 1)];
    let changes = node.pods(both()).host_ports;
    assert_eq!(changes.former, [(any, end("10.1.0.1:53"))].into());
    assert_eq!((changes.served, changes.remarks.len()), ([any].into(), 1));
    assert_eq!(node.pods(both()).host_ports, HostPortChanges::default());
    let changes = node.pods(vec![ask("b", "10.1.0.2", 1)]).host_ports;
    assert_eq!(changes, HostPortChanges::default(), "a remark ends");
    assert_eq!(node.remarks(), [""; 0]);
    let changes = node.pods(vec![]).host_ports;
    assert_eq!(changes.former, [(any, end("10.1.0.2:53"))].into());
}

/// A pod's change is about the ports that it asks for, however many others there are.
#[test]
fn a_pods_change_concerns_its_own_ports() {
    let mut node = HostPortNode::new(true);
    let ask = |number: u8| {
        let asked = format!("*:{}/tcp->80", 1000 + u16::from(number));
        pod(&format!("pod-{number:03}"), &[&format!("10.1.0.{number}")], &[&asked], number % 60)
    };
    let mut pods: Vec<_> = (1..200).map(ask).collect();
    node.pods(pods.clone());
    pods.remove(100);
    let changes = node.pods(pods).host_ports;
    assert_eq!((changes.served.len(), changes.taken.len(), changes.addresses.len()), (1, 0, 0));
}

#[test]
fn an_address_that_comes_is_served() {
    let mut node = HostPortNode::new(true);
    node.pods(vec![pod("web", &["10.1.0.5"], &["192.168.7.7:80/tcp->80"], 0)]);
    assert_eq!(node.at("192.168.7.7:80/tcp"), "");
    assert_eq!(node.remarks().len(), 1);
    node.apply(Event::Addresses(vec![address("192.168.7.7", "eth0")]));
    assert_eq!(node.at("192.168.7.7:80/tcp"), "10.1.0.5:80");
    assert_eq!(node.remarks(), [""; 0]);
}

#[test]
fn a_pod_without_an_address_of_the_family_is_named() {
    let mut node = HostPortNode::new(true);
    node.pods(vec![pod("web", &["10.1.0.5"], &[":::80/tcp->80"], 0)]);
    assert_eq!(
        node.remarks(),
        [
            "host port [::]:80/tcp of default/web is not served: the pod has no address of that family"
        ]
    );
}
