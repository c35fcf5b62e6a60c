//! The gate of each frontend, as nf_tables programs it.

use crate::ipvs::gate::gate;
use crate::nftables::{Nftables, NoKernel};
use denizen_fixture::*;
use denizen_model::{Event, Listing, Protocol, Service, TrafficPolicy};
use denizen_plan::fixture::*;
use denizen_plan::{Capabilities, PlanChanges, Planner};

/// A service at every kind of frontend, of a node whose IPVS can carry it.
fn planner(able: Capabilities) -> Planner {
    let web = Service {
        ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
        external_ips: vec![ip("203.0.113.7")],
        external_policy: TrafficPolicy::Local,
        ..service("web", &["10.96.0.10"])
    };
    let endpoints = vec![endpoint("10.0.0.1", Some(HERE)), endpoint("10.0.0.2", Some(AWAY))];
    let slice = slice("web", "web", endpoints);
    let mut planner = Planner::new(policy(), able);
    let mut events = vec![
        Event::Service(web.name.clone(), Some(web)),
        Event::Slice(slice.name.clone(), Some(slice)),
        Event::Addresses(vec![address("192.168.0.2", "eth0")]),
    ];
    events.extend(Listing::SERVICES.map(Event::Listed));
    planner.apply(events);
    planner.update();
    planner
}

fn rendered(planner: &Planner, ready: bool) -> (Nftables<NoKernel>, String) {
    let mut nftables = Nftables::offline();
    let plan = planner.plan();
    nftables.update_as(plan, &PlanChanges::from_nothing(plan), &|frontend| {
        gate(frontend, plan.ipvs(), &|_| ready)
    });
    let text = nftables.rendering().to_string();
    (nftables, text)
}

const BY_IPVS: Capabilities = Capabilities { balances_by_ipvs: true, ..CAPABLE };

#[test]
fn what_ipvs_carries_leads_to_the_cluster_ip_once_the_server_is_ready() {
    let planner = planner(BY_IPVS);
    let (_, text) = rendered(&planner, true);
    let count = |text: &str, to: &str| text.matches(to).count();
    assert_eq!(count(&text, ": 10.96.0.10 . 80"), 3, "from inside, at each frontend\n{text}");
    assert_eq!(count(&text, ": 10.0.0.1 . 8080"), 2, "from outside, at external ones\n{text}");
    assert_eq!(count(&text, ": 10.0.0.2 . 8080"), 0, "{text}");
    let (_, text) = rendered(&planner, false);
    assert_eq!(count(&text, ": 10.96.0.10 . 80"), 0, "{text}");
    assert_eq!(count(&text, ": 10.0.0.2 . 8080"), 3, "{text}");
}

#[test]
fn a_server_that_becomes_ready_takes_over_its_frontends() {
    let planner = planner(BY_IPVS);
    let (mut nftables, _) = rendered(&planner, false);
    let plan = planner.plan();
    let services = plan.services().expect("all is listed");
    let frontends = services.frontends().map(|frontend| frontend.key).collect();
    let changes = PlanChanges { frontends, ..PlanChanges::default() };
    nftables.update_as(plan, &changes, &|frontend| gate(frontend, plan.ipvs(), &|_| true));
    let text = nftables.rendering().to_string();
    assert_eq!(text.matches(": 10.96.0.10 . 80").count(), 3, "{text}");
    assert_eq!(text.matches(": 10.0.0.2 . 8080").count(), 0, "{text}");
}

/// IPVS's translation is not among what connection tracking calls translated.
#[test]
fn hairpin_does_not_ask_whether_the_rules_translated() {
    let asks = |able| {
        let (_, text) = rendered(&planner(able), true);
        let rule = text.lines().find(|line| line.contains("@hairpin")).expect("hairpin's rule");
        rule.contains("ct status dnat")
    };
    assert_eq!([CAPABLE, BY_IPVS].map(asks), [true, false]);
}

#[test]
fn a_routed_address_is_refused_after_its_service_is_gone() {
    let (mut nftables, _) = rendered(&planner(BY_IPVS), true);
    let mut with_routed = |addresses: &[&str]| {
        nftables.change_routed_addresses(&addresses.iter().map(|address| ip(address)).collect());
        nftables.rendering().to_string()
    };
    let text = with_routed(&["10.96.0.10"]);
    assert!(!text.contains("10.96.0.77"), "{text}");
    assert!(with_routed(&["10.96.0.10", "10.96.0.77"]).contains("10.96.0.77"));
    assert_eq!(with_routed(&["10.96.0.10"]), text);
}

#[test]
fn neighbours_get_no_answer_for_routed_addresses_alone() {
    let text = |able| {
        let (mut nftables, _) = rendered(&planner(able), true);
        nftables.change_routed_addresses(&[ip("10.96.0.10"), ip("fd00:96::10")].into());
        nftables.rendering().to_string()
    };
    assert!(!text(CAPABLE).contains("table arp"), "{}", text(CAPABLE));
    let with = text(BY_IPVS);
    let (_, table) = with.split_once("table arp denizen {").expect("ARP's table");
    let (table, _) = table.split_once("\ntable").expect("others behind it");
    assert!(table.contains("10.96.0.10"), "{table}");
    assert!(!table.contains("fd00"), "{table}");
    assert!(table.contains("arp daddr ip @virtual-ips counter"), "{table}");
}
