//! `--routing-mode table`: what a node announces, and that its rules are in the kernel before and
//! after.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use denizen_route::{RouteChange, RouteWatch};
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cni::Chain;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::metric;
use denizen_tests::packets::probe::{Outcome, Probe};
use denizen_tests::packets::server::Server;
use denizen_tests::test_length;
use serde_json::{Value, json};

use super::segment::{Node, Segment, addresses, object, ping};
use super::{TIMEOUT, ranges};

pub(super) const VIPS: [&str; 2] = ["203.0.113.7", "2001:db8:5::7"];
pub(super) const FLAGS: [&str; 3] = [
    "--routing-mode=table",
    "--announce-services=load-balancer-ips,external-ips",
    "--announce-ranges=203.0.113.0/24,2001:db8:5::/64",
];

/// The service of the first node's pod, at both VIPs, with policy Local.
pub(super) fn web(node: &Node, is_ready: bool) -> Result<Vec<Value>> {
    let ports = [Port::tcp("http", 80, PORT)];
    let mut web = service("web", &service_ips(10), &ports);
    web["spec"]["type"] = "LoadBalancer".into();
    web["spec"]["externalTrafficPolicy"] = "Local".into();
    web["status"] = json!({ "loadBalancer": { "ingress": VIPS.map(|ip| json!({ "ip": ip })) } });
    let mut objects = vec![web];
    for address in &node.pod()?.addresses {
        let mut slice = slice("web", &ports, &[(*address, "node-1")]);
        slice["endpoints"][0]["conditions"] = json!({ "ready": is_ready, "serving": is_ready });
        objects.push(slice);
    }
    Ok(objects)
}

/// The table of announcements, as `ip` shows it, IPv4 first.
pub(super) fn table(netns: &Netns) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        let shown = netns.output("ip", &[family, "route", "show", "table", "219"]);
        // A table without routes does not exist.
        let shown = shown.unwrap_or_default();
        let words = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.extend(words.map(|words| words[..2].join(" ")));
    }
    Ok(lines)
}

pub(super) fn until_table(node: &Node, wanted: &[&str]) -> Result<()> {
    observed("in the table", TIMEOUT, || table(&node.netns), |lines| *lines == wanted).map(drop)
}

fn announced(vips: &[&str]) -> Vec<String> {
    vips.iter().map(|ip| format!("blackhole {ip}")).collect()
}

pub(super) fn explained(node: &Node, address: &str) -> Result<Value> {
    node.agent()?.ask_directly(&json!({ "announce": address }))
}

/// What the kernel says of the table of announcements, the moment it happens.
pub(super) struct Monitor {
    watch: RouteWatch,
}

/// A route of the table appears, or disappears.
#[derive(Debug, PartialEq)]
enum RouteNotice {
    Announced(IpAddr),
    Withdrawn(IpAddr),
}

impl Monitor {
    pub(super) fn of(netns: &Netns) -> Result<Self> {
        Ok(Self { watch: netns.run(|| RouteWatch::open(Vec::new()))?? })
    }

    /// What was said since.
    fn notices(&mut self) -> Result<Vec<RouteNotice>> {
        let mut notices = Vec::new();
        self.watch.changes(|change| {
            notices.extend(match change {
                RouteChange::Added(it) if it.key.table == 219 => {
                    Some(RouteNotice::Announced(it.key.destination.ip()))
                }
                RouteChange::Removed(it) if it.key.table == 219 => {
                    Some(RouteNotice::Withdrawn(it.key.destination.ip()))
                }
                RouteChange::Added(_)
                | RouteChange::Removed(_)
                | RouteChange::Link { .. }
                | RouteChange::Lost => None,
            });
        })?;
        Ok(notices)
    }

    /// The addresses that were withdrawn since.
    pub(super) fn withdrawn(&mut self) -> Result<Vec<IpAddr>> {
        let notices = self.notices()?.into_iter();
        let withdrawn = |notices| {
            if let RouteNotice::Withdrawn(address) = notices { Some(address) } else { None }
        };
        Ok(notices.filter_map(withdrawn).collect())
    }

    fn until(&mut self, wanted: &RouteNotice) -> Result<()> {
        eventually("said", TIMEOUT, || Ok(self.notices()?.contains(wanted)))
    }
}

/// By packets: whoever connects the moment an address is announced is served, and when nobody is
/// served any more, it is not announced any more. iptables takes its time for rules.
#[test]
fn an_address_is_announced_after_its_rules_and_withdrawn_before_they_go() -> Result<()> {
    let mut segment = Segment::new("table-order")?;
    let node = &mut segment.nodes[0];
    node.start_with(&[&FLAGS[..], &["--backend=iptables"]].concat())?;
    node.attach()?;
    let vip = SocketAddr::new(ip(VIPS[0]), 80);
    let (client, manifests) = (&segment.nodes[1], &segment.manifests);
    client.netns.ip(&format!("route add {} via 192.0.2.1", VIPS[0]))?;
    let node = &segment.nodes[0];
    let ask = || Probe::tcp(vip).send_in(&client.netns);
    let mut monitor = Monitor::of(&node.netns)?;
    for _ in 0..test_length::in_full(30, 3) {
        manifests.put("web", &web(node, true)?)?;
        monitor.until(&RouteNotice::Announced(vip.ip()))?;
        let outcome = ask();
        ensure!(outcome.endpoint().is_some(), "announced, and {outcome:?}");
        manifests.put("web", &web(node, false)?)?;
        eventually("not served", TIMEOUT, || Ok(ask().endpoint().is_none()))?;
        let left = table(&node.netns)?;
        ensure!(!left.contains(&announced(&VIPS)[0]), "not served, and announced: {left:?}");
        monitor.until(&RouteNotice::Withdrawn(vip.ip()))?;
    }
    Ok(())
}

/// A killed agent, an upgraded one and a restarted one send not one message about the table. What
/// another program flushes is back at once.
#[test]
fn the_table_is_the_announcement_whoever_runs() -> Result<()> {
    let mut segment = Segment::new("table-stays")?;
    let manifests = segment.manifests.clone();
    let node = &mut segment.nodes[0];
    node.netns.ip("route add blackhole 198.51.100.0/24 proto static table 77")?;
    let [_, before] = node.all_routes()?;
    node.start_with(&FLAGS)?;
    node.attach()?;
    let [_, with_pod] = node.all_routes()?;
    manifests.put("web", &web(node, true)?)?;
    let [v4, v6] = ranges(1);
    let (v4, v6) = (format!("blackhole {v4}"), format!("blackhole {v6}"));
    let [vip, vip6] = VIPS.map(|ip| format!("blackhole {ip}"));
    let all = [&*v4, &vip, &vip6, &v6];
    until_table(node, &all)?;
    let latencies = || metric(&node.netns, "denizen_announce_latency_seconds_count");
    observed("measured", TIMEOUT, latencies, |count| *count >= 1.0)?;
    assert_eq!(metric(&node.netns, "denizen_uncovered_pods")?, 0.0);
    let mut monitor = Monitor::of(&node.netns)?;
    for _ in 0..2 {
        node.agent.take().context("an agent")?.kill()?;
        node.start_with(&FLAGS)?;
        let is_whole = |status: &Value| status["announcements"]["inTable"] == 4;
        node.agent()?.until("announced", TIMEOUT, is_whole)?;
    }
    assert_eq!(monitor.notices()?, [], "while agents were replaced");
    node.netns.output("ip", &["route", "flush", "table", "219"])?;
    node.netns.output("ip", &["-6", "route", "flush", "table", "219"])?;
    until_table(node, &all)?;
    let status = node.agent()?.status()?;
    let wanted = json!({ "load-balancer-ip": 2, "pod-cidr": 2 });
    assert_eq!(status["announcements"]["announced"], wanted);
    ensure!(status["announcements"]["repaired"].as_u64() >= Some(4), "{status}");
    // An agent that announces no more withdraws; so does the clean-up.
    node.agent.take().context("an agent")?.terminate()?;
    until_table(node, &all)?;
    let cleanup = node.netns.output(
        &binary::ours("denizen-agent")?.to_string_lossy(),
        &["cleanup", "--run-dir", &node.run_dir.to_string_lossy()],
    )?;
    ensure!(cleanup.contains("removed 4 announcements"), "{cleanup}");
    let [ours, others] = node.all_routes()?;
    assert_eq!((ours, others), (Vec::new(), with_pod.clone()));
    ensure!(before.iter().all(|route| with_pod.contains(route)), "{before:?} {with_pod:?}");
    node.start_with(&FLAGS)?;
    until_table(node, &all)?;
    node.agent.take().context("an agent")?.terminate()?;
    node.start_with(&[&FLAGS[..], &["--announce-pods=off"]].concat())?;
    until_table(node, &[&vip, &vip6])?;
    let uncovered = || metric(&node.netns, "denizen_uncovered_pods");
    observed("uncovered", TIMEOUT, uncovered, |pods| *pods == 1.0)?;
    node.agent.take().context("an agent")?.terminate()?;
    node.start_agent("off")?;
    until_table(node, &[])
}

/// Users ask for other people's addresses, a node drains, an endpoint is not ready: each has its
/// reason.
#[test]
fn every_address_has_a_reason() -> Result<()> {
    let mut segment = Segment::new("table-why")?;
    let manifests = segment.manifests.clone();
    let node = &mut segment.nodes[0];
    node.netns.ip("route add default via 192.0.2.254")?;
    node.start_with(&[&FLAGS[..], &["--drain-taints=away", "--drain-wait=1s"]].concat())?;
    node.attach()?;
    manifests.put("web", &web(node, true)?)?;
    let ports = [Port::tcp("http", 80, PORT)];
    let mut evil = service("evil", &service_ips(11), &ports);
    let stolen = ["192.0.2.1", "192.0.2.2", "192.0.2.254", "198.51.100.9", "10.1.2.9"];
    evil["spec"]["externalIPs"] = json!(stolen);
    let pod = node.pod()?.addresses[0];
    manifests.put("evil", &[evil, slice("evil", &ports, &[(pod, "node-1")])])?;
    let [vip, vip6] = VIPS;
    observed("explained", TIMEOUT, || explained(node, vip), |status| status["announced"] == true)?;
    // Outside the ranges are all of them, and what is worse is said.
    let outside = "outside-ranges";
    let reasons = ["node-address", "node-address", "forbidden", outside, outside];
    for (address, reason) in stolen.iter().zip(reasons) {
        let it = explained(node, address)?;
        let is_meant = it["reason"] == reason && it["announced"] == false;
        ensure!(is_meant, "{address}: {it}");
        ensure!(it["owner"] == "Service default/evil", "{address}: {it}");
    }
    let status = node.agent()?.status()?;
    assert_eq!(status["announcements"]["refused"].as_array().map(Vec::len), Some(stolen.len()));
    let text = node.netns.output(
        &binary::ours("denizen-agent")?.to_string_lossy(),
        &["explain", "--announce", "192.0.2.2", "--run-dir", &node.run_dir.to_string_lossy()],
    )?;
    let notices = "192.0.2.2 is not announced: 192.0.2.2 is an address of node node-2";
    ensure!(text.starts_with(notices), "{text}");
    // A node comes whose address it is: no rule changes.
    manifests.put("late", &[object("late", 9, &[ip(vip)], &[])])?;
    observed(
        "a node's",
        TIMEOUT,
        || explained(node, vip),
        |status| status["reason"] == "node-address",
    )?;
    manifests.remove("late")?;
    observed("nobody's", TIMEOUT, || explained(node, vip), |status| status["announced"] == true)?;
    manifests.put("web", &web(node, false)?)?;
    let reason = |address: &Value| address["reason"] == "no-endpoint";
    observed("withdrawn", TIMEOUT, || explained(node, vip6), reason)?;
    manifests.put("web", &web(node, true)?)?;
    // The node drains: the only one that serves under policy Local is preferred less, and stays.
    let mut nodes = super::objects(1..=3);
    nodes[0]["spec"]["taints"] = json!([{ "key": "away", "effect": "NoSchedule" }]);
    manifests.put("nodes", &nodes)?;
    let preferred_less = |address: &Value| address["metric"] == 205 && address["announced"] == true;
    observed("draining", TIMEOUT, || explained(node, vip), preferred_less)?;
    let mut cluster = web(node, true)?;
    cluster[0]["spec"]["externalTrafficPolicy"] = "Cluster".into();
    manifests.put("web", &cluster)?;
    observed(
        "withdrawn",
        TIMEOUT,
        || explained(node, vip),
        |status| status["reason"] == "draining",
    )?;
    let [range, range6] = ranges(1);
    until_table(node, &[&format!("blackhole {range}"), &format!("blackhole {range6}")])
}

/// How many packets to a VIP's port 81, and pings of it, the router has passed on.
fn passed_on(router: &Netns, vip: IpAddr) -> Result<u64> {
    let family = if vip.is_ipv4() { "ip" } else { "ip6" };
    let shown = router.output("nft", &["list", "chain", family, "count", "forward"])?;
    let counters = shown.split("packets ").skip(1).filter_map(|rest| rest.split(' ').next());
    counters.map(|packets| Ok(packets.parse::<u64>()?)).sum()
}

/// Has packets between a router and the first node go round: what the node does not deliver it
/// sends back. The router counts those to this address, port 81, and pings.
fn go_round(segment: &Segment, range: &str, to: IpAddr) -> Result<()> {
    let (family, of) = if to.is_ipv4() { ("ip", 0) } else { ("ip6", 1) };
    let [of_node, of_router] = [1, 2].map(|number| addresses(number)[of]);
    let [node, router, client] = &segment.nodes[..] else { bail!("three nodes") };
    router.netns.ip(&format!("route add {range} via {of_node}"))?;
    client.netns.ip(&format!("route add {range} via {of_router}"))?;
    node.netns.ip(&format!("route add default via {of_router}"))?;
    router.netns.nft(&format!(
        "table {family} count {{ chain forward {{ type filter hook forward priority 0; \
         {family} daddr {to} th dport 81 counter; \
         {family} daddr {to} meta l4proto {{ icmp, ipv6-icmp }} counter; }}; }}"
    ))
}

/// A router and a node that would send each other what neither takes: it is refused at once, in
/// both families, also what the node itself sends. What a service takes is served.
#[test]
fn what_no_service_takes_is_refused_and_goes_round_in_no_loop() -> Result<()> {
    let mut segment = Segment::new("table-loop")?;
    let manifests = segment.manifests.clone();
    let node = &mut segment.nodes[0];
    node.start_with(&FLAGS)?;
    node.attach()?;
    manifests.put("web", &web(node, true)?)?;
    observed(
        "announced",
        TIMEOUT,
        || explained(node, VIPS[1]),
        |status| status["announced"] == true,
    )?;
    // The second node is the router, in between the third and the first, and its default route.
    let [node, router, client] = &segment.nodes[..] else { bail!("three nodes") };
    for vip in VIPS.map(ip) {
        go_round(&segment, &vip.to_string(), vip)?;
        let family = if vip.is_ipv4() { "ip" } else { "ip6" };
        let ask = |port| Probe::tcp(SocketAddr::new(vip, port));
        for (name, netns) in [("client", &client.netns), ("node", &node.netns)] {
            let served = ask(80).send_in(netns);
            ensure!(served.endpoint().is_some(), "{vip} from the {name}: {served:?}");
            assert_eq!(ask(81).send_in(netns), Outcome::Refused, "{vip} from the {name}");
        }
        // What is not TCP as well. (The router has sent the client an ICMP redirect, and the kernel
        // sends it no error as soon after that.)
        let by_udp = Probe::udp(SocketAddr::new(vip, 81)).timeout(Duration::from_millis(100));
        assert_eq!(by_udp.send_in(&node.netns), Outcome::Refused, "{vip} by UDP");
        by_udp.send_in(&client.netns);
        let pinged = [&node.netns, &client.netns].map(|from| ping(from, vip));
        ensure!(
            pinged.iter().all(|answer| matches!(answer, Ok(Err(_)))),
            "a ping of {vip}: {pinged:?}"
        );
        let passed = passed_on(&router.netns, vip)?;
        ensure!(passed <= 4, "{passed} packets to {vip}");
        // Somebody deletes the table: it is back at once.
        let (netns, is_back) = (&node.netns, ["list", "table", family, "denizen-announced"]);
        netns.nft(&format!("delete table {family} denizen-announced"))?;
        eventually("repaired", TIMEOUT, || Ok(netns.output("nft", &is_back).is_ok()))?;
        assert_eq!(ask(81).send_in(&client.netns), Outcome::Refused, "{vip} after a repair");
    }
    // Without the rules, each goes around until its TTL ends.
    segment.nodes[0].agent.take().context("an agent")?.terminate()?;
    let [node, router, client] = &segment.nodes[..] else { bail!("three nodes") };
    for vip in VIPS.map(ip) {
        let family = if vip.is_ipv4() { "ip" } else { "ip6" };
        node.netns.nft(&format!("delete table {family} denizen-announced"))?;
        let probe = Probe::tcp(SocketAddr::new(vip, 81)).timeout(Duration::from_millis(100));
        for by_ping in [false, true] {
            let before = passed_on(&router.netns, vip)?;
            if by_ping {
                drop(ping(&client.netns, vip)?)
            } else {
                drop(probe.send_in(&client.netns))
            }
            let passed = passed_on(&router.netns, vip)? - before;
            ensure!(passed >= 20, "{passed} packets to {vip} without the rules");
        }
    }
    Ok(())
}

/// A pod of the first node's podCIDRs, without a bridge that has these.
fn routed_pod(node: &Node) -> Result<(Server, Pod)> {
    let ranges = ranges(1);
    let gateways = ["10.1.1.1", "fd01:1::1"].map(ip);
    let pairs = [0, 1].map(|family| (ranges[family].as_str(), gateways[family]));
    let wait = json!({ "waitForAgent": { "timeout": "10s", "onTimeout": "fail" } });
    let chain = Chain::routed(&pairs, &node.run_dir.join("addresses"));
    node.attach_by(&chain.then_denizen(&node.run_dir, &wait))
}

/// A pod that is routed to ends, and a client goes on to ask for it: it learns at once that there
/// is no way, in both families.
#[test]
fn what_no_pod_has_is_unreachable_and_goes_round_in_no_loop() -> Result<()> {
    let mut segment = Segment::new("table-dead")?;
    let node = &mut segment.nodes[0];
    node.start_with(&FLAGS)?;
    let (server, pod) = routed_pod(node)?;
    let ranges = ranges(1);
    let [node, router, client] = &segment.nodes[..] else { bail!("three nodes") };
    let until_unreachable = |family: &str, range: &str| {
        let shown = || node.netns.output("ip", &[family, "route", "show", "type", "unreachable"]);
        observed("unreachable", TIMEOUT, shown, |routes| routes.contains(range))
    };
    let addresses = pod.addresses.clone();
    for (address, range) in addresses.iter().zip(&ranges) {
        until_unreachable(if address.is_ipv4() { "-4" } else { "-6" }, range)?;
        go_round(&segment, range, *address)?;
        let outcome = Probe::tcp(SocketAddr::new(*address, PORT)).send_in(&client.netns);
        ensure!(outcome.endpoint().is_some(), "{address} while it is there: {outcome:?}");
    }
    drop(server);
    pod.detach(&node.netns)?;
    let probe = |address: IpAddr| Probe::tcp(SocketAddr::new(address, 81));
    for address in &addresses {
        assert_eq!(probe(*address).send_in(&client.netns), Outcome::Unreachable, "{address}");
        let passed = passed_on(&router.netns, *address)?;
        ensure!(passed <= 2, "{passed} packets to {address}");
    }
    // Without the routes, each goes around until its TTL ends.
    segment.nodes[0].agent.take().context("an agent")?.terminate()?;
    let [node, router, client] = &segment.nodes[..] else { bail!("three nodes") };
    for (address, range) in addresses.iter().zip(&ranges) {
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        let route = [family, "route", "del", "unreachable", range, "metric", "20000"];
        node.netns.output("ip", &route)?;
        probe(*address).timeout(Duration::from_millis(100)).send_in(&client.netns);
        let passed = passed_on(&router.netns, *address)?;
        ensure!(passed >= 20, "{passed} packets to {address} without the route");
    }
    Ok(())
}
