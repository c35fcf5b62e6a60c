//! Which endpoints the kernel's hashing schedulers choose, and which `explain` predicts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, service_ips};
use denizen_tests::packets::long_connection;
use denizen_tests::packets::probe::{Outcome, Protocol};
use denizen_tests::test_length;
use serde_json::{Value, json};

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The endpoints. The client is neither of them, so both see its own address and port.
const MEMBERS: [Host; 2] = [Host::Routed, Host::Remote];

/// A scheduler that gives all clients the same endpoint, and how many clients ask with it.
const BY_SERVICE: &str = "dh";
const FEW: usize = 4;

/// How many clients in a row may get a source port that an earlier client had.
const TRIES: usize = 10;

/// A question for `explain`, and the endpoint that the client was answered by.
struct AnsweredQuestion {
    question: String,
    endpoint: SocketAddr,
}

/// Gives `web` this scheduler and these endpoints. A scheduler that hashes clients also hashes
/// their ports.
fn schedule(fixture: &Fixture, agent: &Agent, scheduler: &str, members: &[Host]) -> Result<()> {
    let mut objects = fixture.service("web", 10, &every_protocol(), members)?;
    let annotations = &mut objects[0]["metadata"]["annotations"];
    *annotations = json!({ "kube-router.io/service.scheduler": scheduler });
    if scheduler != BY_SERVICE {
        annotations["kube-router.io/service.schedflags"] = "flag-2".into();
    }
    fixture.cluster.manifests.put("web", &objects)?;
    let node = &fixture.cluster.world.node;
    eventually("the scheduler and the endpoints are there", TIMEOUT, || {
        let saved = node.output("ipvsadm", &["--save", "--numeric"])?;
        let of_web = |line: &&str| line.starts_with("-A") && line.contains(":80 ");
        let others = |line: &str| !line.contains(&format!(" -s {scheduler}"));
        let is_scheduled = !saved.lines().filter(of_web).any(others);
        Ok(is_scheduled && listed(fixture)?.len() == members.len())
    })?;
    agent.until("no errors", TIMEOUT, |status| {
        status["errors"].as_array().is_some_and(Vec::is_empty)
    })?;
    Ok(())
}

/// The real servers of `web` at its first address, in the kernel's order.
fn listed(fixture: &Fixture) -> Result<Vec<String>> {
    let of = format!("{}:80", service_ips(10)[0]);
    let flags = ["--list", "--numeric", "--nosort", "-t", &of];
    let listed = fixture.cluster.world.node.output("ipvsadm", &flags)?;
    let reals = listed.lines().filter_map(|line| line.trim().strip_prefix("-> "));
    let addresses = reals.filter_map(|real| real.split(' ').next());
    Ok(addresses.filter(|address| !address.starts_with("Remote")).map(str::to_owned).collect())
}

/// Removes the endpoint that the kernel lists last, and adds it again, before it has any
/// connections. The kernel lists it first then.
fn turn_round(fixture: &Fixture, agent: &Agent, scheduler: &str) -> Result<()> {
    let before = listed(fixture)?;
    let last = before.last().context("endpoints")?;
    let stays = MEMBERS.into_iter().find(|who| {
        let address = fixture.address(*who, service_ips(10)[0]);
        address.is_ok_and(|own| !last.starts_with(&format!("{own}:")))
    });
    schedule(fixture, agent, scheduler, &[stays.context("another endpoint")?])?;
    schedule(fixture, agent, scheduler, &MEMBERS)?;
    let after = listed(fixture)?;
    ensure!(after.iter().rev().eq(&before), "{before:#?}, then {after:#?}");
    Ok(())
}

/// Connects as a client whose address and port no earlier client had (`known`): the kernel keeps
/// the endpoint of a UDP flow for minutes, even if the scheduler changes.
fn ask(
    fixture: &Fixture,
    protocol: Protocol,
    to: SocketAddr,
    known: &mut BTreeSet<String>,
) -> Result<AnsweredQuestion> {
    for _ in 0..TRIES {
        let outcome = fixture.probe(Host::Bridged, to, protocol)?;
        let Outcome::Answered { endpoint, seen } = outcome else {
            anyhow::bail!("{to}/{protocol}: {outcome:?}");
        };
        let explain = json!({ "from": seen.to_string(), "to": format!("{to}/{protocol}") });
        let question = format!("{}\n", json!({ "explain": explain }));
        if known.insert(question.clone()) {
            return Ok(AnsweredQuestion { question, endpoint });
        }
    }
    anyhow::bail!("{TRIES} clients of {to}/{protocol} had ports that others had before")
}

/// What `explain` predicts for each of them.
fn predicted(agent: &Agent, exchanges: &[AnsweredQuestion]) -> Result<Vec<Value>> {
    let mut answers = Vec::new();
    let mut each = |line: &str| answers.push(serde_json::from_str::<Value>(line));
    agent.ask_in_turn(exchanges.iter().map(|exchange| &exchange.question), &mut each)?;
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}

/// For each client, the predicted endpoint is the chosen one.
pub(crate) fn are_predicted() -> Result<()> {
    let fixture = long_connection::fixture("ipvs-hashed")?;
    let settings = fixture.cluster.settings_with(["--backend=ipvs"]);
    let mut agent = Agent::spawn(&fixture.cluster.world.node, settings)?;
    agent.quiet();
    agent.wait_programmed(TIMEOUT)?;
    let many = test_length::in_full(2500, 48);
    let mut known = BTreeSet::new();
    let schedulers = [("mh", many, MEMBERS.len()), ("sh", many, MEMBERS.len())];
    for (scheduler, clients, answer) in schedulers.into_iter().chain([(BY_SERVICE, FEW, 1)]) {
        schedule(&fixture, &agent, scheduler, &MEMBERS)?;
        if known.is_empty() {
            turn_round(&fixture, &agent, scheduler)?;
        }
        for (ip, protocol) in
            service_ips(10).into_iter().flat_map(|ip| [(ip, Protocol::Tcp), (ip, Protocol::Udp)])
        {
            let to = SocketAddr::new(ip, 80);
            let exchanges: Vec<AnsweredQuestion> = (0..clients)
                .map(|_| ask(&fixture, protocol, to, &mut known))
                .collect::<Result<_>>()?;
            let answered: BTreeSet<SocketAddr> =
                exchanges.iter().map(|exchange| exchange.endpoint).collect();
            ensure!(answered.len() == answer, "{scheduler} at {to}: {answered:?}");
            for (exchange, explained) in exchanges.iter().zip(predicted(&agent, &exchanges)?) {
                let chosen =
                    explained["virtualServer"]["chosen"].as_str().context("a prediction")?;
                ensure!(
                    chosen == exchange.endpoint.to_string(),
                    "{scheduler}: {} answered {}: {explained}",
                    exchange.endpoint,
                    exchange.question
                );
            }
        }
    }
    agent.terminate()?;
    Ok(())
}
