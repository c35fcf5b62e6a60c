use std::collections::{BTreeMap, BTreeSet};

use crate::fixture::*;
use crate::{HealthCheck, HealthChecks, HealthPorts};
use denizen_fixture::*;
use denizen_model::{Family, Protocol, Service, ServiceName, Slice, SlicePort, TrafficPolicy};

const PORT: u16 = 32100;

fn balanced(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        external_policy: TrafficPolicy::Local,
        health_check_node_port: Some(port(PORT)),
        ..service(name, cluster_ips)
    }
}

fn counted(service: &Service, slices: &[Slice]) -> Option<[Option<usize>; 2]> {
    let slices: Vec<&Slice> = slices.iter().collect();
    let check = HealthCheck::of(&settings(), None, service, &slices)?;
    Some(Family::BOTH.map(|family| check.local_endpoints.get(&family).copied()))
}

#[test]
fn addresses_on_this_node_count_that_are_ready() {
    let web = balanced("web", &["10.96.0.1", "fd00::1"]);
    let here = |ip: &str| endpoint(ip, Some(HERE));
    let v4 = |endpoints| vec![slice("a", "web", endpoints)];
    let cases = [
        ("nobody", vec![], [0, 0]),
        ("two", v4(vec![here("10.1.0.1"), here("10.1.0.2")]), [2, 0]),
        (
            "elsewhere",
            v4(vec![endpoint("10.1.0.1", Some(AWAY)), endpoint("10.1.0.2", None)]),
            [0, 0],
        ),
        ("draining", v4(vec![draining("10.1.0.1", Some(HERE))]), [0, 0]),
        ("down", v4(vec![down("10.1.0.1", Some(HERE)), here("10.1.0.2")]), [1, 0]),
        ("IPv6", vec![slice("b", "web", vec![here("fd00:1::1")])], [0, 1]),
        (
            "one in two slices",
            vec![
                slice("a", "web", vec![here("10.1.0.1")]),
                slice("b", "web", vec![here("10.1.0.1")]),
            ],
            [1, 0],
        ),
        (
            "terminating in one slice, running in another",
            vec![
                slice("a", "web", vec![draining("10.1.0.1", Some(HERE))]),
                slice("b", "web", vec![here("10.1.0.1")]),
            ],
            [1, 0],
        ),
    ];
    for (name, slices, expected) in cases {
        assert_eq!(counted(&web, &slices), Some(expected.map(Some)), "{name}");
    }
}

#[test]
fn an_address_counts_once_whatever_its_ports() {
    let two_ports = Service {
        ports: vec![
            service_port("http", Protocol::Tcp, 80, None),
            service_port("more", Protocol::Tcp, 81, None),
        ],
        ..balanced("web", &["10.96.0.1"])
    };
    let mut both = slice("a", "web", vec![endpoint("10.1.0.1", Some(HERE))]);
    both.ports.push(SlicePort { name: "more".into(), protocol: Protocol::Tcp, port: port(8081) });
    assert_eq!(counted(&two_ports, &[both]), Some([Some(1), None]));
}

#[test]
fn only_policy_local_has_a_health_check() {
    let cluster =
        Service { external_policy: TrafficPolicy::Cluster, ..balanced("web", &["10.96.0.1"]) };
    assert_eq!(counted(&cluster, &[]), None);
    assert_eq!(counted(&service("web", &["10.96.0.1"]), &[]), None);
}

fn check(name: &str, created: &str, cluster_ips: &[&str]) -> HealthCheck {
    let service = Service { created: created.into(), ..balanced(name, cluster_ips) };
    HealthCheck::of(&settings(), None, &service, &[]).unwrap()
}

#[test]
fn of_two_the_older_has_the_port_in_whatever_order_they_came() {
    let named = |name: &str| ServiceName::new("default", name);
    let (new, old, undated) = (
        check("a", "2026-02-01T00:00:00Z", &["10.96.0.1"]),
        check("b", "2026-01-01T00:00:00Z", &["10.96.0.2"]),
        check("0", "", &["10.96.0.3"]),
    );
    for order in [[&new, &old, &undated], [&undated, &new, &old], [&old, &undated, &new]] {
        let mut checks = HealthChecks::default();
        for check in order {
            assert!(checks.put(&check.service, Some(check.clone())));
            assert!(!checks.put(&check.service, Some(check.clone())), "nothing new");
        }
        let (ports, lost) = checks.by_port();
        assert_eq!(ports, BTreeMap::from([(port(PORT), old.clone())]));
        let losers: Vec<_> =
            lost.into_iter().map(|(check, winner)| (check.service, winner)).collect();
        assert_eq!(losers, [(named("a"), named("b")), (named("0"), named("b"))]);
        checks.put(&named("b"), None);
        assert_eq!(checks.by_port().0[&port(PORT)], new);
    }
}

#[test]
fn health_checks_listen_in_the_families_of_the_service() {
    let addresses = ["192.168.0.2", "2001:db8::1"].map(ip).to_vec();
    let cases = [
        (&["10.96.0.1"][..], &["192.168.0.2:32100"][..]),
        (&["fd00::1"], &["[2001:db8::1]:32100"]),
        (&["10.96.0.1", "fd00::1"], &["192.168.0.2:32100", "[2001:db8::1]:32100"]),
    ];
    for (cluster_ips, expected) in cases {
        let ports = HealthPorts {
            addresses: addresses.clone(),
            checks: BTreeMap::from([(port(PORT), check("web", "", cluster_ips))]),
        };
        let sockets: Vec<_> = ports.sockets().map(|at| at.to_string()).collect();
        assert_eq!(sockets, expected);
    }
}

#[test]
fn health_checks_listen_at_the_load_balancers_addresses() {
    let web = Service {
        load_balancer_ips: ["203.0.113.9", "198.51.100.9", "2001:db8::9"].map(ip).to_vec(),
        ..balanced("web", &["10.96.0.1", "fd00::1"])
    };
    let mut settings = settings();
    settings.permitted.load_balancer_ips = vec![range("203.0.113.0/24"), range("2001:db8::/32")];
    let check = HealthCheck::of(&settings, None, &web, &[]).unwrap();
    let cases: [(&[&str], &[&str]); 2] = [
        (
            &["192.168.0.2", "fd00:1::2"],
            &["192.168.0.2:32100", "203.0.113.9:32100", "[fd00:1::2]:32100", "[2001:db8::9]:32100"],
        ),
        (&["192.168.0.2", "::"], &["192.168.0.2:32100", "203.0.113.9:32100", "[::]:32100"]),
    ];
    for (addresses, expected) in cases {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        let checks = BTreeMap::from([(port(PORT), check.clone())]);
        let found: BTreeSet<_> = HealthPorts { addresses, checks }.sockets().collect();
        assert_eq!(found, expected.iter().map(|at| at.parse().unwrap()).collect());
    }
}
