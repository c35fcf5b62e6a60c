//! `denizen-agent drops`: its totals are the counters', and what is dropped is shown with the
//! reason for as long as somebody watches, and no longer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::agent::watch::WatchCommand;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::packets::http::metric;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::policy::{
    ClusterNetworkPolicy, LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld,
};
use serde_json::{Value, json};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

const REFUSED_BY_POLICY: &str = "no policy permits this to reach the pod";
const NO_ENDPOINTS: &str = "no endpoints: refuse at once";
const NO_SERVICE: &str = "no service has this port, and nobody else answers on a cluster IP";

/// Nobody may reach the bridged pod, and nobody serves `lonely`.
fn context(label: &str, flags: &[&str]) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("lonely", &fixture.service("lonely", 99, &HTTP, &[])?)?;
    manifests.put("pods", &fixture.pod_objects("web", "client"))?;
    let nobody = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("role", "nobody"))]);
    let policy = NetworkPolicy::new("default", "closed", LabelSelector::label("role", "web"));
    let policies =
        PolicyWorld { policies: vec![policy.ingress([nobody])], ..PolicyWorld::default() };
    manifests.put("policies", &policies.manifests())?;
    let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
    Ok((fixture, agent))
}

/// By table, reason and whether it is answered.
type CountsByReason = BTreeMap<(String, String, bool), u64>;

fn drops(fixture: &Fixture, agent: &Agent) -> Result<Value> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("drops").arg("--run-dir").arg(agent.run_dir()).args(["--output", "json"]);
    let output = fixture.cluster.world.node.run(|| checked(&mut command))??;
    serde_json::from_slice(&output.stdout).context("no JSON")
}

fn shown(fixture: &Fixture, agent: &Agent) -> Result<CountsByReason> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let shown = drops(fixture, agent)?;
    let rows = shown["drops"].as_array().context("a list")?.iter();
    let row = |row: &Value| {
        let key = (text(row, "table"), text(row, "reason"), row["verdict"] == "refused");
        (key, row["packets"].as_u64().unwrap_or_default())
    };
    Ok(rows.map(row).filter(|(_, packets)| *packets > 0).collect())
}

/// What nft shows of the counters of rules that drop or reject.
fn counted(node: &Netns) -> Result<CountsByReason> {
    let mut counts = CountsByReason::new();
    for (family, table) in [
        ("ip", "denizen"),
        ("ip6", "denizen"),
        ("ip", "denizen-firewall"),
        ("ip6", "denizen-firewall"),
        ("bridge", "denizen-firewall"),
    ] {
        for line in node.output("nft", &["list", "table", family, table])?.lines() {
            let Some((rule, comment)) = line.split_once(" comment \"") else { continue };
            let refuses = rule.contains("reject");
            let Some((_, count)) = rule.split_once("counter packets ") else { continue };
            if !refuses && !rule.ends_with(" drop") {
                continue;
            }
            let (_, reason) = comment.trim_end_matches('"').split_once(' ').context("an id")?;
            let packets: u64 = count.split(' ').next().context("a count")?.parse()?;
            let key = (format!("{family} {table}"), reason.to_owned(), refuses);
            *counts.entry(key).or_default() += packets;
        }
    }
    counts.retain(|_, packets| *packets > 0);
    Ok(counts)
}

/// Each is dropped or refused; as the pod that may reach nobody.
fn ask_all(fixture: &Fixture) -> Result<()> {
    for like in service_ips(99) {
        let pod = SocketAddr::new(fixture.address(Host::Bridged, like)?, PORT);
        let source = fixture.address(Host::Routed, like)?;
        let dropped = Probe::tcp(pod).from(source).timeout(SILENCE);
        assert_eq!(dropped.send_in(fixture.place(Host::Routed).0), Outcome::Dropped, "{pod}");
        for port in [80, 81] {
            let to = SocketAddr::new(like, port);
            assert_eq!(fixture.probe(Host::Routed, to, Protocol::Tcp)?, Outcome::Refused, "{to}");
        }
    }
    Ok(())
}

/// Has a pod's kernel count what it sends to the bridged pod's port.
fn count_sent(pod: &Netns) -> Result<()> {
    pod.nft(&format!(
        "table inet sent {{ chain out {{ type filter hook output priority 0; \
         tcp dport {PORT} counter; }}; }}"
    ))
}

fn sent(pod: &Netns) -> Result<u64> {
    let table = pod.output("nft", &["list", "table", "inet", "sent"])?;
    let (_, count) = table.split_once("counter packets ").context("a counter")?;
    Ok(count.split(' ').next().context("a count")?.parse()?)
}

/// The metric of what no policy permits to reach a pod.
fn refused_ingress(node: &Netns) -> Result<u64> {
    Ok(metric(node, "denizen_network_policy_dropped_packets_total{reason=\"ingress\"}")? as u64)
}

/// A SYN that is not answered is sent again: on a busy machine there may be more than one each.
#[test]
fn the_metric_of_drops_is_how_many_packets_were_sent_in_vain() -> Result<()> {
    let (fixture, _agent) = context("drops-metric", &["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    let pod = fixture.place(Host::Routed).0;
    count_sent(pod)?;
    for _ in 0..2 {
        ask_all(&fixture)?;
        ensure!(sent(pod)? >= 2, "both families");
        eventually("the metric says so", TIMEOUT, || Ok(refused_ingress(node)? == sent(pod)?))?;
    }
    let refused =
        counted(node)?.into_iter().filter(|((_, found, _), _)| found == REFUSED_BY_POLICY);
    assert_eq!(refused.map(|(_, packets)| packets).sum::<u64>(), sent(pod)?);
    Ok(())
}

fn traces(node: &Netns) -> Result<bool> {
    Ok(node.output("nft", &["list", "ruleset"])?.contains("nftrace"))
}

#[test]
fn drops_are_counted_and_shown_while_somebody_watches() -> Result<()> {
    let (fixture, agent) = context("drops", &["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    ask_all(&fixture)?;
    let before = shown(&fixture, &agent)?;
    assert_eq!(before, counted(node)?);
    for (reason, refuses) in [(REFUSED_BY_POLICY, false), (NO_ENDPOINTS, true), (NO_SERVICE, true)]
    {
        let is_it =
            |(_, found, refused): &&(String, String, bool)| found == reason && *refused == refuses;
        assert_eq!(before.keys().filter(is_it).count(), 2, "both families: {before:?}");
    }
    ensure!(!traces(node)?, "nobody watches");

    let watching = WatchCommand::start(node, &agent, &["drops"])?;
    ensure!(traces(node)?, "somebody watches");
    assert_eq!(shown(&fixture, &agent)?, before, "what was counted stays");
    ask_all(&fixture)?;
    for like in service_ips(99) {
        let pod = SocketAddr::new(fixture.address(Host::Bridged, like)?, PORT);
        let shown = |to: SocketAddr, verdict: &str, reason: &str| {
            let is_it = |dropped: &Value| dropped["destination"]["address"] == to.to_string();
            let packet = watching.until(&format!("a packet to {to}"), is_it)?;
            assert_eq!(packet["verdict"], verdict, "{packet:#}");
            assert_eq!(packet["reason"], reason, "{packet:#}");
            assert_eq!(packet["source"]["name"], "default/routed", "{packet:#}");
            assert_eq!(packet["protocol"], "tcp", "{packet:#}");
            assert_eq!(packet["input"], fixture.routed.input_interface, "{packet:#}");
            Ok::<Value, anyhow::Error>(packet)
        };
        let packet = shown(pod, "dropped", REFUSED_BY_POLICY)?;
        assert_eq!(packet["destination"]["name"], "default/bridged", "{packet:#}");
        assert_eq!(packet["policy"], "NetworkPolicy default/closed", "{packet:#}");
        let packet = shown(SocketAddr::new(like, 80), "refused", NO_ENDPOINTS)?;
        assert_eq!(packet["service"], "default/lonely:http", "{packet:#}");
        let packet = shown(SocketAddr::new(like, 81), "refused", NO_SERVICE)?;
        ensure!(packet["service"].is_null(), "{packet:#}");
    }
    let now = self::shown(&fixture, &agent)?;
    assert_eq!(now, counted(node)?);
    ensure!(before.iter().all(|(key, packets)| now[key] > *packets), "{before:?} {now:?}");

    watching.kill()?;
    eventually("nothing is left after SIGKILL", TIMEOUT, || Ok(!traces(node)?))?;
    assert_eq!(self::shown(&fixture, &agent)?, now, "what was counted stays");
    Ok(())
}

/// What `kubectl denizen ui` asks for. Packets that differ in their source port alone are one kind.
#[test]
fn relay_tells_what_is_dropped_within_seconds_and_ends() -> Result<()> {
    let (fixture, agent) = context("drops-relay", &["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("relay").arg("--run-dir").arg(agent.run_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut relay = node.run(|| command.spawn())??;
    let mut stdin = relay.stdin.take().context("no input")?;
    stdin.write_all(b"{\"dropped\":{\"seconds\":6}}\n{\"end\":{}}\n")?;
    eventually("watched", TIMEOUT, || traces(node))?;
    while relay.try_wait()?.is_none() {
        ask_all(&fixture)?;
    }
    let printed = String::from_utf8(relay.wait_with_output()?.stdout)?;
    let line = printed.lines().nth(1).context("no answer")?;
    let answer = serde_json::from_str::<Value>(line)?["answer"].take();
    let kinds = answer["dropped"].as_array().with_context(|| line.to_owned())?;
    let of = |reason: &str, destination: String| -> Result<&Value> {
        let is_it = |kind: &&Value| {
            kind["reason"] == reason && kind["destination"]["address"] == destination.as_str()
        };
        let found: Vec<&Value> = kinds.iter().filter(is_it).collect();
        ensure!(found.len() == 1, "{reason} {destination}: {answer:#}");
        Ok(found[0])
    };
    for like in service_ips(99) {
        let pod = SocketAddr::new(fixture.address(Host::Bridged, like)?, PORT);
        let dropped = of(REFUSED_BY_POLICY, pod.to_string())?;
        ensure!(dropped["verdict"] == "dropped" && dropped["packets"].as_u64() > Some(0));
        let policy = dropped["policy"].as_str().unwrap_or_default();
        ensure!(policy.contains("default/closed"), "{dropped:#}");
        let refused = of(NO_ENDPOINTS, SocketAddr::new(like, 80).to_string())?;
        ensure!(refused["verdict"] == "refused", "{refused:#}");
        ensure!(refused["service"] == "default/lonely:http", "{refused:#}");
    }
    ensure!(
        answer["sampled"] == json!({ "services": true, "networkPolicies": true }),
        "{answer:#}"
    );
    eventually("no rule shows packets any more", TIMEOUT, || Ok(!traces(node)?))
}

#[test]
fn the_rule_of_a_cluster_network_policy_is_named() -> Result<()> {
    let (fixture, agent) = context("drops-tier", &["--network-policy=on"])?;
    let deny = json!({
        "action": "Deny", "name": "no-pods", "from": [{ "namespaces": {} }],
        "protocols": [{ "tcp": { "destinationPort": { "number": PORT } } }],
    });
    let subject = json!({ "pods": { "podSelector": { "matchLabels": { "role": "web" } } } });
    let policy = ClusterNetworkPolicy::new("Admin", 7, "shut", subject).ingress([deny]);
    let policies = PolicyWorld { tiers: vec![policy], ..PolicyWorld::default() };
    fixture.cluster.manifests.put("policies", &policies.manifests())?;
    agent.until("it is in force", TIMEOUT, |status| {
        status["networkPolicy"]["clusterPolicies"] == 1
    })?;
    let watching = WatchCommand::start(&fixture.cluster.world.node, &agent, &["drops"])?;
    let pod = SocketAddr::new(fixture.bridged.addresses[0], PORT);
    let source = fixture.address(Host::Routed, pod.ip())?;
    let dropped = Probe::tcp(pod).from(source).timeout(SILENCE);
    assert_eq!(dropped.send_in(fixture.place(Host::Routed).0), Outcome::Dropped);
    let packet = watching.until("the policy's drop", |packet| packet["verdict"] == "dropped")?;
    assert_eq!(packet["reason"], REFUSED_BY_POLICY, "{packet:#}");
    let named = packet["policy"].as_str().unwrap_or_default();
    let rule = "ClusterNetworkPolicy Admin 7 shut ingress[0] \"no-pods\" (Deny)";
    ensure!(named.starts_with(rule), "{packet:#}");
    Ok(())
}

/// The agent ends, and the command cannot ask it any more.
#[test]
fn nothing_that_shows_drops_outlives_the_agent() -> Result<()> {
    let (fixture, agent) = context("drops-left", &["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    ask_all(&fixture)?;
    let rules = node.output("nft", &["--stateless", "list", "ruleset"])?;
    let watching = WatchCommand::start(node, &agent, &["drops"])?;
    ensure!(traces(node)?, "somebody watches");
    agent.kill()?;
    let printed = watching.ended()?;
    ensure!(printed.contains("no agent answers"), "{printed}");
    assert_eq!(node.output("nft", &["--stateless", "list", "ruleset"])?, rules, "after SIGKILL");
    ask_all(&fixture)?;
    let agent = fixture.cluster.start_agent_with(["--network-policy=on"])?;
    let watching = WatchCommand::start(node, &agent, &["drops"])?;
    ensure!(traces(node)?, "somebody watches again");
    agent.terminate()?;
    ensure!(!traces(node)?, "after SIGTERM");
    watching.ended().map(drop)
}

#[test]
fn an_agent_that_is_killed_while_drops_are_watched_leaves_nothing_to_the_next() -> Result<()> {
    let (fixture, agent) = context("drops-killed", &["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    let watching = WatchCommand::start(node, &agent, &["drops"])?;
    agent.kill()?;
    watching.kill()?;
    ensure!(traces(node)?, "the rules stay without the agent");
    let agent = fixture.cluster.start_agent_with(["--network-policy=on"])?;
    eventually("the next agent removes them", TIMEOUT, || Ok(!traces(node)?))?;
    ask_all(&fixture)?;
    assert_eq!(shown(&fixture, &agent)?, counted(node)?);
    Ok(())
}

/// They have nothing to print at which they would notice.
#[test]
fn what_watches_ends_with_its_reader() -> Result<()> {
    let (fixture, agent) = context("drops-reader", &["--network-policy=on"])?;
    let from = fixture.routed.addresses[0].to_string();
    let to = SocketAddr::new(fixture.bridged.addresses[0], PORT).to_string();
    let trace = ["trace", "--from", &from, "--to", &to, "--timeout", "10m"];
    let commands: [&[&str]; 3] =
        [&["drops", "--watch"], &["connections", "--watch", "--pod", "default/bridged"], &trace];
    for words in commands {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.args(words).arg("--run-dir").arg(agent.run_dir());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = fixture.cluster.world.node.run(|| command.spawn())??;
        let mut errors = BufReader::new(child.stderr.take().context("a pipe")?);
        let mut line = String::new();
        errors.read_line(&mut line)?;
        ensure!(line.starts_with("watching") || line.starts_with("following"), "{words:?}: {line}");
        ensure!(child.try_wait()?.is_none(), "{words:?} has ended");
        drop(child.stdout.take());
        let ended = eventually("it ends", TIMEOUT, || Ok(child.try_wait()?.is_some()));
        let _ = child.kill();
        ensure!(ended.is_ok() && child.wait()?.success(), "{words:?}: {ended:?}");
    }
    Ok(())
}

#[test]
fn with_iptables_services_are_counted_and_policies_are_shown() -> Result<()> {
    let flags = ["--backend=iptables", "--iptables-variant=nft", "--network-policy=on"];
    let (fixture, agent) = context("drops-ipt", &flags)?;
    let node = &fixture.cluster.world.node;
    let pod = SocketAddr::new(fixture.bridged.addresses[0], PORT);
    let lonely = SocketAddr::new(service_ips(99)[0], 80);
    let ask = || -> Result<()> {
        let source = fixture.address(Host::Routed, pod.ip())?;
        let dropped = Probe::tcp(pod).from(source).timeout(SILENCE);
        assert_eq!(dropped.send_in(fixture.place(Host::Routed).0), Outcome::Dropped);
        let refused = fixture.probe(Host::Routed, lonely, Protocol::Tcp)?;
        assert_eq!(refused, Outcome::Refused);
        Ok(())
    };
    let watching = WatchCommand::start(node, &agent, &["drops"])?;
    ask()?;
    let packet = watching.until("the policy's drop", |packet| packet["verdict"] == "dropped")?;
    assert_eq!(packet["destination"]["name"], "default/bridged", "{packet:#}");
    let counts = shown(&fixture, &agent)?;
    let is_lonely = |(_, reason, refused): &&(String, String, bool)| {
        *refused && reason.contains("default/lonely:http has no endpoints")
    };
    ensure!(counts.keys().any(|key| is_lonely(&key)), "{counts:?}");
    ensure!(drops(&fixture, &agent)?.get("notCounted").is_none());
    Ok(())
}

#[test]
fn what_cannot_be_counted_or_shown_is_said() -> Result<()> {
    let flags = ["--backend=iptables", "--iptables-variant=legacy", "--network-policy=off"];
    let (fixture, agent) = context("drops-legacy", &flags)?;
    let printed = drops(&fixture, &agent)?;
    let missing = printed["notCounted"].as_str().context("a reason")?;
    ensure!(missing.contains("ip_tables"), "{printed}");
    let node = &fixture.cluster.world.node;
    let refused = WatchCommand::start(node, &agent, &["drops"]).err().context("it watches")?;
    ensure!(refused.to_string().contains("NetworkPolicies are not enforced here"), "{refused:#}");
    Ok(())
}
