//! What is announced, and why the rest is not.

mod claims;
mod dropped;
mod histories;
mod newest;

use super::*;
use crate::fixture::*;
use crate::{FrontendAddress, FrontendKey, PermittedRanges, Planner, Policy, Settings};
use denizen_fixture::*;
use denizen_model::{
    Event, Listing, Node, OtherNode, PodSet, Service, Slice, SliceEndpoint, TrafficPolicy,
};

const VIP: &str = "203.0.113.7";

fn announce() -> AnnounceSettings {
    AnnounceSettings {
        pods: AnnouncedPods::Auto,
        kinds: [FrontendKind::ClusterIp, FrontendKind::LoadBalancerIp, FrontendKind::ExternalIp]
            .into(),
        ranges: vec![range("203.0.113.0/24"), range("2001:db8:5::/64")],
        most: 2000,
        most_pods: 512,
        ignores_exclusion: false,
        drain_taints: vec!["example.com/away".to_owned()],
        peers: BTreeSet::new(),
    }
}

/// A state of the world, from which everything is decided.
#[derive(Debug, Clone)]
struct AnnounceWorld {
    settings: AnnounceSettings,
    node: Option<Node>,
    others: Vec<(&'static str, OtherNode)>,
    services: Vec<Service>,
    slices: Vec<Slice>,
    pods: PodSet,
    surveyed: NetworkSurvey,
    recorded: BTreeMap<IpAddr, Recorded>,
    drain: Drain,
    rejected: Option<FrontendKey>,
}

/// One service at [`VIP`], with an endpoint here and one elsewhere.
fn world() -> AnnounceWorld {
    AnnounceWorld {
        settings: announce(),
        node: Some(node(None, &["192.0.2.1"], &["10.1.1.0/24"])),
        others: vec![("node-2", other("192.0.2.2", "10.1.2.0/24"))],
        services: vec![web()],
        slices: vec![slice("web", "web", vec![here(), away()])],
        pods: pods(1, &[]),
        surveyed: NetworkSurvey {
            gateways: [ip("192.0.2.254")].into(),
            ..NetworkSurvey::default()
        },
        recorded: BTreeMap::new(),
        drain: Drain::No,
        rejected: None,
    }
}

fn web() -> Service {
    Service { load_balancer_ips: vec![ip(VIP)], ..service("web", &["10.96.0.10"]) }
}

fn local() -> Service {
    Service { external_policy: TrafficPolicy::Local, ..web() }
}

fn at(address: &str) -> Service {
    Service { external_ips: vec![ip(address)], ..service("web", &["10.96.0.10"]) }
}

fn here() -> SliceEndpoint {
    endpoint("10.1.1.5", Some(HERE))
}

fn away() -> SliceEndpoint {
    endpoint("10.1.2.5", Some(AWAY))
}

fn other(address: &str, range_of: &str) -> OtherNode {
    OtherNode {
        created: "".into(),
        internal: vec![ip(address)],
        external: Vec::new(),
        pod_cidrs: vec![range(range_of)],
        labels: denizen_model::Labels::default(),
    }
}

impl AnnounceWorld {
    fn events(&self) -> Vec<Event> {
        let cidr = Event::ServiceCidr("kubernetes".to_owned(), Some(vec![range("10.96.0.0/16")]));
        let node = Event::Node(self.node.clone());
        let others = self.others.iter();
        let others =
            others.map(|(name, node)| Event::OtherNode((*name).into(), Some(node.clone())));
        let services = self.services.iter();
        let services =
            services.map(|service| Event::Service(service.name.clone(), Some(service.clone())));
        let slices = self.slices.iter();
        let slices = slices.map(|slice| Event::Slice(slice.name.clone(), Some(slice.clone())));
        let addresses = Event::Addresses(vec![address("192.0.2.1", "eth0")]);
        let events = [cidr, node, addresses, Event::Pods(self.pods.clone())];
        events.into_iter().chain(others).chain(services).chain(slices).collect()
    }

    fn planner(&self) -> Planner {
        self.planner_of(policy())
    }

    fn planner_of(&self, policy: Policy) -> Planner {
        let mut planner = Planner::new(policy, CAPABLE);
        planner.apply(self.events());
        planner.apply(Listing::SERVICES.map(Event::Listed).into());
        planner.update();
        planner
    }

    fn decide(&self) -> Announcements {
        self.decide_by(&self.planner())
    }

    fn decide_by(&self, planner: &Planner) -> Announcements {
        let mut decided = AnnouncePlan::default();
        self.decide_again(planner, &mut decided, None);
        decided.decided().cloned().unwrap_or_default()
    }

    /// Decides anew about these services, or about all.
    fn decide_again(
        &self,
        planner: &Planner,
        decided: &mut AnnouncePlan,
        concerned: Option<&BTreeSet<ServiceName>>,
    ) -> DecisionChanges {
        let model = planner.model();
        let world = model.snapshot().expect("all is listed");
        let by = AnnounceInputs {
            settings: &self.settings,
            plan: planner.plan(),
            world,
            nodes: &model.nodes().expect("all nodes are listed"),
            is_gone: world.node().is_none() && !model.is_node_eligible(),
            drain: self.drain,
            surveyed: &self.surveyed,
            recorded: &self.recorded,
            rejects: self.rejected.is_some(),
            is_rejected: &|frontend| Some(frontend.key) == self.rejected,
        };
        decided.update(&by, concerned)
    }

    /// The metric with which an address is announced, or the reason why it is not.
    fn decision(&self, address: &str) -> Result<u32, &'static str> {
        let decided = self.decide();
        match decided.about(ip(address)) {
            Some((_, Ok(announcement))) => Ok(announcement.metric()),
            Some((_, Err(withheld))) => Err(withheld.reason.code()),
            None => Err("unknown"),
        }
    }
}

/// The decision about [`VIP`] in a changed world.
fn vip(change: impl FnOnce(&mut AnnounceWorld)) -> Result<u32, &'static str> {
    let mut world = world();
    change(&mut world);
    world.decision(VIP)
}

#[test]
fn an_address_is_announced_exactly_while_this_node_may_serve_it() {
    let unready = || SliceEndpoint { state: denizen_model::EndpointState::Unready, ..here() };
    let slices = |endpoints: Vec<SliceEndpoint>| vec![slice("web", "web", endpoints)];
    let with = |service: Service, endpoints: Vec<SliceEndpoint>| {
        vip(|world| (world.services, world.slices) = (vec![service], slices(endpoints)))
    };
    assert_eq!(with(web(), vec![away()]), Ok(105), "Cluster: from everywhere");
    assert_eq!(with(web(), vec![]), Err("no-endpoint"));
    let leaving = vec![draining("10.1.1.5", Some(HERE)), unready()];
    assert_eq!(with(web(), leaving.clone()), Err("no-endpoint"), "nobody is ready");
    assert_eq!(with(local(), vec![here(), away()]), Ok(105));
    let moved = vec![leaving[0].clone(), leaving[1].clone(), away()];
    assert_eq!(with(local(), moved), Err("no-ready-local-endpoint"), "rules still serve");
    assert_eq!(with(local(), vec![]), Err("no-endpoint"));
    assert_eq!(with(Service { opts_out: true, ..web() }, vec![here()]), Err("opted-out"));
    let proxied = Service { load_balancer_ips: vec![], proxied_ips: vec![ip(VIP)], ..web() };
    assert_eq!(with(proxied.clone(), vec![here()]), Err("ip-mode-proxy"));
    let beside = Service { external_ips: vec![ip(VIP)], ..proxied };
    assert_eq!(with(beside, vec![here()]), Ok(104), "the same address in another field");
    assert_eq!(vip(|world| world.slices.clear()), Err("no-endpoint"), "without a slice");
    assert_eq!(vip(|world| world.services.clear()), Err("unknown"), "without the service");
    // Of another port than the service has.
    let mut other_port = slice("web", "web", vec![here()]);
    other_port.ports[0].name = "other".into();
    assert_eq!(vip(|world| world.slices = vec![other_port]), Err("no-endpoint"));
    let key = FrontendKey {
        address: FrontendAddress::Ip(ip(VIP)),
        protocol: denizen_model::Protocol::Tcp,
        port: port(80),
    };
    assert_eq!(vip(|world| world.rejected = Some(key)), Err("rules-refused"));
}

#[test]
fn cluster_ips_follow_the_internal_policy() {
    let decision = |service: Service, endpoints: Vec<SliceEndpoint>| {
        let slices = vec![slice("web", "web", endpoints)];
        AnnounceWorld { services: vec![service], slices, ..world() }.decision("10.96.0.10")
    };
    assert_eq!(decision(web(), vec![away()]), Ok(103));
    let inside = Service { internal_policy: TrafficPolicy::Local, ..web() };
    assert_eq!(decision(inside.clone(), vec![away()]), Err("no-ready-local-endpoint"));
    assert_eq!(decision(inside, vec![here()]), Ok(103));
    // The service ranges are known, and do not contain it.
    let foreign = AnnounceWorld { services: vec![service("web", &["172.30.0.1"])], ..world() };
    assert_eq!(foreign.decision("172.30.0.1"), Err("outside-ranges"));
}

#[test]
fn only_what_was_asked_for_is_announced() {
    let without =
        |kind: FrontendKind| vip(|world| world.settings.kinds.retain(|other| *other != kind));
    assert_eq!(without(FrontendKind::LoadBalancerIp), Err("not-chosen"));
    assert_eq!(without(FrontendKind::ExternalIp), Ok(105));
    let ranges = |text: &str| vip(|world| world.settings.ranges = vec![range(text)]);
    assert_eq!(ranges("203.0.113.8/29"), Err("outside-ranges"));
    assert_eq!(ranges("203.0.113.0/29"), Ok(105));
    assert_eq!(world().decision("198.51.100.1"), Err("unknown"));
}

#[test]
fn an_address_that_is_not_served_is_not_announced() {
    let decision = |permitted: &str| {
        let ranges = vec![range(permitted)];
        let permitted = PermittedRanges { load_balancer_ips: ranges, ..PermittedRanges::default() };
        let settings = Settings { permitted, ..settings() };
        let world = world();
        let decided = world.decide_by(&world.planner_of(Policy { settings, ..policy() }));
        match decided.about(ip(VIP)) {
            Some((_, Err(withheld))) => withheld.reason.code(),
            Some((_, Ok(_))) => "announced",
            None => "unknown",
        }
    };
    assert_eq!(decision("203.0.113.8/29"), "not-permitted");
    assert_eq!(decision("203.0.113.0/29"), "announced");
}

/// `spec.externalIPs` is any user's field: whatever they write, nobody's packets come here.
#[test]
fn addresses_of_others_are_never_announced() {
    let api = Slice {
        service: ServiceName::new("default", "kubernetes"),
        ..slice("api", "kubernetes", vec![endpoint("198.51.100.6", None)])
    };
    let decision = |address: &str| {
        let mut settings = announce();
        settings.ranges = vec![range("0.0.0.0/0"), range("::/0")];
        let slices = vec![slice("web", "web", vec![here()]), api.clone()];
        AnnounceWorld { settings, services: vec![at(address)], slices, ..world() }.decision(address)
    };
    let cases = [
        ("192.0.2.1", "node-address"),
        ("192.0.2.2", "node-address"),
        ("192.0.2.254", "forbidden"),
        ("198.51.100.6", "forbidden"),
        ("10.1.1.9", "forbidden"),
        ("10.1.2.9", "forbidden"),
        ("169.254.1.1", "forbidden"),
        ("127.0.0.1", "forbidden"),
        ("240.0.0.1", "forbidden"),
    ];
    for (address, reason) in cases {
        assert_eq!(decision(address), Err(reason), "{address}");
    }
    assert_eq!(decision("198.51.100.7"), Ok(104), "nobody's");
}

#[test]
fn a_shared_address_stays_while_any_of_its_services_qualifies() {
    let dns = Service {
        load_balancer_ips: vec![ip(VIP)],
        ports: vec![service_port("http", denizen_model::Protocol::Udp, 53, None)],
        ..service("dns", &["10.96.0.11"])
    };
    let both = |of_dns: Vec<SliceEndpoint>, of_web: Vec<SliceEndpoint>| {
        let mut slices = vec![slice("dns", "dns", of_dns), slice("web", "web", of_web)];
        slices[0].ports[0].protocol = denizen_model::Protocol::Udp;
        vip(|world| (world.services, world.slices) = (vec![dns.clone(), web()], slices))
    };
    assert_eq!(both(vec![away()], vec![away()]), Ok(105));
    assert_eq!(both(vec![], vec![away()]), Ok(105));
    assert_eq!(both(vec![away()], vec![]), Ok(105));
    assert_eq!(both(vec![], vec![]), Err("no-endpoint"));
    // Two claims on one port: the loser's endpoints do not count.
    let late = Service { created: "2026-11-02".into(), ..service("late", &["10.96.0.12"]) };
    let late = Service { load_balancer_ips: vec![ip(VIP)], ..late };
    let first = Service { created: "2026-11-01".into(), ..web() };
    let slices = vec![slice("late", "late", vec![here()])];
    let decision = vip(|world| (world.services, world.slices) = (vec![first, late], slices));
    assert_eq!(decision, Err("no-endpoint"));
}

#[test]
fn excluded_nodes_announce_no_external_addresses() {
    let node = |change: fn(&mut Node)| {
        let mut world = world();
        world.node.as_mut().into_iter().for_each(change);
        world
    };
    let excluded = node(|node| node.excluded = true);
    assert_eq!(excluded.decision(VIP), Err("node-excluded"));
    assert_eq!(excluded.decision("10.96.0.10"), Ok(103));
    let mut anyway = excluded;
    anyway.settings.ignores_exclusion = true;
    assert_eq!(anyway.decision(VIP), Ok(105));
    assert_eq!(node(|node| node.network_unavailable = true).decision(VIP), Err("node-excluded"));
    // A Node object that was there, and is gone. That there never was one means nothing.
    let gone = world();
    let mut planner = gone.planner();
    planner.apply(vec![Event::Node(None)]);
    planner.update();
    let decided = gone.decide_by(&planner);
    let (_, why) = decided.about(ip(VIP)).unwrap();
    assert_eq!(why.unwrap_err().reason, WithheldReason::NodeExcluded(NodeExclusion::Deleted));
    assert_eq!(AnnounceWorld { node: None, ..world() }.decision(VIP), Ok(105));
}

#[test]
fn a_draining_node_is_preferred_less_and_the_only_one_is_not_silenced() {
    let decision =
        |service: Service, drain| AnnounceWorld { services: vec![service], drain, ..world() };
    assert_eq!(decision(web(), Drain::Begun).decision(VIP), Ok(205));
    assert_eq!(decision(web(), Drain::Over).decision(VIP), Err("draining"));
    assert_eq!(decision(local(), Drain::Begun).decision(VIP), Ok(205));
    assert_eq!(decision(local(), Drain::Over).decision(VIP), Ok(205));
    assert_eq!(
        decision(web(), Drain::Over).decision("10.1.1.9"),
        Ok(101),
        "pods have no other way"
    );
    let with = |taint: &str| Node { taints: vec![taint.into()], ..node(None, &[], &[]) };
    assert!(!is_draining(Some(&with("example.com/other")), &announce()));
    assert!(is_draining(Some(&with("example.com/away")), &announce()));
    assert!(is_draining(Some(&Node { leaving: true, ..with("other") }), &announce()));
}

#[test]
fn pods_are_announced_by_ranges_and_outside_them_by_themselves() {
    let mut world = world();
    world.pods = pods(1, &[("10.1.1.5", "v1"), ("10.9.0.5", "v2"), ("10.9.0.6", "v3")]);
    world.surveyed.undelivered = [ip("10.9.0.6")].into();
    let decision = |world: &AnnounceWorld| {
        ["10.1.1.5", "10.1.1.99", "10.9.0.5", "10.9.0.6"].map(|address| world.decision(address))
    };
    assert_eq!(decision(&world), [Ok(101), Ok(101), Ok(102), Err("not-delivered-here")]);
    world.settings.pods = AnnouncedPods::Exact;
    let exact = [Ok(102), Err("not-chosen"), Ok(102), Err("not-delivered-here")];
    assert_eq!(decision(&world), exact);
    world.settings.pods = AnnouncedPods::NodeCidrs;
    assert_eq!(decision(&world), [Ok(101), Ok(101), Err("unknown"), Err("unknown")]);
    world.settings.pods = AnnouncedPods::Off;
    let off = [Err("not-chosen"), Err("not-chosen"), Err("unknown"), Err("unknown")];
    assert_eq!(decision(&world), off);
    let uncovered = |pods: AnnouncedPods| {
        let world =
            AnnounceWorld { settings: AnnounceSettings { pods, ..announce() }, ..world.clone() };
        world.decide().uncovered(&world.pods.pods).map(|pod| pod.ips.clone()).collect::<Vec<_>>()
    };
    let all = ["10.1.1.5", "10.9.0.5", "10.9.0.6"].map(|address| vec![ip(address)]);
    for (pods, from) in [
        (AnnouncedPods::Auto, 2),
        (AnnouncedPods::Exact, 2),
        (AnnouncedPods::NodeCidrs, 1),
        (AnnouncedPods::Off, 0),
    ] {
        assert_eq!(uncovered(pods), all[from..], "{pods:?}");
    }
}

#[test]
fn a_range_that_somebody_else_has_is_not_announced() {
    let decision = |range_of: &str| {
        let node = node(None, &["192.0.2.1"], &[range_of]);
        let node = Some(Node { created: "2026-11-10".into(), ..node });
        let decided = AnnounceWorld { node, services: Vec::new(), ..world() }.decide();
        match decided.withheld.get(&range(range_of)) {
            Some(withheld) => withheld.reason.to_string(),
            None => format!("{:?}", decided.wanted[&range(range_of)].class),
        }
    };
    assert_eq!(decision("10.1.1.0/24"), "PodRange");
    let cases = [
        ("10.1.2.128/25", "it overlaps 10.1.2.0/24 of Node node-2"),
        ("10.0.0.0/8", "it is too large (shorter than /12 or /32)"),
        ("0.0.0.0/0", "these addresses are not routed"),
        ("192.0.2.0/24", "192.0.2.1 is an address of node node-1"),
        ("192.0.2.128/25", "192.0.2.254 is a gateway of this node"),
    ];
    for (range_of, why) in cases {
        assert_eq!(decision(range_of), why, "{range_of}");
    }
}

#[test]
fn of_too_many_the_oldest_stay() {
    let mut world = world();
    world.settings.kinds = [FrontendKind::LoadBalancerIp].into();
    let service = |n: u8| Service {
        load_balancer_ips: vec![ip(&format!("203.0.113.{n}"))],
        created: format!("2026-11-{:02}", 20 - n).into(),
        ..service(&format!("s{n}"), &[&format!("10.96.0.{n}")])
    };
    world.services = (1..=4).map(service).collect();
    world.slices =
        (1..=4).map(|n| slice(&format!("s{n}"), &format!("s{n}"), vec![here()])).collect();
    // The podCIDR and two services.
    world.settings.most = 3;
    let decision = (1..=4).map(|n| world.decision(&format!("203.0.113.{n}"))).collect::<Vec<_>>();
    assert_eq!(decision, [Err("over-limit"), Err("over-limit"), Ok(105), Ok(105)]);
    assert_eq!(world.decide().refused().count(), 2);
    let mut many = world.clone();
    many.pods = pods(1, &[("10.9.0.5", "v1"), ("10.9.0.6", "v2"), ("10.9.0.7", "v3")]);
    let newest = many.pods.pods[0].clone();
    many.pods.pods[0] = denizen_model::LocalPod { added_at: "2026-11-21".into(), ..newest };
    many.settings.most_pods = 2;
    assert_eq!(many.decision("10.9.0.5"), Err("over-limit"));
    assert_eq!(many.decision("10.9.0.7"), Ok(102));
}

#[test]
fn an_address_that_is_left_out_of_too_many_is_not_announced() {
    let mut world = world();
    let port = |n: u16| service_port(&format!("p{n}"), denizen_model::Protocol::Tcp, n, None);
    let many = &mut world.services[0];
    many.ports.extend((1000..1399).map(port));
    many.load_balancer_ips = (1..=30).map(|n| ip(&format!("203.0.113.{n}"))).collect();
    assert!(world.decision("203.0.113.20").is_ok());
    assert_eq!(world.decision("203.0.113.21"), Err("too-many-addresses"));
}
