use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::fixture::*;
use crate::{
    Balancer, Capabilities, FrontendAddress, FrontendKey, FrontendKind, IpvsPlan, Method,
    NodePortAddresses, NotOnIpvs, PlanChanges, Planner, Policy, Remark, Scheduler, Share,
};
use denizen_fixture::*;
use denizen_model::{
    Egress, Event, Family, Listing, Protocol, RequestedScheduler, Service, ServiceName,
    ServicePortName, SessionAffinity, SliceEndpoint, TrafficPolicy,
};

const BY_IPVS: Capabilities = Capabilities { balances_by_ipvs: true, ..CAPABLE };
const NODE: &str = "192.168.0.2";

struct IpvsWorld {
    planner: Planner,
}

impl IpvsWorld {
    /// A node with an IPv4 address, and these events.
    fn new(events: Vec<Event>) -> Self {
        Self::with(policy(), events)
    }

    fn with(policy: Policy, events: Vec<Event>) -> Self {
        let mut world = Self { planner: Planner::new(policy, BY_IPVS) };
        let node = Event::Addresses(vec![address(NODE, "eth0")]);
        let listed = Listing::SERVICES.map(Event::Listed);
        world.tell([node].into_iter().chain(listed).chain(events).collect());
        world
    }

    fn tell(&mut self, events: Vec<Event>) -> PlanChanges {
        self.planner.apply(events);
        self.planner.update()
    }

    fn ipvs(&self) -> &IpvsPlan {
        self.planner.plan().ipvs().expect("the backend has virtual servers")
    }

    /// Who chooses at each frontend of this kind.
    fn balancers(&self, kind: FrontendKind) -> Vec<Balancer> {
        let services = self.planner.plan().services().expect("all is listed");
        let mut frontends: Vec<_> =
            services.frontends().filter(|frontend| frontend.kind == kind).collect();
        frontends.sort_by_key(|frontend| frontend.key);
        frontends.into_iter().map(|frontend| self.ipvs().balancer(frontend)).collect()
    }

    /// The endpoints of the server at a cluster IP.
    fn shares(&self, at: &str) -> Vec<(String, Share)> {
        let server = self.ipvs().servers().get(&key(at)).expect("it is carried");
        server.endpoints.iter().map(|(at, share)| (at.ip().to_string(), *share)).collect()
    }

    fn everything(&self) -> String {
        let services = self.planner.plan().services().expect("all is listed");
        let balancers =
            services.frontends().map(|frontend| (frontend.key, self.ipvs().balancer(frontend)));
        let mut balancers: Vec<_> = balancers.collect();
        balancers.sort_by_key(|(key, _)| *key);
        format!("{balancers:?} {:?}", self.ipvs().servers())
    }
}

fn key(at: &str) -> FrontendKey {
    let address = FrontendAddress::Ip(ip(at));
    FrontendKey { address, protocol: Protocol::Tcp, port: port(80) }
}

fn exists(service: Service) -> Event {
    Event::Service(service.name.clone(), Some(service))
}

fn endpoints(service: &str, endpoints: Vec<SliceEndpoint>) -> Event {
    let slice = slice(service, service, endpoints);
    Event::Slice(slice.name.clone(), Some(slice))
}

/// A service at every kind of frontend.
fn web() -> Service {
    Service {
        ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("203.0.113.8")],
        ..service("web", &["10.96.0.10"])
    }
}

fn two() -> Event {
    endpoints("web", vec![endpoint("10.0.0.1", Some(HERE)), endpoint("10.0.0.2", Some(AWAY))])
}

const KINDS: [FrontendKind; 4] = [
    FrontendKind::ClusterIp,
    FrontendKind::NodePort,
    FrontendKind::LoadBalancerIp,
    FrontendKind::ExternalIp,
];

#[test]
fn every_frontend_leads_to_the_one_server_at_the_cluster_ip() {
    let world = IpvsWorld::new(vec![exists(web()), two()]);
    for kind in KINDS {
        assert_eq!(world.balancers(kind), [Balancer::Ipvs(key("10.96.0.10"))], "{kind}");
    }
    assert_eq!(world.ipvs().servers().len(), 1);
    let ready = [("10.0.0.1".to_owned(), Share::Ready), ("10.0.0.2".to_owned(), Share::Ready)];
    assert_eq!(world.shares("10.96.0.10"), ready);
}

#[test]
fn a_backend_without_virtual_servers_has_none() {
    let planner = Planner::new(policy(), CAPABLE);
    assert!(planner.plan().ipvs().is_none());
}

#[test]
fn nftables_chooses_where_ipvs_cannot() {
    let affinity = Service { affinity: SessionAffinity::ClientIp { seconds: 60 }, ..web() };
    let own = Service { cluster_ips: vec![ip(NODE)], ..web() };
    let older =
        Service { created: "2020-01-01T00:00:00Z".into(), ..service("older", &["10.96.0.9"]) };
    let shared = vec![
        exists(older),
        endpoints("older", vec![endpoint("10.0.0.2", None)]),
        exists(web()),
        two(),
    ];
    let with = ServicePortName {
        service: ServiceName::new("default", "older"),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let hides = Egress { kept: vec![range("192.168.0.0/16")], v6: false };
    let cases: [(&str, Vec<Event>, NotOnIpvs); 5] = [
        ("no endpoints", vec![exists(web())], NotOnIpvs::NoEndpoints),
        ("session affinity", vec![exists(affinity), two()], NotOnIpvs::Affinity),
        ("the node's own address", vec![exists(own), two()], NotOnIpvs::NoClusterIp),
        (
            "an endpoint of two services",
            shared,
            NotOnIpvs::SharedEndpoint { endpoint: "10.0.0.2:8080".parse().unwrap(), with },
        ),
        (
            "hidden endpoints",
            vec![exists(web()), two(), Event::Egress(hides)],
            NotOnIpvs::Egress("10.0.0.1:8080".parse().unwrap()),
        ),
    ];
    for (name, events, reason) in cases {
        let world = IpvsWorld::new(events);
        let last = world.balancers(FrontendKind::ExternalIp).pop();
        let counted = usize::from(reason != NotOnIpvs::NoEndpoints);
        assert_eq!(last, Some(Balancer::Nft(reason)), "{name}");
        assert_eq!(world.ipvs().carried_by_nftables(), counted, "{name}");
    }
}

#[test]
fn a_node_without_an_address_of_the_family_has_no_virtual_servers() {
    let mut world = IpvsWorld::new(vec![exists(web()), two()]);
    let dummy = denizen_model::NodeAddress { dummy: true, ..address("10.96.0.10", "kube-ipvs0") };
    let changes = world.tell(vec![Event::Addresses(vec![address("fe80::1", "eth0"), dummy])]);
    let reason = Balancer::Nft(NotOnIpvs::NoSource(Family::V4));
    assert_eq!(world.balancers(FrontendKind::ClusterIp), [reason]);
    assert_eq!(Vec::from_iter(changes.virtual_servers), [key("10.96.0.10")]);
    assert_eq!(changes.frontends.len(), 4, "nftables chooses at all of them");
    assert!(world.ipvs().servers().is_empty());
}

#[test]
fn under_internal_policy_local_only_the_cluster_ip_has_the_servers_endpoints() {
    let local = Service { internal_policy: TrafficPolicy::Local, ..web() };
    let mut world = IpvsWorld::new(vec![exists(local), two()]);
    assert_eq!(world.balancers(FrontendKind::ClusterIp), [Balancer::Ipvs(key("10.96.0.10"))]);
    let other = Balancer::Nft(NotOnIpvs::OtherEndpoints);
    assert_eq!(world.balancers(FrontendKind::NodePort), [other]);
    let changes = world.tell(vec![exists(web())]);
    assert_eq!(world.balancers(FrontendKind::NodePort), [Balancer::Ipvs(key("10.96.0.10"))]);
    assert_eq!(changes.frontends.len(), 4, "the others are lowered otherwise");
}

#[test]
fn node_ports_on_loopback_are_balanced_by_nftables() {
    let node_ports = NodePortAddresses::All { localhost: true };
    let policy = Policy { node_ports, ..policy() };
    let world = IpvsWorld::with(policy, vec![exists(web()), two()]);
    assert_eq!(world.balancers(FrontendKind::NodePort), [Balancer::Nft(NotOnIpvs::Loopback)]);
    assert_eq!(world.balancers(FrontendKind::ExternalIp), [Balancer::Ipvs(key("10.96.0.10"))]);
}

#[test]
fn who_is_not_selected_drains_and_who_is_gone_is_removed() {
    let mut world = IpvsWorld::new(vec![exists(web()), two()]);
    let rest = vec![draining("10.0.0.1", Some(HERE)), endpoint("10.0.0.2", Some(AWAY))];
    let changes = world.tell(vec![endpoints("web", rest)]);
    let named = |shares: &[(&str, Share)]| -> Vec<(String, Share)> {
        shares.iter().map(|(at, share)| ((*at).to_owned(), *share)).collect()
    };
    let expected = named(&[("10.0.0.1", Share::Draining), ("10.0.0.2", Share::Ready)]);
    assert_eq!(world.shares("10.96.0.10"), expected);
    assert_eq!(Vec::from_iter(changes.virtual_servers), [key("10.96.0.10")]);
    world.tell(vec![endpoints("web", vec![endpoint("10.0.0.2", Some(AWAY))])]);
    assert_eq!(world.shares("10.96.0.10"), named(&[("10.0.0.2", Share::Ready)]));
}

#[test]
fn nothing_drains_where_weight_0_would_refuse_clients_or_keep_flows() {
    let all = vec![draining("10.0.0.1", Some(HERE)), endpoint("10.0.0.2", Some(AWAY))];
    let dh = RequestedScheduler { name: Some("dh".into()), flags: None };
    let dh = Service { scheduler: Some(dh.into()), ..web() };
    let world = IpvsWorld::new(vec![exists(dh), endpoints("web", all.clone())]);
    assert_eq!(world.shares("10.96.0.10").len(), 1);
    let mut slice = slice("web", "web", all);
    slice.ports[0].protocol = Protocol::Udp;
    let ports = vec![service_port("http", Protocol::Udp, 80, None)];
    let udp = Service { ports, ..service("web", &["10.96.0.10"]) };
    let world = IpvsWorld::new(vec![exists(udp), Event::Slice(slice.name.clone(), Some(slice))]);
    let (_, server) = world.ipvs().servers().first_key_value().expect("it is carried");
    assert_eq!(server.endpoints.len(), 1);
}

#[test]
fn an_endpoint_ends_when_the_plugin_says_that_its_pod_does() {
    let both = || Event::Pods(pods(1, &[("10.0.0.1", "veth1"), ("10.0.0.9", "veth9")]));
    let mut world = IpvsWorld::new(vec![exists(web()), two(), both()]);
    assert_eq!(world.shares("10.96.0.10").len(), 2);
    let changes = world.tell(vec![Event::Pods(pods(2, &[("10.0.0.9", "veth9")]))]);
    assert_eq!(Vec::from_iter(changes.virtual_servers), [key("10.96.0.10")]);
    assert_eq!(world.shares("10.96.0.10"), [("10.0.0.2".to_owned(), Share::Ready)]);
    world.tell(vec![both()]);
    assert_eq!(world.shares("10.96.0.10").len(), 2, "the address has a pod again");
}

#[test]
fn an_address_that_another_nodes_pod_has_got_is_served() {
    let mut world = IpvsWorld::new(vec![
        exists(web()),
        two(),
        Event::Pods(pods(1, &[("10.0.0.1", "veth1"), ("10.0.0.9", "veth9")])),
    ]);
    world.tell(vec![Event::Pods(pods(2, &[("10.0.0.9", "veth9")]))]);
    assert_eq!(world.shares("10.96.0.10").len(), 1);
    let elsewhere = vec![endpoint("10.0.0.1", Some(AWAY)), endpoint("10.0.0.2", Some(AWAY))];
    world.tell(vec![endpoints("web", elsewhere)]);
    let all = ["10.0.0.1", "10.0.0.2"].map(|at| (at.to_owned(), Share::Ready));
    assert_eq!(world.shares("10.96.0.10"), all);
}

#[test]
fn a_service_chooses_its_scheduler() {
    let mh = Scheduler { method: Method::Mh, fallback: true, hashes_port: true };
    // Scheduler and flags that are asked for, the scheduler, and the remarks.
    type SchedulerCase =
        (Option<&'static str>, Option<&'static str>, &'static str, &'static [&'static str]);
    let cases: [SchedulerCase; 8] = [
        (None, None, "mh (mh-fallback, mh-port)", &[]),
        (Some("wlc"), None, "wlc", &[]),
        (Some("sh"), None, "sh (sh-fallback)", &[]),
        (Some("mh"), Some("flag-1, flag-2"), "mh (mh-fallback, mh-port)", &[]),
        (Some("mh"), Some(""), "mh (mh-fallback)", &[]),
        (Some("mh"), Some("flag-3"), "mh (mh-fallback)", &["flag \"flag-3\""]),
        (Some("rr"), Some("flag-1"), "rr", &["flag \"flag-1\""]),
        (Some("fastest"), None, "rr", &["scheduler \"fastest\""]),
    ];
    for (name, flags, expected, remarks) in cases {
        let requested =
            RequestedScheduler { name: name.map(Into::into), flags: flags.map(Into::into) };
        let web = Service { scheduler: Some(requested.into()), ..web() };
        let world = IpvsWorld::with(Policy { scheduler: mh, ..policy() }, vec![exists(web), two()]);
        let server = &world.ipvs().servers()[&key("10.96.0.10")];
        assert_eq!(server.scheduler.to_string(), expected, "{name:?} {flags:?}");
        let services = world.planner.plan().services().expect("all is listed");
        let named: Vec<String> = services.remarks().map(Remark::to_string).collect();
        assert_eq!(named.len(), remarks.len(), "{named:?}");
        assert!(named.iter().zip(remarks).all(|(text, part)| text.contains(part)), "{named:?}");
    }
}

proptest! {
    /// In whatever order services come and go, balancers and servers are as after a fresh start,
    /// and every difference is reported.
    #[test]
    fn servers_do_not_depend_on_the_way(
        steps in proptest::collection::vec((0_u8..4, 0_u8..6), 1..30),
    ) {
        let mut world = IpvsWorld::new(Vec::new());
        let mut last = std::collections::BTreeMap::new();
        for (name, variant) in steps {
            let event = variant_of(name, variant);
            last.insert((name, variant > 2), event.clone());
            let before = world.ipvs().servers().clone();
            let changes = world.tell(vec![event]);
            let after = world.ipvs().servers();
            let keys = before.keys().chain(after.keys());
            let differ: BTreeSet<FrontendKey> =
                keys.filter(|key| before.get(key) != after.get(key)).copied().collect();
            prop_assert_eq!(&differ, &changes.virtual_servers);
        }
        let fresh = IpvsWorld::new(last.into_values().collect());
        prop_assert_eq!(world.everything(), fresh.everything());
    }
}

/// Services of which some have one cluster IP or one endpoint.
fn variant_of(name: u8, variant: u8) -> Event {
    let text = format!("s{name}");
    let own = format!("10.96.0.{}", name / 2);
    let created = ["", "2025-01-01T00:00:00Z", "2024-01-01T00:00:00Z", ""][usize::from(name)];
    let service = Service { created: created.into(), ..service(&text, &[&own]) };
    let one = |number: u8| endpoint(&format!("10.0.0.{number}"), Some(HERE));
    match variant {
        0 => Event::Service(service.name, None),
        1 => exists(service),
        2 => exists(Service { affinity: SessionAffinity::ClientIp { seconds: 9 }, ..service }),
        3 => endpoints(&text, vec![one(name), one(name + 1)]),
        4 => endpoints(&text, vec![one(name), draining("10.0.0.9", None)]),
        _ => endpoints(&text, Vec::new()),
    }
}
