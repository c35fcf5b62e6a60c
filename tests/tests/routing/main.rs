//! `--routing-mode`: `direct`, by which the pods of three nodes on one network reach each other
//! through routes that nobody else made, and in `table` announcements.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod bgp;
mod cleanup;
mod fabric;
mod greedy;
mod hostile;
mod newest;
mod reboot;
mod reflector;
mod rendered;
mod segment;
mod shared;
mod six;
mod spoiler;
mod stolen;
mod storm;
mod table;
mod underlay;
mod unnumbered;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::{Probe, Protocol};
use serde_json::{Value, json};

use self::segment::{NODES, Segment, addresses, object, objects, ranges, routes_to};

/// What has not come about by then never will. The agent looks every minute even where it has heard
/// of nothing, and that must not pass for hearing.
const TIMEOUT: Duration = Duration::from_secs(30);

fn routing(agent: &Agent) -> Result<Value> {
    Ok(agent.ask_directly(&json!({ "status": {} }))?["routing"].clone())
}

/// A service of all pods.
fn web(segment: &Segment) -> Result<Vec<Value>> {
    let ports = [Port::tcp("http", 80, PORT)];
    let names: Vec<_> = (1..=NODES).map(|number| format!("node-{number}")).collect();
    let of_family = |family: usize| {
        let pods = segment.nodes.iter().zip(&names);
        let pods = pods.map(|(node, name)| Ok((node.pod()?.addresses[family], name.as_str())));
        Ok::<_, anyhow::Error>(slice("web", &ports, &pods.collect::<Result<Vec<_>>>()?))
    };
    Ok(vec![service("web", &service_ips(10), &ports), of_family(0)?, of_family(1)?])
}

#[test]
fn every_pod_reaches_every_pod_and_service_in_both_families() -> Result<()> {
    let mut segment = Segment::new("direct")?;
    segment.start_agents()?;
    segment.manifests.put("web", &web(&segment)?)?;
    for node in &segment.nodes {
        node.agent()?.until("served", TIMEOUT, |status| status["endpoints"] == 3)?;
    }
    let nodes = || segment.nodes.iter();
    for (from, to) in nodes().flat_map(|from| nodes().map(move |to| (from, to))) {
        for family in 0..2 {
            let (from, to) = (from.pod()?, to.pod()?);
            let own = from.addresses[family];
            let ask = |to| Probe::tcp(to).from(own).send_in(&from.netns);
            let pod = SocketAddr::new(to.addresses[family], PORT);
            let outcome = ask(pod);
            let is_direct = outcome.endpoint() == Some(pod) && outcome.seen() == Some(own);
            ensure!(is_direct, "from {own} to {pod}: {outcome:?}");
            let web = SocketAddr::new(service_ips(10)[family], 80);
            let outcome = ask(web);
            ensure!(outcome.endpoint().is_some(), "from {own} to {web}: {outcome:?}");
        }
    }
    stays_reached_while_the_agent_is_replaced(&mut segment)?;
    let agent = segment.nodes[0].agent()?;
    let wanted = json!({
        "isKnown": true, "podCidrs": ranges(1), "routes": 4, "rejected": [], "repaired": 0,
    });
    assert_eq!(routing(agent)?, wanted);
    // Without the route, the pods of the second node are not reached: nothing else leads there.
    segment.nodes[0].agent.take().context("an agent")?.terminate()?;
    segment.nodes[0].netns.ip("route flush proto 213")?;
    let (from, to) = (segment.nodes[0].pod()?, segment.nodes[1].pod()?);
    let lost = Probe::tcp(SocketAddr::new(to.addresses[0], PORT)).send_in(&from.netns);
    ensure!(lost.endpoint().is_none(), "{lost:?} without a route");
    Ok(())
}

/// The agent is killed, another release takes its place, and then this one again: between pods
/// nothing is lost.
fn stays_reached_while_the_agent_is_replaced(segment: &mut Segment) -> Result<()> {
    let mut load = Load::with_pause(Duration::from_millis(20));
    for family in 0..2 {
        let to = SocketAddr::new(segment.nodes[1].pod()?.addresses[family], PORT);
        let from = &segment.nodes[0].pod()?.netns;
        load.client(from, vec![(to, Protocol::Tcp)], |outcome| outcome.endpoint().is_some())?;
    }
    let flags = ["--routing-mode=direct"];
    segment.nodes[0].start_other(&flags)?;
    segment.nodes[0].agent.take().context("an agent")?.kill()?;
    segment.nodes[0].start_with(&flags)?;
    segment.nodes[0].until_routed(&[2, 3])?;
    let tally = load.stop()?;
    ensure!(tally.answered > 0 && tally.failed == 0, "{tally:?}");
    Ok(())
}

/// Flushed, replaced, lost by a link that goes down, and with the node's address for another one.
#[test]
fn lost_routes_are_repaired() -> Result<()> {
    let mut segment = Segment::new("direct-lost")?;
    let node = &mut segment.nodes[0];
    node.start_agent("direct")?;
    node.until_routed(&[2, 3])?;
    let cases = [
        "route flush proto 213",
        "-6 route flush proto 213",
        "route replace 10.1.2.0/24 via 192.0.2.3 metric 1190 proto 213",
        "link set eth0 down",
        "link set eth0 up",
    ];
    for done in cases {
        node.netns.output("ip", &done.split(' ').collect::<Vec<_>>())?;
        if done.ends_with("down") {
            let rejected = |status: &Value| status["rejected"].as_array().map(Vec::len) == Some(4);
            observed("rejected", TIMEOUT, || routing(node.agent()?), rejected)?;
        } else {
            node.until_routed(&[2, 3]).context(done)?;
        }
    }
    node.netns.ip("addr del 192.0.2.1/24 dev eth0\naddr add 192.0.2.11/24 dev eth0")?;
    node.until_routed(&[2, 3]).context("a new address")?;
    let status =
        observed("known", TIMEOUT, || routing(node.agent()?), |status| status["routes"] == 4)?;
    // `ip` flushes again what was repaired before it looks a second time.
    ensure!(status["repaired"].as_u64() >= Some(5), "{status}");
    assert_eq!(status["rejected"], json!([]));
    Ok(())
}

/// A node comes, goes, and its range is given to another; some of it while no agent runs.
#[test]
fn routes_follow_the_nodes() -> Result<()> {
    let mut segment = Segment::new("direct-follow")?;
    let manifests = segment.manifests.clone();
    let node = &mut segment.nodes[0];
    let theirs = "10.1.3.0/24 via 192.0.2.9 dev eth0 metric 5000";
    node.netns.ip(&format!("route add {theirs}"))?;
    let [_, before] = node.all_routes()?;
    node.start_agent("direct")?;
    node.until_routed(&[2, 3])?;
    manifests.put("nodes", &objects([1, 2]))?;
    node.until_routed(&[2])?;
    // It stops, and starts after the second node's range was given to the fourth.
    node.agent.take().context("an agent")?.kill()?;
    assert_eq!(node.routes()?, routes_to(&[2]), "after SIGKILL");
    let heir = object("node-4", 4, &addresses(4), &ranges(2));
    manifests.put("nodes", &[objects([1]), vec![heir]].concat())?;
    node.start_agent("direct")?;
    let inherited: Vec<_> = routes_to(&[2])
        .iter()
        .map(|line| line.replace("192.0.2.2 ", "192.0.2.4 ").replace("db8::2 ", "db8::4 "))
        .collect();
    observed("inherited", TIMEOUT, || node.routes(), |routes| *routes == inherited)?;
    node.agent.take().context("an agent")?.terminate()?;
    ensure!(node.routes()?.len() == 2, "SIGTERM removed routes");
    let cleanup = node.netns.output(
        &binary::ours("denizen-agent")?.to_string_lossy(),
        &["cleanup", "--run-dir", &node.run_dir.to_string_lossy()],
    )?;
    ensure!(cleanup.contains("removed 2 routes"), "{cleanup}");
    let [ours, others] = node.all_routes()?;
    assert_eq!((ours, others), (Vec::new(), before));
    Ok(())
}

/// Ranges that are somebody else's.
#[test]
fn a_node_that_claims_what_is_not_its_own_gets_no_route() -> Result<()> {
    let mut segment = Segment::new("direct-claims")?;
    let claims =
        ["192.0.2.0/25", "10.1.1.128/25", "10.1.2.0/23", "0.0.0.0/0", "::/0", "10.1.9.0/24"];
    let claimed = object("evil", 20, &[ip("192.0.2.66")], &claims.map(str::to_owned));
    let far = object("far", 21, &[ip("198.51.100.7")], &["10.1.8.0/24".to_owned()]);
    segment.manifests.put("evil", &[claimed, far])?;
    let node = &mut segment.nodes[0];
    node.start_agent("direct")?;
    let honest = "10.1.9.0/24 via 192.0.2.66 dev eth0 metric 1190".to_owned();
    let mut wanted = routes_to(&[2, 3]);
    wanted.insert(2, honest);
    observed("routed", TIMEOUT, || node.routes(), |routes| *routes == wanted)?;
    let status = node.agent()?.status()?;
    let reasons = [
        "no route to 0.0.0.0/0, the podCIDR of Node evil: no pod can have these addresses",
        "no route to 10.1.1.128/25, the podCIDR of Node evil: it overlaps this node's own podCIDR \
         10.1.1.0/24",
        "no route to 10.1.2.0/23, the podCIDR of Node evil: it overlaps 10.1.2.0/24 of Node node-2",
        "no route to 192.0.2.0/25, the podCIDR of Node evil: 192.0.2.1 is the address of a node",
        "no route to ::/0, the podCIDR of Node evil: no pod can have these addresses",
        "no route to 10.1.8.0/24, the podCIDR of Node far: this node has no route to its \
         InternalIP 198.51.100.7",
    ];
    assert_eq!(status["routing"]["rejected"], json!(reasons));
    let warnings = status["warnings"].as_array().context("warnings")?;
    ensure!(reasons.iter().all(|reason| warnings.contains(&json!(reason))), "{warnings:?}");
    assert_eq!(status["errors"], json!([]));
    Ok(())
}

/// Somebody else serves services, and nobody enforces policies.
#[test]
fn routes_may_be_all_that_an_agent_is_for() -> Result<()> {
    let mut segment = Segment::new("direct-alone")?;
    let node = &mut segment.nodes[0];
    node.start_with(&["--routing-mode=direct", "--services=off"])?;
    node.until_routed(&[2, 3])
}

/// An agent that does not route any more leaves no routes that nobody follows.
#[test]
fn off_removes_what_direct_has_left() -> Result<()> {
    let mut segment = Segment::new("direct-off")?;
    let node = &mut segment.nodes[0];
    node.start_agent("direct")?;
    node.until_routed(&[2, 3])?;
    node.agent.take().context("an agent")?.terminate()?;
    node.start_agent("off")?;
    node.until_routed(&[])?;
    assert_eq!(routing(node.agent()?)?, Value::Null);
    Ok(())
}
