//! Node ports on 127.0.0.1, where they are asked for. `route_localnet`, which they need, lets a
//! neighbour's packets in too (CVE-2020-8558), so a rule must be there before it and for as long.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::wrapped::{WrappedAgent, container};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NODE_PORT: u16 = 30080;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A service with a node port, and how an agent is to serve it on 127.0.0.1.
fn fixture(label: &str) -> Result<(Fixture, Settings)> {
    let fixture = Fixture::new(label)?;
    let ports = [Port::tcp("http", 80, PORT).at_node(NODE_PORT)];
    let web = fixture.service("web", 10, &ports, &[Host::Bridged, Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let mut settings = fixture.cluster.settings();
    settings.flags.push("--nodeport-addresses=all,localhost".to_owned());
    Ok((fixture, settings))
}

fn is_open(node: &Netns) -> Result<bool> {
    let now = node.output("cat", &["/proc/sys/net/ipv4/conf/all/route_localnet"])?;
    Ok(now.trim() == "1")
}

#[test]
fn localhost_serves_node_ports_where_asked() -> Result<()> {
    let (fixture, settings) = fixture("lo-serve")?;
    let node = &fixture.cluster.world.node;
    let agent = Agent::start(node, settings)?;
    let to = SocketAddr::new(LOCALHOST, NODE_PORT);
    let mut answered = BTreeSet::new();
    for _ in 0..40 {
        let outcome = Probe::tcp(to).from(LOCALHOST).send_in(node);
        let seen = outcome.seen().with_context(|| format!("{outcome:?}"))?;
        assert!(fixture.cluster.is_nodes(seen)? && !seen.is_loopback(), "{outcome:?}");
        answered.extend(outcome.endpoint().and_then(|endpoint| fixture.owner(endpoint.ip())));
    }
    assert_eq!(answered, BTreeSet::from([Host::Bridged, Host::Remote]));
    let explained = agent.explain(LOCALHOST, None, to, Protocol::Tcp)?;
    assert_eq!(
        (explained.verdict.as_str(), explained.masquerade),
        ("forward", true),
        "{explained:?}"
    );
    Ok(())
}

/// What listens on the node's loopback interface alone.
const PRIVATE: SocketAddr = SocketAddr::new(LOCALHOST, 9999);

/// A pod takes the node for the way to 127.0.0.1, as any neighbour can.
fn neighbour(fixture: &Fixture) -> Result<()> {
    let pod = &fixture.routed.netns;
    let gateway = pod.output("ip", &["-4", "route", "show", "default"])?;
    let via = gateway.split_whitespace().nth(2).context("a gateway")?;
    pod.sysctl("net.ipv4.conf.all.route_localnet", "1")?;
    pod.ip(&format!("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.1/32 via {via} dev eth0"))
}

/// What becomes of the neighbour's connection.
fn intrude(fixture: &Fixture) -> Result<Outcome> {
    fixture.probe(Host::Routed, PRIVATE, Protocol::Tcp)
}

fn set(node: &Netns, value: &str) -> Result<()> {
    node.sysctl("net.ipv4.conf.all.route_localnet", value)
}

fn cleanup(fixture: &Fixture) -> Result<String> {
    let program = binary::ours("denizen-agent")?;
    let run_dir = fixture.cluster.run_dir().to_string_lossy();
    fixture
        .cluster
        .world
        .node
        .output(&program.to_string_lossy(), &["cleanup", "--run-dir", &run_dir])
}

#[test]
fn neighbours_are_kept_out_of_localhost() -> Result<()> {
    let (fixture, settings) = fixture("lo-closed")?;
    let node = &fixture.cluster.world.node;
    let agent = Agent::start(node, settings)?;
    let _private = serve(node, &[LOCALHOST], &[(Protocol::Tcp, PRIVATE.port())])?;
    neighbour(&fixture)?;
    assert_eq!(intrude(&fixture)?, Outcome::Dropped);
    assert!(agent.terminate()?.success());
    assert_eq!(intrude(&fixture)?, Outcome::Dropped, "the rules stay");
    let output = cleanup(&fixture)?;
    assert!(output.contains("set net.ipv4.conf.all.route_localnet back to 0"), "{output}");
    assert!(!is_open(node)?, "{output}");
    assert_eq!(intrude(&fixture)?, Outcome::Dropped, "by the kernel");
    set(node, "1")?;
    assert!(intrude(&fixture)?.endpoint().is_some(), "nothing but the rule kept it out");
    Ok(())
}

/// Whoever set it: another of denizen's backends, an operator, for all interfaces or for one.
fn kept_out_after_a_run_that_opened_it(label: &str, first: &[&str], then: &[&str]) -> Result<()> {
    let (fixture, settings) = fixture(label)?;
    let node = &fixture.cluster.world.node;
    let run = |flags: &[&str]| {
        let mut settings = settings.clone();
        settings.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Agent::start(node, settings)
    };
    let _private = serve(node, &[LOCALHOST], &[(Protocol::Tcp, PRIVATE.port())])?;
    neighbour(&fixture)?;
    run(first)?.terminate()?;
    assert!(is_open(node)?, "it is needed");
    assert_eq!(intrude(&fixture)?, Outcome::Dropped);
    let agent = run(then)?;
    if !then.contains(&"--backend=iptables") {
        let sets = || node.output("ipset", &["list", "-n"]);
        observed("rid of iptables' sets", TIMEOUT, sets, |sets| !sets.contains("DENIZEN-"))?;
    }
    assert_eq!(intrude(&fixture)?, Outcome::Dropped, "after the start that needs it no more");
    assert!(!is_open(node)?, "it was denizen's own doing: {}", agent.log());
    set(node, "1")?;
    assert_eq!(intrude(&fixture)?, Outcome::Dropped, "set by somebody else");
    set(node, "0")?;
    let pod_side = fixture.routed.host_interface();
    node.sysctl(&format!("net.ipv4.conf.{pod_side}.route_localnet"), "1")?;
    assert_eq!(intrude(&fixture)?, Outcome::Dropped, "set for one interface");
    set(node, "1")?;
    agent.terminate()?;
    run(then)?;
    assert!(is_open(node)?, "somebody else's doing stays");
    Ok(())
}

#[test]
fn neighbours_are_kept_out_after_iptables_opened_localhost() -> Result<()> {
    kept_out_after_a_run_that_opened_it("lo-ipt", &["--backend=iptables"], &["--backend=nftables"])
}

#[test]
fn neighbours_are_kept_out_after_nftables_opened_localhost() -> Result<()> {
    let opens = ["--backend=nftables", "--nodeport-addresses=all,localhost"];
    kept_out_after_a_run_that_opened_it("lo-nft", &opens, &["--backend=nftables"])
}

#[test]
fn neighbours_are_kept_out_when_iptables_needs_localhost_no_more() -> Result<()> {
    let needs_none = ["--backend=iptables", "--iptables-localhost-nodeports=false"];
    kept_out_after_a_run_that_opened_it("lo-ipt2", &["--backend=iptables"], &needs_none)
}

/// In a container whose kernel settings are read-only it is said, and the rule keeps neighbours
/// out; whoever may set it does so later.
#[test]
fn what_cannot_be_set_back_is_said_and_guarded() -> Result<()> {
    let (fixture, settings) = fixture("lo-said")?;
    let node = &fixture.cluster.world.node;
    let _private = serve(node, &[LOCALHOST], &[(Protocol::Tcp, PRIVATE.port())])?;
    neighbour(&fixture)?;
    Agent::start(node, settings)?.terminate()?;
    let agent = WrappedAgent::start(&fixture.cluster, container(&["NET_ADMIN".to_owned()]))?;
    let status = agent.until("programmed", |status| status["synced"] == true)?;
    let output = status["warnings"].to_string();
    assert!(output.contains("route_localnet is 1 and cannot be set to 0"), "{status}");
    assert!(is_open(node)?);
    assert_eq!(intrude(&fixture)?, Outcome::Dropped);
    drop(agent);
    let mut init = Command::new(binary::ours("denizen-agent")?);
    init.args(["run", "--init-only", "--node-name", "node", "--manifests"]);
    init.arg(fixture.cluster.manifests.folder()).arg("--run-dir");
    init.arg(fixture.cluster.run_dir());
    node.run(|| checked(&mut init))??;
    assert!(!is_open(node)?);
    Ok(())
}

/// While the services are not known, the rule is not there either.
#[test]
fn localhost_is_not_opened_before_the_rules_are_there() -> Result<()> {
    let (fixture, settings) = fixture("lo-early")?;
    let node = &fixture.cluster.world.node;
    let (manifests, aside) =
        (fixture.cluster.manifests.folder(), fixture.cluster.world.folder().join("aside"));
    fs::rename(manifests, &aside)?;
    let mut agent = Agent::spawn(node, settings)?;
    eventually("answering", TIMEOUT, || Ok(agent.status().is_ok()))?;
    assert!(!is_open(node)?, "{}", agent.status()?);
    fs::rename(&aside, manifests)?;
    agent.wait_programmed(TIMEOUT)?;
    assert!(is_open(node)?, "{}", agent.log());
    Ok(())
}
