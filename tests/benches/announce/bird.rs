//! `--routing-mode bird`: a node, and a router that its BIRD announces to.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_route::MAIN;
use denizen_tests::bench::timing::text;
use denizen_tests::eventually::eventually;
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::{self, Netns};
use denizen_tests::node::world::ip;
use denizen_tests::peers::api::{Api, ApiServer};
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use crate::agent::{self, NODE};
use crate::heard::{Heard, Times, counted};
use crate::{TIMEOUT, quantiles};

const SERVICES: usize = 5_000;
const ENDPOINTS: usize = 4;
/// Each change makes an endpoint of one service unready, or ready again.
const CHANGES: usize = 200;
const PORT: [Port; 1] = [Port::tcp("http", 80, 8080)];
const TABLE: u32 = 219;
/// Route protocol numbers: the agent's and BIRD's.
const OURS: u8 = 213;
const BIRD: u8 = 12;
const FLAGS: [&str; 5] = [
    "--routing-mode=bird",
    r#"--bird={"asn":64512,"peers":[{"name":"tor","address":"192.0.2.2","asn":65001}]}"#,
    "--announce-services=load-balancer-ips",
    "--announce-ranges=198.18.0.0/15",
    "--announce-most=6000",
];

/// The router: it exports every route that it learns to its kernel.
const ROUTER: &str = "log stderr all;\nrouter id 192.0.2.2;\nprotocol device {}\n\
    protocol kernel { ipv4 { export all; }; }\n\
    protocol bgp node { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 64512; \
    connect delay time 1; ipv4 { import all; export none; }; }\n";

fn numbered(network: [u8; 4], number: usize) -> IpAddr {
    let first = u32::from_be_bytes(network);
    Ipv4Addr::from(first + u32::try_from(number).expect("fewer than addresses")).into()
}

fn vip(service: usize) -> IpAddr {
    numbered([198, 18, 0, 1], service)
}

fn service(number: usize) -> Value {
    let name = format!("service-{number}");
    let mut service = manifest::service(&name, &[numbered([10, 96, 0, 1], number)], &PORT);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": vip(number) }] } });
    service
}

/// The EndpointSlice of a service. Its first endpoint is on this node.
fn slice(number: usize, is_ready: bool) -> Value {
    let nodes: Vec<String> = (0..ENDPOINTS).map(|n| format!("node-{n}")).collect();
    let endpoints: Vec<(IpAddr, &str)> = nodes
        .iter()
        .enumerate()
        .map(|(n, node)| (numbered([10, 128, 0, 1], number * ENDPOINTS + n), node.as_str()))
        .collect();
    let mut slice = manifest::slice(&format!("service-{number}"), &PORT, &endpoints);
    slice["endpoints"][0]["conditions"] = json!({ "ready": is_ready, "serving": is_ready });
    slice
}

/// The node and its router, with a link between them.
fn linked() -> Result<[Netns; 2]> {
    let [node, router] = [Netns::new("bench-node")?, Netns::new("bench-router")?];
    node.ip(&format!(
        "link set lo up\nlink add eth0 type veth peer name eth0 netns {}\n\
         addr add 192.0.2.1/24 dev eth0\nlink set eth0 up",
        router.name()
    ))?;
    router.ip("link set lo up\naddr add 192.0.2.2/24 dev eth0\nlink set eth0 up")?;
    Ok([node, router])
}

/// Measures all load balancer IPs at once, then one change at a time.
pub fn measure() -> Result<()> {
    let [node, router] = linked()?;
    let folder = netns::folder()?;
    let api = ApiServer::start(&node, "127.0.0.1:6443".parse()?, folder.path())?;
    let mut own = manifest::node(NODE, &[ip("192.0.2.1")], "");
    own["spec"] = json!({ "podCIDRs": ["10.128.0.0/24"] });
    api.put(&own)?;
    let start = || agent::start(&node, api.kubeconfig(), folder.path(), &FLAGS);
    let agent = start()?;
    // The session is established before the services exist: how soon BIRD connects is not measured.
    let run = folder.path().join("run/bird");
    eventually("a configuration", TIMEOUT, || Ok(run.join("bird.conf").exists()))?;
    let tor = Bird::start(&router, folder.path(), "tor", ROUTER)?;
    let _bird = Bird::with(&node, &run.join("bird.conf"), &run.join("bird.ctl"))?;
    eventually("a session", TIMEOUT, || Ok(tor.established().unwrap_or_default() == 1))?;
    counted(&router, BIRD, MAIN, 1)?;
    drop(agent);
    api.put_all(&(0..SERVICES).flat_map(|n| [service(n), slice(n, true)]).collect::<Vec<_>>())?;

    println!("\n## {SERVICES} load balancer IPs of {ENDPOINTS} endpoints, by BGP\n");
    let begun = Instant::now();
    let _agent = start()?;
    let (table, heard) = std::thread::scope(|scope| {
        // One route for each service, and one for the podCIDR.
        let table = scope.spawn(|| counted(&node, OURS, TABLE, SERVICES + 1));
        let heard = counted(&router, BIRD, MAIN, SERVICES + 1);
        (table.join().expect("it does not panic"), heard)
    });
    let [table, heard] = [table?[1], heard?[1]].map(|at| at - begun);
    println!(
        "all, from the agent's start: in the table {}, at the router {}",
        text(table),
        text(heard)
    );
    one_by_one(&node, &router, &api)
}

fn one_by_one(node: &Netns, router: &Netns, api: &ApiServer) -> Result<()> {
    let mut heard = Heard::listen(node, router, TABLE)?;
    let mut times: [Vec<[Duration; 3]>; 2] = Default::default();
    for change in 0..CHANGES {
        heard.settle()?;
        // 7,919 is prime: the changes are spread over all services.
        let (number, is_ready) = (change / 2 * 7_919 % SERVICES, change % 2 == 1);
        let sent = Instant::now();
        api.put(&slice(number, is_ready))?;
        let Times { rules, table, router } = heard.of(vip(number), is_ready)?;
        let since = |at: Option<Instant>| at.map(|at| at - sent).context("it was heard of");
        times[usize::from(is_ready)].push([since(rules)?, since(table)?, since(router)?]);
    }
    let names = ["the node's rules", "the table", "the router's kernel"];
    for (times, what) in times.iter().zip(["ready no more", "ready"]) {
        println!("\none endpoint is {what}, {} times, from the API to", times.len());
        for (index, name) in names.iter().enumerate() {
            println!("- {name}: {}", quantiles(times.iter().map(|times| times[index])));
        }
    }
    Ok(())
}
