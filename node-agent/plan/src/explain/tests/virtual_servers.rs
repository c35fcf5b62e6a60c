//! Who chooses the endpoint, where the backend has virtual servers.

use super::*;
use crate::explain::VirtualServerRow;
use crate::{Capabilities, FrontendKey};
use denizen_model::RequestedScheduler;

fn planner(more: Vec<Event>) -> Planner {
    let able = Capabilities { balances_by_ipvs: true, ..CAPABLE };
    let mut planner = Planner::new(policy(), able);
    planner.apply(world());
    planner.apply(more);
    planner.update();
    planner
}

#[test]
fn ipvs_chooses_or_it_is_said_why_not() {
    use PacketVerdict::Forward;
    let by_ipvs: &[&str] = &[
        "one of 2 endpoints: 10.1.2.3:8080",
        "one after the other",
        "IPVS chooses, at the virtual server 10.96.0.10:80/tcp, by rr",
    ];
    // The other services of the fixture have one endpoint with the first by name.
    let shared = vec![
        service_event(Service { ports: Vec::new(), ..service("kept", &["10.96.0.11"]) }),
        service_event(Service { created: "2020-01-01T00:00:00Z".into(), ..web() }),
    ];
    let cases = [
        case(HERE_1, "10.96.0.10:80", Forward, false, by_ipvs),
        case(HERE_1, "10.96.0.13:80", Forward, true, &["nftables chooses", "session affinity"]),
    ];
    check(&planner(shared), &cases);
    let shared = &["nftables chooses", "default/web:http has the endpoint"];
    let events = vec![service_event(Service { created: "2020-01-01T00:00:00Z".into(), ..web() })];
    check(&planner(events), &[case(HERE_1, "10.96.0.11:80", Forward, true, shared)]);
}

#[test]
fn from_outside_under_policy_local_nftables_chooses() {
    let service = Service { external_policy: TrafficPolicy::Local, ..web() };
    let outside: &[&str] = &["nftables chooses", "traffic from outside has other endpoints"];
    let old = Service { created: "2020-01-01T00:00:00Z".into(), ..service };
    let cases = [case("8.8.8.8", "192.168.0.2:30080", PacketVerdict::Forward, false, outside)];
    check(&planner(vec![service_event(old)]), &cases);
}

#[test]
fn a_virtual_server_is_shown_with_its_scheduler_and_who_drains() {
    let requested = RequestedScheduler { name: Some("mh".into()), flags: None };
    let created = "2020-01-01T00:00:00Z".into();
    let web = Service { scheduler: Some(requested.into()), created, ..web() };
    let endpoints = vec![endpoint(AWAY_1, Some(AWAY)), draining(HERE_1, Some(HERE))];
    let events = vec![service_event(web), slice_event(slice("web", "web", endpoints))];
    let planner = planner(events);
    let packet = FirstPacket::parse(HERE_1, "10.96.0.10:80").unwrap();
    let row = VirtualServerRow {
        address: "10.96.0.10:80/tcp".to_owned(),
        scheduler: "mh (mh-fallback, mh-port)".to_owned(),
        draining: vec!["10.1.2.3:8080".to_owned()],
        chosen: None,
    };
    let explanation = explained(&planner, &packet);
    assert_eq!(explanation.virtual_server, Some(row));
    assert_eq!(explanation.endpoints, ["10.9.9.9:8080"]);
    assert!(explanation.to_string().contains("not to 10.1.2.3:8080"), "{explanation}");
    let listed = |key: &FrontendKey| {
        assert_eq!(key.to_string(), "10.96.0.10:80/tcp");
        let at = |text: &str| text.parse().unwrap();
        Some(vec![(at("10.9.9.9:8080"), 1), (at("10.1.2.3:8080"), 0)])
    };
    let ask = |from: &str| {
        let packet = FirstPacket::parse(from, "10.96.0.10:80").unwrap();
        explain(&planner, &packet, |_| Vec::new(), &listed).unwrap()
    };
    let with_port = ask(&format!("{HERE_1}:40000"));
    let chosen = with_port.virtual_server.as_ref().and_then(|server| server.chosen.as_deref());
    assert_eq!(chosen, Some("10.9.9.9:8080"));
    assert!(with_port.to_string().contains("it gets 10.9.9.9:8080"), "{with_port}");
    let without = ask(HERE_1);
    assert_eq!(without.virtual_server.as_ref().and_then(|server| server.chosen.as_deref()), None);
    assert!(without.to_string().contains("depends on the client's port"), "{without}");
}

/// It is the same one for all clients.
#[test]
fn whom_a_hash_of_the_service_chooses_is_named() {
    let requested = RequestedScheduler { name: Some("dh".into()), flags: None };
    let created = "2020-01-01T00:00:00Z".into();
    let web = Service { scheduler: Some(requested.into()), created, ..web() };
    let endpoints = vec![endpoint(AWAY_1, Some(AWAY)), endpoint(HERE_1, Some(HERE))];
    let planner = planner(vec![service_event(web), slice_event(slice("web", "web", endpoints))]);
    let at = |text: &str| text.parse().unwrap();
    let listed = |_: &FrontendKey| Some(vec![(at("10.9.9.9:8080"), 1), (at("10.1.2.3:8080"), 1)]);
    for from in ["8.8.8.8", "8.8.4.4:40000", HERE_1] {
        let packet = FirstPacket::parse(from, "10.96.0.10:80").unwrap();
        let explanation = explain(&planner, &packet, |_| Vec::new(), &listed).unwrap();
        let server = explanation.virtual_server.as_ref().unwrap();
        assert_eq!(server.chosen.as_deref(), Some("10.9.9.9:8080"), "{explanation}");
        assert!(explanation.to_string().contains("so always the same one"), "{explanation}");
    }
}

fn web() -> Service {
    let ports = vec![service_port("http", Protocol::Tcp, 80, Some(30080))];
    Service { ports, ..service("web", &["10.96.0.10"]) }
}
