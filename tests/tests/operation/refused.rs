//! The flows that `denizen-agent drops` names: the kernel has noted them before anybody looks, with
//! exact counts, and neither a change of policies nor another run of the agent loses them.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::fixture::{Fixture, PORT, Who, put_load_balancer, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

const DNS: [Port; 1] = [Port::tcp("dns", 80, PORT).over(Protocol::Udp)];

/// What has not taken effect by then never will.
const BOUND: Duration = Duration::from_secs(30);

const LONELY: u8 = 99;
const FAR: u8 = 98;
const GUARDED: u8 = 97;
/// Load balancer IPs of the last two, as the world routes them to the node.
const FAR_OUTSIDE: u8 = 100;
const GUARDED_OUTSIDE: u8 = 101;

const TO_POD: &str = "no policy permits this to reach the pod";
const FROM_POD: &str = "no policy permits the pod to reach this";
const NO_ENDPOINTS: &str = "no endpoints: refuse at once";
const NO_LOCAL: &str =
    "policy Local, no endpoint on this node: drop; a retry may be routed to another node";
const RANGES: &str = "loadBalancerSourceRanges: may not use the load balancer IP";

/// The bridged pod may talk to nobody, in neither direction.
fn closed(more: &[NetworkPolicy]) -> Vec<Value> {
    let peer = || [PolicyPeer::pods(LabelSelector::label("role", "nobody"))];
    let policy = NetworkPolicy::new("default", "closed", LabelSelector::label("role", "web"))
        .ingress([PolicyRule::from(peer())])
        .egress([PolicyRule::to(peer())]);
    let policies = [&[policy], more].concat();
    PolicyWorld { policies, ..PolicyWorld::default() }.manifests()
}

/// Nobody serves `lonely`, `far` has no endpoint here under policy Local, and nobody may use the
/// load balancer's address of `guarded`.
fn context(label: &str, flags: &[&str]) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("lonely", &fixture.service("lonely", LONELY, &DNS, &[])?)?;
    let mut far = fixture.service("far", FAR, &DNS, &[Who::Remote])?;
    put_load_balancer(&mut far, FAR_OUTSIDE);
    far[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    manifests.put("far", &far)?;
    let mut guarded = fixture.service("guarded", GUARDED, &DNS, &[Who::Remote])?;
    put_load_balancer(&mut guarded, GUARDED_OUTSIDE);
    let ranges = json!(["198.51.100.0/24", "2001:db8:ffff::/48"]);
    guarded[0]["spec"]["loadBalancerSourceRanges"] = ranges;
    manifests.put("guarded", &guarded)?;
    manifests.put("pods", &fixture.pod_objects("web", "client"))?;
    manifests.put("policies", &closed(&[]))?;
    let agent = start(&fixture, flags)?;
    Ok((fixture, agent))
}

fn start(fixture: &Fixture, flags: &[&str]) -> Result<Agent> {
    fixture.cluster.start_agent_with(["--network-policy=on"].iter().chain(flags).copied())
}

fn flows(fixture: &Fixture, agent: &Agent) -> Result<Value> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("drops").arg("--run-dir").arg(agent.run_dir()).args(["--output", "json"]);
    let output = fixture.cluster.world.node.run(|| checked(&mut command))??;
    serde_json::from_slice(&output.stdout).context("no JSON")
}

/// A flow of the test: who sends so many datagrams at once, where to, and how it is shown.
struct SentFlow {
    from: Who,
    to: SocketAddr,
    datagrams: u64,
    verdict: &'static str,
    reason: &'static str,
    table: &'static str,
    service: Option<&'static str>,
}

/// One for each reason and family.
fn all(fixture: &Fixture) -> Result<Vec<SentFlow>> {
    let mut flows = Vec::new();
    for (at, family) in ["ip", "ip6"].into_iter().enumerate() {
        let ip = |number| service_ips(number)[at];
        let pod = |who| Ok::<_, anyhow::Error>(SocketAddr::new(fixture.address(who, ip(1))?, PORT));
        let mut flow = |from, to, verdict, reason, service| {
            let table = match (service, family) {
                (None, "ip") => "ip denizen-firewall",
                (None, _) => "ip6 denizen-firewall",
                (Some(_), "ip") => "ip denizen",
                (Some(_), _) => "ip6 denizen",
            };
            let datagrams = flows.len() as u64 + 2;
            flows.push(SentFlow { from, to, datagrams, verdict, reason, table, service });
        };
        let frontend = |number| SocketAddr::new(ip(number), 80);
        flow(Who::Routed, pod(Who::Bridged)?, "dropped", TO_POD, None);
        flow(Who::Bridged, pod(Who::Routed)?, "dropped", FROM_POD, None);
        let lonely = Some("default/lonely:dns");
        flow(Who::Routed, frontend(LONELY), "refused", NO_ENDPOINTS, lonely);
        let far = Some("default/far:dns");
        flow(Who::Outside, frontend(FAR_OUTSIDE), "dropped", NO_LOCAL, far);
        let guarded = Some("default/guarded:dns");
        flow(Who::Outside, frontend(GUARDED_OUTSIDE), "dropped", RANGES, guarded);
    }
    Ok(flows)
}

/// Each datagram is a packet: none is sent again.
fn send(fixture: &Fixture, flow: &SentFlow) -> Result<()> {
    let from = fixture.address(flow.from, flow.to.ip())?;
    let (to, datagrams) = (flow.to, flow.datagrams);
    fixture.place(flow.from).0.run(move || -> Result<()> {
        let socket = UdpSocket::bind((from, 0))?;
        for _ in 0..datagrams {
            socket.send_to(b"a", to)?;
        }
        Ok(())
    })?
}

/// Waits until each flow is shown with so many times its datagrams, and as it should be.
fn are_shown(fixture: &Fixture, agent: &Agent, sent: &[SentFlow], times: u64) -> Result<()> {
    let of = |shown: &Value, flow: &SentFlow| -> Option<Value> {
        let is_it = |row: &&Value| {
            row["reason"] == flow.reason && row["destination"]["address"] == flow.to.to_string()
        };
        let rows: Vec<&Value> = shown["flows"].as_array()?.iter().filter(is_it).collect();
        (rows.len() == 1).then(|| rows[0].clone())
    };
    let mut last = Value::Null;
    let arrived = eventually("all packets are counted", BOUND, || {
        last = flows(fixture, agent)?;
        Ok(sent.iter().all(|flow| {
            of(&last, flow).is_some_and(|row| row["packets"] == flow.datagrams * times)
        }))
    });
    arrived.with_context(|| format!("{last:#}"))?;
    for flow in sent {
        let row = of(&last, flow).context("it was there")?;
        let source = SocketAddr::new(fixture.address(flow.from, flow.to.ip())?, 0);
        assert_eq!(row["source"]["address"], source.to_string(), "{row:#}");
        assert_eq!(row["verdict"], flow.verdict, "{row:#}");
        assert_eq!(row["table"], flow.table, "{row:#}");
        assert_eq!(row["protocol"], "udp", "{row:#}");
        assert_eq!(row["service"].as_str(), flow.service, "{row:#}");
        let names = [(Who::Bridged, "default/bridged"), (Who::Routed, "default/routed")];
        let name = names.iter().find(|(who, _)| *who == flow.from).map(|(_, name)| *name);
        assert_eq!(row["source"]["name"].as_str(), name, "{row:#}");
        let policy = flow.table.ends_with("firewall").then_some("NetworkPolicy default/closed");
        assert_eq!(row["policy"].as_str(), policy, "{row:#}");
        ensure!(row["seconds"].as_u64().is_some_and(|seconds| seconds <= 900), "{row:#}");
    }
    ensure!(last["notNoted"] == json!([]) && last["moreFlows"] == 0, "{last:#}");
    Ok(())
}

fn flows_are_named(label: &str, flags: &[&str]) -> Result<()> {
    let (fixture, agent) = context(label, flags)?;
    let node = &fixture.cluster.world.node;
    let rules = ruleset::dump(node)?;
    let sent = all(&fixture)?;
    sent.iter().try_for_each(|flow| send(&fixture, flow))?;
    are_shown(&fixture, &agent, &sent, 1)?;
    assert_eq!(ruleset::dump(node)?, rules, "what packets have put there is not ours");

    let nobody = LabelSelector::label("role", "client");
    let more = NetworkPolicy::new("default", "more", nobody).ingress([PolicyRule::all()]);
    fixture.cluster.manifests.put("policies", &closed(&[more]))?;
    agent.until("it is in force", BOUND, |status| status["networkPolicy"]["policies"] == 2)?;
    are_shown(&fixture, &agent, &sent, 1)?;
    node.nft("flush chain ip denizen no-endpoints")?;
    agent.until("that is repaired", BOUND, |status| status["driftRepaired"] == 1)?;
    are_shown(&fixture, &agent, &sent, 1)?;

    agent.terminate()?;
    let agent = start(&fixture, flags)?;
    sent.iter().try_for_each(|flow| send(&fixture, flow))?;
    are_shown(&fixture, &agent, &sent, 2)?;
    let status = agent.status()?;
    ensure!(status["driftRepaired"] == 0, "{status:#}");
    Ok(())
}

#[test]
fn flows_are_named_that_nobody_watched() -> Result<()> {
    flows_are_named("refused", &[])
}

#[test]
fn flows_are_named_that_nobody_watched_with_ipvs() -> Result<()> {
    flows_are_named("refused-ipvs", &["--backend=ipvs"])
}

/// A protocol without ports has port 0, and everything but the source port makes a flow.
#[test]
fn relay_names_the_flows_of_most_packets() -> Result<()> {
    let (fixture, agent) = context("refused-relay", &[])?;
    let node = &fixture.cluster.world.node;
    let to = fixture.address(Who::Bridged, service_ips(1)[0])?;
    fixture.place(Who::Routed).0.run(move || -> Result<()> {
        // An echo request, with its checksum.
        let echo = [8, 0, 0xf7, 0xfe, 0, 0, 0, 1];
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(socket2::Protocol::ICMPV4))?;
        for _ in 0..9 {
            socket.send_to(&echo, &SocketAddr::new(to, 0).into())?;
        }
        Ok(())
    })??;
    let sent = all(&fixture)?;
    send(&fixture, &sent[0])?;
    let ask = |limit: usize| -> Result<Value> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.arg("relay").arg("--run-dir").arg(agent.run_dir());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut relay = node.run(|| command.spawn())??;
        let mut stdin = relay.stdin.take().context("no input")?;
        writeln!(stdin, "{{\"refused\":{{\"limit\":{limit}}}}}\n{{\"end\":{{}}}}")?;
        let text = String::from_utf8(relay.wait_with_output()?.stdout)?;
        let line = text.lines().nth(1).context("no answer")?;
        Ok(serde_json::from_str::<Value>(line)?["answer"].take())
    };
    let most = ask(1)?;
    ensure!(most["flows"].as_array().map(Vec::len) == Some(1), "{most:#}");
    ensure!(most["moreFlows"].as_u64() >= Some(1), "{most:#}");
    let row = &most["flows"][0];
    ensure!(row["packets"] == 9 && row["protocol"] == "1", "{row:#}");
    assert_eq!(row["destination"]["address"], SocketAddr::new(to, 0).to_string());
    let all = ask(1000)?;
    let rows = all["flows"].as_array().context("a list")?;
    ensure!(rows.len() >= 2 && all["moreFlows"] == 0, "{all:#}");
    Ok(())
}

/// Where nothing is enforced, the firewall's tables have no set for it.
#[test]
fn without_policies_nothing_is_noted_and_a_table_has_no_such_set() -> Result<()> {
    let (fixture, agent) = context("refused-none", &[])?;
    let node = &fixture.cluster.world.node;
    let has_sets = || {
        Ok(node
            .output("nft", &["-t", "list", "table", "ip", "denizen-firewall"])?
            .contains("-refusals"))
    };
    ensure!(has_sets()?, "while there are policies");
    fixture.cluster.manifests.put("policies", &PolicyWorld::default().manifests())?;
    agent.until("no policy is left", BOUND, |status| status["networkPolicy"]["policies"] == 0)?;
    eventually("the sets go", BOUND, || Ok(!has_sets()?))?;
    fixture.cluster.manifests.put("policies", &closed(&[]))?;
    eventually("the sets come back", BOUND, has_sets)?;
    let sent: Vec<SentFlow> = all(&fixture)?.into_iter().take(2).collect();
    sent.iter().try_for_each(|flow| send(&fixture, flow))?;
    are_shown(&fixture, &agent, &sent, 1)?;
    ensure!(agent.status()?["driftRepaired"] == 0, "it is no drift");
    Ok(())
}

#[test]
fn with_iptables_flows_of_policies_are_named_and_what_is_missing_too() -> Result<()> {
    let flags = ["--backend=iptables", "--iptables-variant=nft"];
    let (fixture, agent) = context("refused-ipt", &flags)?;
    let sent = &all(&fixture)?[0];
    send(&fixture, sent)?;
    let mut shown = Value::Null;
    eventually("the policy's flow", BOUND, || {
        shown = flows(&fixture, &agent)?;
        Ok(shown["flows"][0]["packets"] == sent.datagrams)
    })?;
    let missing = shown["notNoted"][0].as_str().unwrap_or_default();
    ensure!(missing.contains("they are in iptables"), "{shown:#}");
    Ok(())
}

/// Takes rules and sets away that note flows: the tables of a release without them.
fn take_away(node: &Netns) -> Result<()> {
    for (table, chain, set) in [
        ("denizen", "no-endpoints", "refused-no-endpoints"),
        ("denizen", "no-local-endpoints", "dropped-no-local-endpoints"),
        ("denizen", "source-ranges", "dropped-source-ranges"),
        ("denizen-firewall", "ingress-refused", "ingress-refusals"),
        ("denizen-firewall", "egress-refused", "egress-refusals"),
    ] {
        for family in ["ip", "ip6"] {
            let listed = node.output("nft", &["-a", "list", "chain", family, table, chain])?;
            let noting = listed.lines().filter(|line| line.contains(&format!("add @{set} ")));
            let handles: Vec<&str> =
                noting.filter_map(|line| Some(line.rsplit_once("# handle ")?.1)).collect();
            ensure!(!handles.is_empty(), "{set}: {listed}");
            for handle in handles {
                node.nft(&format!("delete rule {family} {table} {chain} handle {handle}"))?;
            }
            node.nft(&format!("delete set {family} {table} {set}"))?;
        }
    }
    Ok(())
}

/// An agent without the sets does with those of this release what this one does with a newer one's.
#[test]
fn tables_of_releases_without_the_sets_and_with_more_of_them_are_replaced() -> Result<()> {
    let (fixture, mut agent) = context("refused-release", &[])?;
    let node = &fixture.cluster.world.node;
    let (rules, sent) = (ruleset::dump(node)?, all(&fixture)?);
    let newer = |table: &str| {
        node.nft(&format!(
            "table ip {table} {{ set newer {{ typeof ip saddr; size 10; flags dynamic,timeout; }}; \
             chain noting {{ add @newer {{ ip saddr timeout 9s counter }}; }}; }}"
        ))
    };
    for other in ["older", "newer"] {
        agent.terminate()?;
        match other {
            "older" => take_away(node)?,
            _ => ["denizen", "denizen-firewall"].iter().try_for_each(|table| newer(table))?,
        }
        agent = start(&fixture, &[])?;
        assert_eq!(ruleset::dump(node)?, rules, "{other}");
        sent.iter().try_for_each(|flow| send(&fixture, flow))?;
        are_shown_once(&fixture, &agent, &sent, other)?;
    }
    Ok(())
}

/// The tables that were replaced have begun to note anew; the others go on.
fn are_shown_once(fixture: &Fixture, agent: &Agent, sent: &[SentFlow], other: &str) -> Result<()> {
    let (again, anew): (Vec<&SentFlow>, Vec<&SentFlow>) =
        sent.iter().partition(|flow| other == "newer" && flow.table.starts_with("ip6 "));
    for (flows, times) in [(again, 2), (anew, 1)] {
        for flow in flows {
            are_shown(fixture, agent, std::slice::from_ref(flow), times)?;
        }
    }
    Ok(())
}
