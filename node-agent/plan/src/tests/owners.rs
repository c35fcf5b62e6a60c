use crate::fixture::*;
use crate::{FrontendKind, Planner, Remark, ServicePlan};
use denizen_fixture::*;
use denizen_model::{Event, Listing, NodeAddress, Service, SourceRanges};

struct RemarksWorld {
    planner: Planner,
}

impl RemarksWorld {
    fn of(events: Vec<Event>) -> (Self, Vec<Remark>) {
        let mut world = Self { planner: Planner::new(policy(), CAPABLE) };
        let listed = Listing::SERVICES.map(Event::Listed);
        let remarks = world.tell(events.into_iter().chain(listed).collect());
        (world, remarks)
    }

    /// The remarks that are new.
    fn tell(&mut self, events: Vec<Event>) -> Vec<Remark> {
        self.planner.apply(events);
        self.planner.update().remarks
    }

    fn plan(&self) -> &ServicePlan {
        self.planner.plan().services().expect("all is listed")
    }

    /// Addresses and kinds of the frontends.
    fn frontends(&self) -> Vec<String> {
        let frontends = self.plan().frontends();
        let mut all: Vec<String> = frontends.map(|f| format!("{} {}", f.kind, f.key)).collect();
        all.sort();
        all
    }

    fn ranges(&self) -> usize {
        self.planner.plan().node().service_ranges.len()
    }
}

fn event(service: Service) -> Event {
    Event::Service(service.name.clone(), Some(service))
}

/// A service with these addresses everywhere.
fn everywhere(at: &str) -> Service {
    Service {
        ports: vec![service_port("http", denizen_model::Protocol::Tcp, 80, Some(30080))],
        external_ips: vec![ip(at)],
        load_balancer_ips: vec![ip(at)],
        ..service("web", &[at])
    }
}

#[test]
fn a_cluster_ip_never_takes_one_of_the_nodes_own_addresses() {
    let own = "192.168.0.2";
    let on_link = || Event::Addresses(vec![address(own, "eth0")]);
    let named = || Event::Node(Some(node(None, &[own], &[])));
    for is in [on_link(), named()] {
        let (world, remarks) = RemarksWorld::of(vec![is, event(service("web", &[own]))]);
        let expected =
            Remark::OwnAddress { service: service("web", &[own]).name, address: ip(own) };
        assert_eq!(remarks, [expected]);
        assert!(remarks[0].to_string().contains("Service default/web"), "{}", remarks[0]);
        assert_eq!(world.frontends(), [] as [&str; 0]);
    }
}

#[test]
fn load_balancer_ips_and_external_ips_may_be_the_nodes_own() {
    let own = "192.168.0.2";
    let web = Service { cluster_ips: vec![ip("10.96.0.10")], ..everywhere(own) };
    let (world, remarks) =
        RemarksWorld::of(vec![Event::Addresses(vec![address(own, "eth0")]), event(web)]);
    assert_eq!(remarks, []);
    let kinds: Vec<FrontendKind> = world.plan().frontends().map(|f| f.kind).collect();
    assert!(kinds.contains(&FrontendKind::LoadBalancerIp), "{kinds:?}");
}

#[test]
fn the_nodes_addresses_are_followed() {
    let (mut world, _) = RemarksWorld::of(vec![event(service("web", &["192.168.0.2"]))]);
    assert_eq!(world.frontends(), ["cluster IP 192.168.0.2:80/tcp"]);
    let here = || Event::Addresses(vec![address("192.168.0.2", "eth0")]);
    assert_eq!(world.tell(vec![here()]).len(), 1);
    assert_eq!(world.frontends(), [] as [&str; 0]);
    assert_eq!(world.tell(vec![event(service("web", &["192.168.0.2"]))]), [], "reported once");
    assert_eq!(world.plan().remarks().count(), 1, "while it lasts");
    world.tell(vec![Event::Addresses(Vec::new())]);
    assert_eq!(world.frontends(), ["cluster IP 192.168.0.2:80/tcp"]);
    assert_eq!(world.plan().remarks().count(), 0);
}

/// kube-proxy's ipvs mode has every cluster IP on a dummy device, NodeLocal DNSCache that of the
/// DNS service.
#[test]
fn addresses_on_dummy_devices_are_not_the_nodes_own() {
    let on_dummy = NodeAddress { dummy: true, ..address("10.96.0.10", "kube-ipvs0") };
    let (world, remarks) = RemarksWorld::of(vec![
        Event::Addresses(vec![on_dummy]),
        Event::ServiceCidr("one".into(), Some(vec![range("10.96.0.0/16")])),
        event(service("dns", &["10.96.0.10"])),
    ]);
    assert_eq!(remarks, []);
    assert_eq!(world.frontends(), ["cluster IP 10.96.0.10:80/tcp"]);
    assert_eq!(world.ranges(), 1);
}

#[test]
fn a_range_of_cluster_ips_with_the_nodes_own_address_in_it_is_left_alone() {
    let (mut world, remarks) = RemarksWorld::of(vec![
        Event::Addresses(vec![address("10.96.3.4", "eth0")]),
        Event::ServiceCidr("one".into(), Some(vec![range("10.96.0.0/16"), range("fd00::/112")])),
    ]);
    let text = "ServiceCIDR 10.96.0.0/16 has this node's own address 10.96.3.4 in it";
    assert_eq!(remarks.len(), 1);
    assert!(remarks[0].to_string().starts_with(text), "{}", remarks[0]);
    assert_eq!(world.ranges(), 1);
    world.tell(vec![Event::Addresses(Vec::new())]);
    assert_eq!((world.ranges(), world.plan().remarks().count()), (2, 0));
}

#[test]
fn a_family_that_the_source_ranges_leave_open_is_named_once() {
    let dual = |ranges: &[&str], unreadable| Service {
        load_balancer_ips: vec![ip("198.51.100.9"), ip("2001:db8::9")],
        source_ranges: SourceRanges {
            ranges: ranges.iter().map(|text| range(text)).collect(),
            unreadable,
        },
        ..service("web", &["10.96.0.10", "fd00::10"])
    };
    let cases: [(&[&str], bool, &str); 6] = [
        (&[], false, ""),
        (&["203.0.113.0/25"], false, "IPv6"),
        (&["fd00::/8"], false, "IPv4"),
        (&["203.0.113.0/25", "fd00::/8"], false, ""),
        (&["0.0.0.0/0"], false, ""),
        (&["203.0.113.0/25"], true, ""),
    ];
    for (ranges, unreadable, open) in cases {
        let service = dual(ranges, unreadable);
        let (mut world, remarks) = RemarksWorld::of(vec![event(service.clone())]);
        let words: String = remarks.iter().map(Remark::to_string).collect();
        let expected = if open.is_empty() {
            String::new()
        } else {
            format!(
                "Service default/web: spec.loadBalancerSourceRanges has no range of {open}: everybody may use \
                 its {open} load balancer IPs"
            )
        };
        assert_eq!(words, expected, "{ranges:?}");
        let changed = Service { created: "2026-01-01T00:00:00Z".into(), ..service };
        assert_eq!(world.tell(vec![event(changed)]), [], "{ranges:?}: reported once");
    }
}
