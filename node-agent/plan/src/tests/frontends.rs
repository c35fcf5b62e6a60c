use crate::fixture::*;
use crate::{Frontend, FrontendAddress, FrontendKind, Masquerade, Outcome, Settings, frontends};
use denizen_fixture::*;
use denizen_model::{Family, Protocol, Service, Slice, SliceEndpoint, SourceRanges, TrafficPolicy};

/// Which endpoints there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    Both,
    HereOnly,
    AwayOnly,
    DrainingHereReadyAway,
    None,
}

impl Mix {
    const ALL: [Self; 5] =
        [Self::Both, Self::HereOnly, Self::AwayOnly, Self::DrainingHereReadyAway, Self::None];

    fn slices(self) -> Vec<Slice> {
        let (here, away) = ("10.0.0.1", "10.0.0.2");
        let endpoints: Vec<SliceEndpoint> = match self {
            Self::Both => vec![endpoint(here, Some(HERE)), endpoint(away, Some(AWAY))],
            Self::HereOnly => vec![endpoint(here, Some(HERE))],
            Self::AwayOnly => vec![endpoint(away, Some(AWAY))],
            Self::DrainingHereReadyAway => {
                vec![draining(here, Some(HERE)), endpoint(away, Some(AWAY))]
            }
            Self::None => vec![],
        };
        vec![slice("s", "web", endpoints)]
    }

    /// In one letter each: `h`ere, `a`way, `R`eject, `D`rop.
    fn cluster(self) -> &'static str {
        match self {
            Self::Both => "ha",
            Self::HereOnly => "h",
            Self::AwayOnly | Self::DrainingHereReadyAway => "a",
            Self::None => "R",
        }
    }

    fn local(self) -> &'static str {
        match self {
            Self::Both | Self::HereOnly | Self::DrainingHereReadyAway => "h",
            Self::AwayOnly => "D",
            Self::None => "R",
        }
    }
}

fn letters(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Reject => "R".to_owned(),
        Outcome::Drop => "D".to_owned(),
        Outcome::Forward(endpoints) => {
            endpoints.iter().map(|e| if e.local { 'h' } else { 'a' }).collect()
        }
    }
}

fn every_frontend() -> Service {
    Service {
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("198.51.100.9")],
        ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
        ..service("web", &["10.96.0.10"])
    }
}

fn decide(settings: &Settings, service: &Service, slices: &[Slice]) -> Vec<Frontend> {
    frontends(settings, None, service, &slices.iter().collect::<Vec<_>>())
}

#[test]
fn every_policy_kind_of_door_and_mix_of_endpoints() {
    use TrafficPolicy::{Cluster, Local};
    for mix in Mix::ALL {
        for (internal, external, all) in [Cluster, Local]
            .into_iter()
            .flat_map(|i| [Cluster, Local].map(|e| [false, true].map(|a| (i, e, a))))
            .flatten()
        {
            let service = Service {
                internal_policy: internal,
                external_policy: external,
                ..every_frontend()
            };
            let settings = Settings { masquerade_all: all, ..settings() };
            let found = decide(&settings, &service, &mix.slices());
            assert_eq!(found.len(), 4);
            for key in found {
                let case = format!(
                    "{mix:?}, internal {internal:?}, external {external:?}, masquerade all {all}: {key:?}"
                );
                let policy = if key.kind == FrontendKind::ClusterIp { internal } else { external };
                let (inside, outside, masquerade) = match (key.kind, policy) {
                    (FrontendKind::ClusterIp, Cluster) => (mix.cluster(), None, all),
                    (FrontendKind::ClusterIp, Local) => (mix.local(), None, all),
                    (_, Cluster) => (mix.cluster(), None, true),
                    // masqueradeAll is about cluster IPs alone.
                    (_, Local) => (mix.cluster(), Some(mix.local()), false),
                };
                assert_eq!(key.policy, policy, "{case}");
                assert_eq!(letters(&key.inside), inside, "{case}");
                assert_eq!(key.outside.as_ref().map(letters).as_deref(), outside, "{case}");
                assert_eq!(key.masquerade == Masquerade::Always, masquerade, "{case}");
            }
        }
    }
}

#[test]
fn a_service_has_doors_in_the_families_of_its_cluster_ips_only() {
    let addresses = |service: &Service| -> Vec<String> {
        let found = decide(&settings(), service, &[]);
        found.iter().map(|key| key.key.to_string()).collect()
    };
    let external = vec![ip("203.0.113.7"), ip("2001:db8::7")];
    let one = Service { external_ips: external.clone(), ..service("web", &["fd00::10"]) };
    assert_eq!(addresses(&one), ["[2001:db8::7]:80/tcp", "[fd00::10]:80/tcp"]);
    let both = Service { external_ips: external, ..service("web", &["10.96.0.10", "fd00::10"]) };
    assert_eq!(addresses(&both).len(), 4);
}

#[test]
fn protocols_on_one_port_number_stay_apart() {
    let of = |protocol| service_port("dns", protocol, 53, Some(30053));
    let dns = Service {
        ports: [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(of).into(),
        ..service("dns", &["10.96.0.53"])
    };
    assert_eq!(decide(&settings(), &dns, &[]).len(), 6);
}

#[test]
fn an_address_that_is_named_twice_is_one_frontend() {
    let twice = Service {
        external_ips: vec![ip("198.51.100.9"), ip("10.96.0.10")],
        load_balancer_ips: vec![ip("198.51.100.9")],
        ..service("web", &["10.96.0.10"])
    };
    let kinds: Vec<_> =
        decide(&settings(), &twice, &[]).iter().map(|key| (key.key.address, key.kind)).collect();
    let expected =
        [("10.96.0.10", FrontendKind::ClusterIp), ("198.51.100.9", FrontendKind::LoadBalancerIp)];
    assert_eq!(kinds, expected.map(|(at, kind)| (FrontendAddress::Ip(ip(at)), kind)));
}

#[test]
fn a_node_port_is_one_door_a_family_whatever_the_nodes_addresses() {
    let web = Service { cluster_ips: vec![ip("10.96.0.10"), ip("fd00::10")], ..every_frontend() };
    let found = decide(&settings(), &web, &[]);
    let ports: Vec<_> = found
        .iter()
        .filter(|key| key.kind == FrontendKind::NodePort)
        .map(|key| key.key.address)
        .collect();
    assert_eq!(ports, Family::BOTH.map(FrontendAddress::Node));
}

#[test]
fn source_ranges_bind_the_load_balancer_ips_of_their_own_family_alone() {
    type Allowed = Option<&'static [&'static str]>;
    // Ranges; whether another entry cannot be read; who may enter by IPv4, and by IPv6.
    let cases: [(&str, &[&str], bool, Allowed, Allowed); 8] = [
        ("none: everybody", &[], false, None, None),
        (
            "of both families",
            &["10.0.0.0/8", "fd00::/8"],
            false,
            Some(&["10.0.0.0/8"]),
            Some(&["fd00::/8"]),
        ),
        (
            "of IPv4 alone: IPv6 is open",
            &["203.0.113.0/25"],
            false,
            Some(&["203.0.113.0/25"]),
            None,
        ),
        ("of IPv6 alone: IPv4 is open", &["fd00::/8"], false, None, Some(&["fd00::/8"])),
        (
            "everything: everybody",
            &["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"],
            false,
            None,
            Some(&["fd00::/8"]),
        ),
        (
            "one within another: the wider",
            &["10.1.0.0/16", "10.0.0.0/8", "10.1.2.3/32"],
            false,
            Some(&["10.0.0.0/8"]),
            None,
        ),
        (
            "an unreadable one: a family without a range is closed",
            &["10.0.0.0/8"],
            true,
            Some(&["10.0.0.0/8"]),
            Some(&[]),
        ),
        ("nothing readable: nobody", &[], true, Some(&[]), Some(&[])),
    ];
    for (name, ranges, unreadable, v4, v6) in cases {
        let web = Service {
            cluster_ips: vec![ip("10.96.0.10"), ip("fd00::10")],
            external_ips: vec![ip("203.0.113.7"), ip("2001:db8::7")],
            load_balancer_ips: vec![ip("198.51.100.9"), ip("2001:db8::9")],
            source_ranges: SourceRanges {
                ranges: ranges.iter().map(|text| range(text)).collect(),
                unreadable,
            },
            ..every_frontend()
        };
        for key in decide(&settings(), &web, &[]) {
            let family = key.key.family();
            let allowed = if family == Family::V4 { v4 } else { v6 };
            let expected = allowed.filter(|_| key.kind == FrontendKind::LoadBalancerIp);
            let expected =
                expected.map(|ranges| ranges.iter().map(|text| range(text)).collect::<Vec<_>>());
            assert_eq!(
                key.sources.as_deref(),
                expected.as_deref(),
                "{name}: {} {family}",
                key.kind
            );
        }
    }
}

#[test]
fn a_node_within_a_source_range_may_call_from_the_load_balancer_ip() {
    let web = Service { source_ranges: vec![range("192.168.0.0/24")].into(), ..every_frontend() };
    for (at, allowed) in [("192.168.0.2", true), ("192.168.1.2", false)] {
        let node = node(None, &[at], &[]);
        let found = frontends(&settings(), Some(&node), &web, &[]);
        let sources = found.iter().find_map(|key| key.sources.as_deref()).unwrap();
        assert_eq!(sources.contains(&range("198.51.100.9/32")), allowed, "{at}");
    }
}
