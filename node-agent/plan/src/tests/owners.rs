use std::net::IpAddr;

use crate::fixture::*;
use crate::{FrontendKind, Planner, Remark, ServicePlan};
use denizen_fixture::*;
use denizen_model::{Event, Listing, NodeAddress, Protocol, Service, SourceRanges};

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
        ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
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
                "Service default/web: spec.loadBalancerSourceRanges has no range of {open}: \
                 everybody may use its {open} load balancer IPs"
            )
        };
        assert_eq!(words, expected, "{ranges:?}");
        let changed = Service { created: "2026-01-01T00:00:00Z".into(), ..service };
        assert_eq!(world.tell(vec![event(changed)]), [], "{ranges:?}: reported once");
    }
}

/// A service with this many ports, external IPs and load balancer IPs, in turn of both families.
fn large(ports: u16, external: u16, balanced: u16) -> Service {
    let addresses = |count: u16, v4: [u8; 2], v6: u16| {
        let address = |n: u16| match n % 2 {
            0 => IpAddr::from([v4[0], v4[1], (n >> 8) as u8, n as u8]),
            _ => IpAddr::from([0x2001, 0xdb8, v6, 0, 0, 0, 0, n]),
        };
        (0..count).map(address).collect::<Vec<_>>()
    };
    let port = |n: u16| service_port(&format!("p{n}"), Protocol::Tcp, n, None);
    Service {
        ports: (1..=ports).map(port).collect(),
        external_ips: addresses(external, [198, 18], 1),
        load_balancer_ips: addresses(balanced, [203, 0], 2),
        ..service("large", &["10.96.0.10", "fd00:96::10"])
    }
}

#[test]
fn one_service_has_a_limited_number_of_frontends() {
    // Frontends at cluster IPs, load balancer IPs and external IPs.
    let cases = [
        ("one port, many addresses", large(1, 4000, 4000), [2, 4000, 4000]),
        ("many ports", large(2000, 2, 2), [4000, 4000, 4000]),
        ("very many ports", large(20_000, 2, 2), [40_000, 40_000, 40_000]),
        ("both", large(400, 400, 0), [800, 0, 8000]),
        ("load balancer IPs come first", large(400, 400, 15), [800, 6000, 2000]),
        ("only load balancer IPs", large(400, 400, 400), [800, 8000, 0]),
        ("a thousand of each", large(1000, 1000, 1000), [2000, 8000, 0]),
    ];
    for (name, large, expected) in cases {
        let addresses = large.external_ips.len() + large.load_balancer_ips.len();
        let ports = large.ports.len();
        let (world, remarks) = RemarksWorld::of(vec![event(large)]);
        let kinds =
            [FrontendKind::ClusterIp, FrontendKind::LoadBalancerIp, FrontendKind::ExternalIp];
        let count = |kind| world.plan().frontends().filter(|f| f.kind == kind).count();
        assert_eq!(kinds.map(count), expected, "{name}");
        let served = (expected[1] + expected[2]) / ports;
        let left_out = match &remarks[..] {
            [] => 0,
            [Remark::TooManyAddresses { left_out, served: said, .. }] if *said == served => {
                assert!(left_out.iter().all(|ip| world.plan().left_out(*ip).is_some()), "{name}");
                left_out.len()
            }
            others => panic!("{name}: {others:?}"),
        };
        assert_eq!(served + left_out, addresses, "{name}");
    }
}

#[test]
fn addresses_that_were_too_many_are_served_when_there_is_room() {
    let (mut world, remarks) = RemarksWorld::of(vec![event(large(400, 400, 0))]);
    assert_eq!(remarks.len(), 1);
    let text = remarks[0].to_string();
    assert!(text.ends_with("20 are served, 380 are not"), "{text}");
    assert!(remarks[0].is_error());
    assert_eq!(world.tell(vec![event(large(400, 20, 0))]), []);
    assert_eq!(world.plan().remarks().count(), 0);
    assert_eq!(world.plan().frontends().count(), 800 + 8000);
    assert_eq!(world.tell(vec![event(large(1, 400, 0))]), []);
    assert_eq!(world.plan().frontends().count(), 2 + 400);
}
