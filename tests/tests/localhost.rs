//! Node ports on 127.0.0.1, where they are asked for. `route_localnet`, which they need, lets a neighbour's packets in
//! too (CVE-2020-8558), so a rule must be there before it and for as long.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::binary;
use denizen_tests::cast::{Cast, PORT, Who};
use denizen_tests::cluster::serve;
use denizen_tests::manifest::Port;
use denizen_tests::netns::Netns;
use denizen_tests::probe::{Outcome, Probe, Protocol};
use denizen_tests::server::Server;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NODE_PORT: u16 = 30080;
const BOUND: Duration = Duration::from_secs(20);

/// A service with a node port, and how an agent is to serve it on 127.0.0.1.
fn cast(label: &str) -> Result<(Cast, Vec<Server>, Settings)> {
    let (cast, servers) = Cast::new(label)?;
    let ports = [Port::tcp("http", 80, PORT).at_node(NODE_PORT)];
    let web = cast.service("web", 10, &ports, &[Who::Bridged, Who::Remote])?;
    cast.cluster.manifests.put("web", &web)?;
    let mut settings = cast.cluster.settings();
    settings
        .flags
        .push("--nodeport-addresses=all,localhost".to_owned());
    Ok((cast, servers, settings))
}

fn is_open(node: &Netns) -> Result<bool> {
    let now = node.output("cat", &["/proc/sys/net/ipv4/conf/all/route_localnet"])?;
    Ok(now.trim() == "1")
}

#[test]
fn localhost_serves_node_ports_where_asked() -> Result<()> {
    let (cast, _servers, settings) = cast("lo-serve")?;
    let node = &cast.cluster.world.node;
    let agent = Agent::start(node, settings)?;
    let to = SocketAddr::new(LOCALHOST, NODE_PORT);
    let mut answered = BTreeSet::new();
    for _ in 0..40 {
        let outcome = Probe::tcp(to).from(LOCALHOST).ask_in(node);
        let seen = outcome.seen().with_context(|| format!("{outcome:?}"))?;
        assert!(cast.cluster.is_nodes(seen)? && !seen.is_loopback(), "{outcome:?}");
        answered.extend(outcome.endpoint().and_then(|endpoint| cast.owner(endpoint.ip())));
    }
    assert_eq!(answered, BTreeSet::from([Who::Bridged, Who::Remote]));
    let told = agent.explain(LOCALHOST, None, to, Protocol::Tcp)?;
    assert_eq!(
        (told.verdict.as_str(), told.masquerade),
        ("forward", true),
        "{told:?}"
    );
    Ok(())
}

#[test]
fn neighbours_are_kept_out_of_localhost() -> Result<()> {
    let (cast, _servers, settings) = cast("lo-closed")?;
    let node = &cast.cluster.world.node;
    let agent = Agent::start(node, settings)?;
    let private = SocketAddr::new(LOCALHOST, 9999);
    let _private = serve(node, &[LOCALHOST], &[(Protocol::Tcp, private.port())])?;
    let pod = &cast.routed.netns;
    let gateway = pod.output("ip", &["-4", "route", "show", "default"])?;
    let via = gateway.split_whitespace().nth(2).context("a gateway")?;
    pod.sysctl("net.ipv4.conf.all.route_localnet", "1")?;
    let outwards = format!("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.1/32 via {via} dev eth0");
    pod.ip(&outwards)?;
    let ask = || cast.ask(Who::Routed, private, Protocol::Tcp);
    assert_eq!(ask()?, Outcome::Dropped);
    assert!(agent.terminate()?.success());
    assert_eq!(ask()?, Outcome::Dropped, "the rules stay");
    let program = binary::ours("denizen-agent")?;
    let said = node.output(&program.to_string_lossy(), &["cleanup"])?;
    assert!(said.contains("route_localnet=1"), "what is left is said: {said}");
    assert!(ask()?.endpoint().is_some(), "nothing but the rule kept it out");
    Ok(())
}

/// While the services are not known, the rule is not there either.
#[test]
fn localhost_is_not_opened_before_the_rules_are_there() -> Result<()> {
    let (cast, _servers, settings) = cast("lo-early")?;
    let node = &cast.cluster.world.node;
    let (manifests, aside) = (
        cast.cluster.manifests.folder(),
        cast.cluster.world.folder().join("aside"),
    );
    fs::rename(manifests, &aside)?;
    let mut agent = Agent::spawn(node, settings)?;
    let started = Instant::now();
    while agent.status().is_err() {
        ensure!(started.elapsed() < BOUND, "it does not answer: {}", agent.log());
    }
    assert!(!is_open(node)?, "{}", agent.status()?);
    fs::rename(&aside, manifests)?;
    agent.wait_programmed(BOUND)?;
    assert!(is_open(node)?, "{}", agent.log());
    Ok(())
}
