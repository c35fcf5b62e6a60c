//! A user's Service asks for other people's addresses, by `externalIPs`.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::peers::api::{Api, ApiServer};
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Node, Segment, addresses, objects, ranges};
use super::table::table;
use super::underlay::configured_with;

/// The numbers of hosts on the network that are no nodes.
const ROUTER: u8 = 101;
const API: u8 = 77;
/// What the service may have.
const HONEST: &str = "203.0.113.9";

/// Whose address it is, the reason by name, and in words.
const STOLEN: [(&str, &str, &str); 4] = [
    ("192.0.2.101", "forbidden", "192.0.2.101 is a BGP peer of this node"),
    ("192.0.2.77", "forbidden", "192.0.2.77 is the API server's address"),
    ("192.0.2.2", "node-address", "192.0.2.2 is an address of node node-2"),
    ("198.51.100.9", "outside-ranges", "--announce-ranges does not contain it"),
];

/// Takes all it hears.
fn router() -> String {
    let [own, node] = [ROUTER, 1].map(|number| addresses(number)[0]);
    format!(
        "log stderr all;\nrouter id {own};\nprotocol device {{}}\n\
         protocol bgp node {{ local {own} as 65001; neighbor {node} as 64512; \
         connect delay time 1; ipv4 {{ import all; export none; }}; }}\n"
    )
}

/// The first node's agent, which follows this API and announces to the router. The ranges contain
/// the nodes' own network: a mistake that the other refusals must outlive.
fn start(segment: &mut Segment, api: &ApiServer) -> Result<()> {
    let peer = json!({ "name": "router", "address": addresses(ROUTER)[0], "asn": 65001 });
    let routing = json!({
        "mode": "bird", "services": ["load-balancer-ips", "external-ips"],
        "ranges": ["203.0.113.0/24", "192.0.2.0/24"],
        "bird": { "asn": 64512, "peers": [peer] },
    });
    let flag = configured_with(segment, &routing)?;
    let node = &mut segment.nodes[0];
    node.objects = Objects::Kubeconfig(api.kubeconfig().to_owned());
    node.start_with(&[&flag])?;
    node.attach()
}

/// The service that asks for all of them, and has the node's pod.
fn evil(node: &Node) -> Result<Vec<Value>> {
    let ports = [Port::tcp("http", 80, PORT)];
    let mut evil = service("evil", &service_ips(11), &ports);
    let asked = STOLEN.iter().map(|(address, ..)| *address).chain([HONEST]);
    evil["spec"]["externalIPs"] = asked.collect();
    let pod = node.pod()?.addresses[0];
    Ok(vec![evil, slice("evil", &ports, &[(pod, "node-1")])])
}

/// The prefixes that the router knows, in order.
fn heard(router: &Bird) -> Result<Vec<String>> {
    let shown = router.ask("show route primary protocol node")?;
    let prefixes = shown.lines().filter_map(|line| line.split(' ').next());
    let mut heard: Vec<_> = prefixes
        .filter(|prefix| prefix.contains('/'))
        .map(|prefix| prefix.replace("/32", ""))
        .collect();
    heard.sort();
    Ok(heard)
}

/// The events about what is not announced, each with the object's name.
fn refusals(api: &ApiServer) -> Vec<(Value, Value)> {
    let events = api.objects("events").into_iter();
    let refusals = events.filter(|event| event["reason"] == "NotAnnounced");
    refusals.map(|event| (event["regarding"]["name"].clone(), event["note"].clone())).collect()
}

/// None of them is announced, each has its reason, and an event tells the Service's owner. What the
/// service may have is announced all the same.
#[test]
fn addresses_of_others_are_not_announced_and_events_say_why() -> Result<()> {
    let mut segment = Segment::new("bgp-stolen")?;
    let folder = segment.folder.path().to_owned();
    let [peer, host] = [("router", ROUTER), ("api", API)]
        .map(|(name, number)| segment.join(&format!("bgp-stolen-{name}"), number));
    let (peer, host) = (peer?, host?);
    let address = SocketAddr::new(addresses(API)[0], 6443);
    let api_folder = folder.join("api");
    std::fs::create_dir(&api_folder)?;
    let api = ApiServer::start(&host, address, &api_folder)?;
    let https = [Port::tcp("https", 443, address.port())];
    let own = [
        service("kubernetes", &service_ips(1)[..1], &https),
        slice("kubernetes", &https, &[(address.ip(), "")]),
    ];
    for object in objects([1, 2]).iter().chain(&own) {
        api.put(object)?;
    }
    start(&mut segment, &api)?;
    let node = &segment.nodes[0];
    let router = Bird::start(&peer, &folder, "router", &router())?;
    let _speaker = node.speaker()?;
    for object in evil(node)? {
        api.put(&object)?;
    }

    let [range, range6] = ranges(1);
    let known = || Ok(heard(&router).unwrap_or_default());
    observed("heard", TIMEOUT, known, |heard| *heard == [&*range, HONEST])?;
    let announced = [&*range, HONEST, &*range6].map(|range| format!("blackhole {range}"));
    assert_eq!(table(&node.netns)?, announced);
    for (address, reason, why) in STOLEN {
        let it = node.agent()?.ask_directly(&json!({ "announce": address }))?;
        let is_reported = it["announced"] == false && it["reason"] == reason && it["why"] == why;
        ensure!(is_reported && it["owner"] == "Service default/evil", "{address}: {it}");
    }
    let note = |(address, _, why): &(&str, &str, &str)| {
        let text = format!("{address}/32 of Service default/evil is not announced: {why}");
        (json!("evil"), json!(text))
    };
    let wanted: Vec<_> = STOLEN.iter().map(note).collect();
    let are_all = |events: &Vec<_>| wanted.iter().all(|event| events.contains(event));
    let events = observed("events", TIMEOUT, || Ok(refusals(&api)), are_all)?;
    ensure!(events.len() == STOLEN.len(), "{events:?}");
    let explained = node.agent()?.ask_directly(&json!({ "announce": HONEST }))?;
    let peers = explained["peers"].as_array().context("peers")?;
    ensure!(explained["announced"] == true && *peers == ["peer:router"], "{explained}");
    Ok(())
}
