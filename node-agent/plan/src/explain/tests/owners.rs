//! What an owner of a service may not expect, what the kernel did not take, and what is not known
//! yet.

use super::*;
use crate::{Frontend, FrontendAddress, PermittedRanges};

fn packet(from: &str, to: &str) -> FirstPacket {
    FirstPacket::parse(from, to).unwrap()
}

#[test]
fn a_cluster_ip_that_is_the_nodes_own_address_is_left_to_the_node() {
    let mut planner = planner(Detector::PodState, false);
    let taken = || service_event(service("taken", &["10.1.2.1"]));
    let serves = || slice_event(slice("taken", "taken", vec![endpoint(AWAY_1, Some(AWAY))]));
    planner.apply(vec![taken(), serves()]);
    planner.update();
    let services = planner.plan().services().unwrap();
    let own = FrontendAddress::Ip(ip("10.1.2.1"));
    assert!(services.frontends().all(|frontend| frontend.key.address != own));
    let to = packet("8.8.8.8", "10.1.2.1:80");
    let explanation = explained(&planner, &to);
    let text = explanation.to_string();
    assert_eq!(explanation.verdict, PacketVerdict::Untouched, "{text}");
    assert!(text.contains("cluster IP of default/taken, and this node's own address"), "{text}");
    // The node's addresses are followed live.
    planner.apply(vec![Event::Addresses(vec![address("192.168.0.2", "eth0")])]);
    planner.update();
    assert_eq!(explained(&planner, &to).verdict, PacketVerdict::Forward);
}

#[test]
fn a_load_balancer_ip_of_a_family_without_a_source_range_is_open() {
    let mut planner = planner(Detector::PodState, false);
    let dual = Service {
        load_balancer_ips: vec![ip("198.51.100.1"), ip("2001:db8::9")],
        source_ranges: vec![range("203.0.113.0/25")].into(),
        ..service("dual", &["10.96.0.50", "fd00::50"])
    };
    let v6 = slice("dual-6", "dual", vec![endpoint("fd00:1::1", Some(AWAY))]);
    let v4 = slice("dual-4", "dual", vec![endpoint(AWAY_1, Some(AWAY))]);
    planner.apply(vec![service_event(dual), slice_event(v4), slice_event(v6)]);
    planner.update();
    let explanation = explained(&planner, &packet("2600:5200::1", "[2001:db8::9]:80"));
    assert_eq!(explanation.verdict, PacketVerdict::Forward, "{explanation}");
    assert!(
        explanation.to_string().contains("the Service has no source range of IPv6"),
        "{explanation}"
    );
    for (from, verdict) in
        [("203.0.113.2", PacketVerdict::Forward), ("203.0.113.130", PacketVerdict::Drop)]
    {
        let explanation = explained(&planner, &packet(from, "198.51.100.1:80"));
        assert_eq!(explanation.verdict, verdict, "{explanation}");
        assert!(!explanation.to_string().contains("no source range of"), "{explanation}");
    }
}

#[test]
fn an_address_outside_the_permitted_ranges_is_left_alone() {
    let permitted = PermittedRanges {
        external_ips: vec![range("192.0.2.0/24"), range("2001:db8:1::/64")],
        load_balancer_ips: vec![range("198.51.100.0/24")],
    };
    let settings = Settings { permitted, ..settings() };
    let mut planner = Planner::new(Policy { settings, ..policy() }, CAPABLE);
    planner.apply(world());
    // What is permitted as one kind is not as the other. An address of both kinds is served.
    let grabs = Service {
        external_ips: ["192.0.2.1", "8.8.8.8", "198.51.100.2", "2001:db8:1::1", "2001:db8::1"]
            .map(ip)
            .into(),
        load_balancer_ips: vec![ip("198.51.100.1"), ip("192.0.2.2"), ip("198.51.100.2")],
        ..service("grabs", &["10.96.0.60", "fd00::60"])
    };
    let v4 = slice("grabs-4", "grabs", vec![endpoint(AWAY_1, Some(AWAY))]);
    let v6 = slice("grabs-6", "grabs", vec![endpoint("fd00:1::1", Some(AWAY))]);
    planner.apply(vec![service_event(grabs), slice_event(v4), slice_event(v6)]);
    planner.update();
    for (address, flag) in [
        ("10.96.0.60:80", None),
        ("192.0.2.1:80", None),
        ("198.51.100.1:80", None),
        ("198.51.100.2:80", None),
        ("8.8.8.8:80", Some("--external-ip-ranges")),
        ("192.0.2.2:80", Some("--load-balancer-ip-ranges")),
        ("[2001:db8:1::1]:80", None),
        ("[2001:db8::1]:80", Some("--external-ip-ranges")),
    ] {
        let from = if address.starts_with('[') { "2600:5200::1" } else { "203.0.113.2" };
        let explanation = explained(&planner, &packet(from, address));
        let verdict =
            if flag.is_some() { PacketVerdict::Untouched } else { PacketVerdict::Forward };
        assert_eq!(explanation.verdict, verdict, "{address}: {explanation}");
        let text = explanation.to_string();
        assert!(flag.is_none_or(|flag| text.contains(flag) && text.contains("grabs")), "{text}");
    }
    let remarks = planner.plan().services().unwrap().remarks().map(ToString::to_string);
    let refused: Vec<String> = remarks.filter(|remark| remark.contains("/grabs: ")).collect();
    assert_eq!(refused.len(), 3, "{refused:?}");
}

#[test]
fn an_address_that_is_one_of_too_many_is_left_alone() {
    let mut planner = planner(Detector::PodState, false);
    let port = |n: u16| service_port(&format!("p{n}"), denizen_model::Protocol::Tcp, n, None);
    let many = Service {
        external_ips: (1..=30).map(|n| ip(&format!("203.0.113.{n}"))).collect(),
        ports: (1..=400).map(port).collect(),
        ..service("many", &["10.96.0.60"])
    };
    planner.apply(vec![service_event(many)]);
    planner.update();
    for (address, verdict) in
        [("203.0.113.20:80", PacketVerdict::Reject), ("203.0.113.21:80", PacketVerdict::Untouched)]
    {
        let explanation = explained(&planner, &packet("198.51.100.2", address));
        assert_eq!(explanation.verdict, verdict, "{address}: {explanation}");
        let names_it = explanation.to_string().contains("too many addresses of default/many");
        assert_eq!(names_it, verdict == PacketVerdict::Untouched, "{explanation}");
    }
}

#[test]
fn no_control_character_of_a_name_is_printed() {
    let mut planner = planner(Detector::PodState, false);
    let name = "web\u{1b}[2J\r\n=> forwarded, source kept\u{9b}";
    let mut pods = pods(2, &[("10.1.2.9", "cni0\u{1b}[31m")]);
    pods.pods[0].pod =
        Some(denizen_model::PodName { namespace: "default".into(), name: "x\n=> dropped".into() });
    planner.apply(vec![service_event(service(name, &["10.96.0.60"])), Event::Pods(pods)]);
    planner.update();
    let explanation = explained(&planner, &packet("10.1.2.9@cni0\u{1b}[31m", "10.96.0.60:80"));
    let text = explanation.to_string();
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
    let verdicts: Vec<&str> = text.lines().filter(|line| line.starts_with("=>")).collect();
    assert_eq!(verdicts, ["=> refused"], "{text}");
}

#[test]
fn rules_that_the_kernel_rejected_are_said_not_to_be_there() {
    let planner = planner(Detector::PodState, false);
    let explained = |to: &str| {
        let rejected = |frontend: &Frontend| {
            let is_web = &*frontend.service_port.service.name == "web";
            Vec::from_iter(is_web.then(|| "no such module".to_owned()))
        };
        explain(&planner, &packet("8.8.8.8", to), rejected, &|_| None).unwrap()
    };
    let rejected = explained("10.96.0.10:80");
    let text = rejected.to_string();
    assert_eq!((rejected.verdict, rejected.endpoints.len()), (PacketVerdict::Unknown, 0), "{text}");
    assert!(
        text.contains("the kernel rejected rules") && text.contains("no such module"),
        "{text}"
    );
    assert_eq!(explained("10.96.0.13:80").verdict, PacketVerdict::Forward);
}

#[test]
fn nothing_is_explained_from_half_a_picture() {
    let planner = Planner::new(policy(), CAPABLE);
    let explained =
        explain(&planner, &packet("10.1.2.3", "10.96.0.10:80"), |_| Vec::new(), &|_| None);
    assert_eq!(
        explained.unwrap_err().to_string(),
        "still waiting for services, endpoint slices, this node's object, service CIDRs, this node's \
         addresses"
    );
}
