//! The flows that `denizen-agent drops` names: the kernel has noted them before anybody looks, with
//! exact counts, and neither a change of policies nor another run of the agent loses them.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::cases::refused_flows::{
    SentFlow, all, are_shown, closed, context, flows, send, start,
};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyRule, PolicyWorld};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    agent.until("it is in force", TIMEOUT, |status| status["networkPolicy"]["policies"] == 2)?;
    are_shown(&fixture, &agent, &sent, 1)?;
    node.nft("flush chain ip denizen no-endpoints")?;
    agent.until("that is repaired", TIMEOUT, |status| status["driftRepaired"] == 1)?;
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
    let to = fixture.address(Host::Bridged, service_ips(1)[0])?;
    fixture.place(Host::Routed).0.run(move || -> Result<()> {
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
    agent.until("no policy is left", TIMEOUT, |status| status["networkPolicy"]["policies"] == 0)?;
    eventually("the sets go", TIMEOUT, || Ok(!has_sets()?))?;
    fixture.cluster.manifests.put("policies", &closed(&[]))?;
    eventually("the sets come back", TIMEOUT, has_sets)?;
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
    eventually("the policy's flow", TIMEOUT, || {
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
