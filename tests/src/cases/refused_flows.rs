//! Flows that `denizen-agent drops` names: one for each reason and family.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::binary;
use crate::eventually::eventually;
use crate::node::fixture::{Fixture, Host, PORT, put_load_balancer, service_ips};
use crate::node::manifest::Port;
use crate::node::netns::checked;
use crate::packets::probe::Protocol;
use crate::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

const DNS: [Port; 1] = [Port::tcp("dns", 80, PORT).over(Protocol::Udp)];

/// How long anything may take to have an effect.
const TIMEOUT: Duration = Duration::from_secs(30);

const LONELY: u8 = 99;
const FAR: u8 = 98;
const GUARDED: u8 = 97;
/// The numbers of the load balancer IPs of `far` and `guarded`, which the world routes to the node.
const FAR_OUTSIDE: u8 = 100;
const GUARDED_OUTSIDE: u8 = 101;

const TO_POD: &str = "no policy permits this to reach the pod";
const FROM_POD: &str = "no policy permits the pod to reach this";
const NO_ENDPOINTS: &str = "no endpoints: refuse at once";
const NO_LOCAL: &str =
    "policy Local, no endpoint on this node: drop; a retry may be routed to another node";
const RANGES: &str = "loadBalancerSourceRanges: may not use the load balancer IP";

/// Policies that keep the bridged pod from reaching anybody, and anybody from reaching it.
pub fn closed(more: &[NetworkPolicy]) -> Vec<Value> {
    let peer = || [PolicyPeer::pods(LabelSelector::label("role", "nobody"))];
    let policy = NetworkPolicy::new("default", "closed", LabelSelector::label("role", "web"))
        .ingress([PolicyRule::from(peer())])
        .egress([PolicyRule::to(peer())]);
    let policies = [&[policy], more].concat();
    PolicyWorld { policies, ..PolicyWorld::default() }.manifests()
}

/// `lonely` has no endpoint, `far` has no endpoint on this node under policy Local, and no client
/// is in the ranges that may use the load balancer IP of `guarded`.
pub fn context(label: &str, flags: &[&str]) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("lonely", &fixture.service("lonely", LONELY, &DNS, &[])?)?;
    let mut far = fixture.service("far", FAR, &DNS, &[Host::Remote])?;
    put_load_balancer(&mut far, FAR_OUTSIDE);
    far[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    manifests.put("far", &far)?;
    let mut guarded = fixture.service("guarded", GUARDED, &DNS, &[Host::Remote])?;
    put_load_balancer(&mut guarded, GUARDED_OUTSIDE);
    let ranges = json!(["198.51.100.0/24", "2001:db8:ffff::/48"]);
    guarded[0]["spec"]["loadBalancerSourceRanges"] = ranges;
    manifests.put("guarded", &guarded)?;
    manifests.put("pods", &fixture.pod_objects("web", "client"))?;
    manifests.put("policies", &closed(&[]))?;
    let agent = start(&fixture, flags)?;
    Ok((fixture, agent))
}

/// Starts the agent with these flags and with policies enforced.
pub fn start(fixture: &Fixture, flags: &[&str]) -> Result<Agent> {
    fixture.cluster.start_agent_with(["--network-policy=on"].iter().chain(flags).copied())
}

/// What `denizen-agent drops` says.
pub fn flows(fixture: &Fixture, agent: &Agent) -> Result<Value> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("drops").arg("--run-dir").arg(agent.run_dir()).args(["--output", "json"]);
    let output = fixture.cluster.world.node.run(|| checked(&mut command))??;
    serde_json::from_slice(&output.stdout).context("no JSON")
}

/// A flow of the test: who sends, how many datagrams at once, where to, and how `drops` shows it.
pub struct SentFlow {
    from: Host,
    to: SocketAddr,
    /// How many at once.
    pub datagrams: u64,
    verdict: &'static str,
    reason: &'static str,
    /// The table that drops or rejects the flow, with its family.
    pub table: &'static str,
    service: Option<&'static str>,
}

/// A flow for each reason and family.
pub fn all(fixture: &Fixture) -> Result<Vec<SentFlow>> {
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
        flow(Host::Routed, pod(Host::Bridged)?, "dropped", TO_POD, None);
        flow(Host::Bridged, pod(Host::Routed)?, "dropped", FROM_POD, None);
        let lonely = Some("default/lonely:dns");
        flow(Host::Routed, frontend(LONELY), "refused", NO_ENDPOINTS, lonely);
        let far = Some("default/far:dns");
        flow(Host::Outside, frontend(FAR_OUTSIDE), "dropped", NO_LOCAL, far);
        let guarded = Some("default/guarded:dns");
        flow(Host::Outside, frontend(GUARDED_OUTSIDE), "dropped", RANGES, guarded);
    }
    Ok(flows)
}

/// Sends the datagrams of a flow. Each is one packet, since UDP does not retransmit.
pub fn send(fixture: &Fixture, flow: &SentFlow) -> Result<()> {
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

/// Waits until `drops` shows each flow as it should, with `times` times its datagrams.
pub fn are_shown(fixture: &Fixture, agent: &Agent, sent: &[SentFlow], times: u64) -> Result<()> {
    let of = |shown: &Value, flow: &SentFlow| -> Option<Value> {
        let is_it = |row: &&Value| {
            row["reason"] == flow.reason && row["destination"]["address"] == flow.to.to_string()
        };
        let rows: Vec<&Value> = shown["flows"].as_array()?.iter().filter(is_it).collect();
        (rows.len() == 1).then(|| rows[0].clone())
    };
    let mut last = Value::Null;
    let arrived = eventually("all packets are counted", TIMEOUT, || {
        last = flows(fixture, agent)?;
        Ok(sent.iter().all(|flow| {
            of(&last, flow).is_some_and(|row| row["packets"] == flow.datagrams * times)
        }))
    });
    arrived.with_context(|| format!("{last:#}"))?;
    for flow in sent {
        let row = of(&last, flow).context("it was there")?;
        let source = SocketAddr::new(fixture.address(flow.from, flow.to.ip())?, 0);
        ensure!(row["source"]["address"] == source.to_string(), "{row:#}");
        ensure!(row["verdict"] == flow.verdict, "{row:#}");
        ensure!(row["table"] == flow.table, "{row:#}");
        ensure!(row["protocol"] == "udp", "{row:#}");
        ensure!(row["service"].as_str() == flow.service, "{row:#}");
        let names = [(Host::Bridged, "default/bridged"), (Host::Routed, "default/routed")];
        let name = names.iter().find(|(who, _)| *who == flow.from).map(|(_, name)| *name);
        ensure!(row["source"]["name"].as_str() == name, "{row:#}");
        let policy = flow.table.ends_with("firewall").then_some("NetworkPolicy default/closed");
        ensure!(row["policy"].as_str() == policy, "{row:#}");
        ensure!(row["seconds"].as_u64().is_some_and(|seconds| seconds <= 900), "{row:#}");
    }
    ensure!(last["notNoted"] == json!([]) && last["moreFlows"] == 0, "{last:#}");
    Ok(())
}
