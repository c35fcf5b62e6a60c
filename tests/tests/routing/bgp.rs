//! `--routing-mode bird`: three nodes, each with its agent and BIRD, whose pods have addresses of
//! three ranges.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::world::ip;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::peers::bird::Bird;
use denizen_tests::test_length;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{NODES, addresses, objects, ranges};
use super::table::{VIPS, web};
use super::underlay::{CLIENT, TORS, Underlay};

/// Between the connections of one client: this is about losses of seconds.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Connections between pods of different nodes, and from the client to a node's service.
fn load(fabric: &Underlay) -> Result<Load> {
    let mut load = Load::with_pause(PAUSE);
    let pods = fabric.pods()?;
    let targets = |family: usize| {
        let others = pods.iter().skip(1).map(move |pod| pod.addresses[family]);
        others.map(|ip| (SocketAddr::new(ip, PORT), Protocol::Tcp)).collect::<Vec<_>>()
    };
    for family in 0..2 {
        load.client(&pods[0].netns, targets(family), |outcome| outcome.endpoint().is_some())?;
    }
    let vips = VIPS.map(|vip| (SocketAddr::new(ip(vip), 80), Protocol::Tcp)).to_vec();
    load.client(&fabric.client, vips, |outcome| outcome.endpoint().is_some())?;
    Ok(load)
}

/// All but the first node's BIRD do nothing, as if they were dead, or go on.
fn pause_others(fabric: &Underlay, is_paused: bool) -> Result<()> {
    fabric.speakers.iter().chain(&fabric.tors).try_for_each(|other| other.pause(is_paused))
}

/// BIRD dies, and nobody tells the next one anything. As its container starts it, it keeps what
/// was learned; as another starts it, without `-R`, it removes that, and packets are lost.
fn forgets_without_recovery(fabric: &mut Underlay) -> Result<()> {
    drop(fabric.speakers.remove(0));
    pause_others(fabric, true)?;
    let before = fabric.learned()?;
    ensure!(!before.is_empty(), "nothing was learned");
    let node = &fabric.segment.nodes[0];
    let [here, there] = [0, 1].map(|index| fabric.segment.nodes[index].pod());
    let (here, there) = (here?, SocketAddr::new(there?.addresses[0], PORT));
    let ask = || Probe::tcp(there).timeout(SILENCE).send_in(&here.netns);

    let keeps = node.speaker()?;
    // It has looked at the kernel's routes.
    let has_looked = || {
        let routes = keeps.ask("show route table denizen4").unwrap_or_default();
        Ok(routes.contains(VIPS[0]))
    };
    eventually("a new BIRD", TIMEOUT, has_looked)?;
    ensure!(fabric.learned()? == before, "{:?} of {before:?} with recovery", fabric.learned()?);
    ensure!(ask().endpoint() == Some(there), "{there} is not reached with recovery");
    drop(keeps);

    let folder = node.run_dir.join("bird");
    let (file, socket) = (folder.join("bird.conf"), folder.join("bird.ctl"));
    let forgets = Bird::with(&node.netns, &file, &socket)?;
    observed("forgotten", TIMEOUT, || fabric.learned(), Vec::is_empty)?;
    let outcome = ask();
    ensure!(outcome.endpoint().is_none(), "{outcome:?} without recovery");
    pause_others(fabric, false)?;
    fabric.speakers.insert(0, forgets);
    fabric.until_up()?;
    fabric.until_all_reach_all()
}

/// With policy Local, the service's endpoint moves from node to node, first here and there,
/// then there alone: a client that connects all the time is always let in. A connection that
/// was made before its route changed may break: no other node knows it.
fn serves_while_its_endpoint_moves(fabric: &Underlay) -> Result<()> {
    let mut load = Load::default();
    let vips = VIPS.map(|vip| (SocketAddr::new(ip(vip), 80), Protocol::Tcp)).to_vec();
    let is_let_in =
        |outcome: &Outcome| matches!(outcome, Outcome::Answered { .. } | Outcome::Broken(_));
    load.client(&fabric.client, vips, is_let_in)?;
    for step in 0..test_length::in_full(100, 10) {
        let (from, to) = (step % 2, 1 - step % 2);
        fabric.put_web(&[(from, true), (to, true)])?;
        fabric.until_next_hops(&[0, 1])?;
        fabric.put_web(&[(from, false), (to, true)])?;
        fabric.until_next_hops(&[to])?;
        fabric.put_web(&[(to, true)])?;
    }
    let tally = load.stop()?;
    let is_served = tally.answered > 100 && tally.failed == 0 && tally.lost_once == 0;
    ensure!(is_served, "{tally:?}");
    Ok(())
}

/// BIRD starts again while one of two routers is dead: it does not wait for that one for ever,
/// and nothing uses it any more.
fn comes_back_beside_a_dead_router(fabric: &mut Underlay) -> Result<()> {
    let [dead, alive] = TORS.map(addresses);
    let node = &fabric.segment.nodes[0];
    let defaults = || {
        let of_family = |family| node.netns.output("ip", &[family, "route", "show", "default"]);
        Ok([of_family("-4")?, of_family("-6")?])
    };
    let uses = |shown: &[String; 2], router: &[IpAddr]| {
        let routes = shown.iter().zip(router);
        routes.filter(|(shown, ip)| shown.contains(&format!("via {ip} "))).count()
    };
    fabric.segment.unplug(TORS[0])?;
    fabric.client.ip(&format!("link set tor{} down", TORS[0]))?;
    let before = defaults()?;
    ensure!(uses(&before, &dead) == 2 && uses(&before, &alive) == 2, "{before:?}");
    fabric.speakers.insert(0, node.speaker()?);
    let is_past = |hops: &[String; 2]| uses(hops, &dead) == 0 && uses(hops, &alive) == 2;
    observed("converged", TIMEOUT * 2, defaults, is_past)?;
    for (vip, own) in VIPS.map(ip).into_iter().zip(CLIENT) {
        let ask = || Probe::tcp(SocketAddr::new(vip, 80)).from(ip(own)).send_in(&fabric.client);
        observed("served", TIMEOUT, || Ok(ask()), |outcome| outcome.endpoint().is_some())?;
    }
    Ok(())
}

/// What the first node's BIRD is configured by.
fn speaker_configuration(fabric: &Underlay) -> Result<String> {
    Ok(fs::read_to_string(fabric.segment.nodes[0].run_dir.join("bird/bird.conf"))?)
}

/// What one router tells a node, the node tells no other: that would be its own way to it.
fn passes_nothing_on(fabric: &Underlay) -> Result<()> {
    for (tor, family) in fabric.tors.iter().flat_map(|tor| [(tor, 4), (tor, 6)]) {
        let shown = tor.ask(&format!("show route protocol node1_{family}"))?;
        let [own, other] = [1, 2].map(|number| ranges(number)[usize::from(family == 6)].clone());
        let others = [&other, "0.0.0.0/0", "::/0"];
        let is_own = shown.contains(&own) && !others.iter().any(|range| shown.contains(*range));
        ensure!(is_own, "{shown}");
    }
    Ok(())
}

fn explain(fabric: &Underlay, address: &str) -> Result<Value> {
    fabric.segment.nodes[0].agent()?.ask_directly(&json!({ "announce": address }))
}

/// The agent is killed, another release takes its place, and then this one again: nobody hears of
/// it. BIRD is killed and replaced: no connection is lost. The node drains: routers learn of it.
#[test]
fn pods_of_three_ranges_reach_each_other_whatever_dies() -> Result<()> {
    let mut fabric = Underlay::new("bgp")?;
    let node = &fabric.segment.nodes[0];
    fabric.segment.manifests.put("web", &web(node, true)?)?;
    for vip in VIPS {
        fabric.until_shown(vip, "(64512,105)", true)?;
    }
    // All reach all, and meanwhile nobody has anything more to say.
    let settled = || {
        let before = fabric.heard()?;
        if let Err(error) = fabric.all_reach_all() {
            return Ok(Some(format!("{error:#}")));
        }
        let is_quiet = fabric.heard()? == before;
        Ok((!is_quiet).then(|| "routers hear more".to_owned()))
    };
    observed("settled", TIMEOUT, settled, Option::is_none)?;
    passes_nothing_on(&fabric)?;
    let explained = explain(&fabric, VIPS[0])?;
    let peers = ["node:192.0.2.2", "node:192.0.2.3", "peer:tor-101-0", "peer:tor-102-0"];
    let mut heard: Vec<&str> =
        explained["peers"].as_array().context("peers")?.iter().filter_map(Value::as_str).collect();
    heard.sort_unstable();
    ensure!(explained["announced"] == true && heard == peers, "{explained}");

    let load = load(&fabric)?;
    let before = fabric.heard()?;
    ensure!(before.iter().flatten().count() >= 32, "{before:?}");
    let flag = format!("--config={}", fabric.segment.folder.path().join("config.yaml").display());
    let configuration = speaker_configuration(&fabric)?;
    fabric.segment.nodes[0].start_other(&[&flag])?;
    fabric.until_up()?;
    let is_the_same = speaker_configuration(&fabric)? == configuration;
    fabric.segment.nodes[0].agent.take().context("an agent")?.kill()?;
    fabric.segment.nodes[0].start_with(&[&flag])?;
    fabric.until_up()?;
    // Another release may configure BIRD otherwise, which then advertises anew. It withdraws
    // nothing.
    let counted = |heard: Vec<Vec<String>>| {
        let is_counted = |line: &String| is_the_same || line.starts_with("Import withdraws");
        heard.concat().into_iter().filter(is_counted).collect::<Vec<_>>()
    };
    let after = fabric.heard()?;
    assert_eq!(counted(after), counted(before), "messages of BGP while agents were replaced");
    fabric.replace_speaker()?;
    fabric.until_up()?;
    let tally = load.stop()?;
    ensure!(tally.answered > 100 && tally.failed == 0, "{tally:?}");
    fabric.all_reach_all()?;
    forgets_without_recovery(&mut fabric)?;
    serves_while_its_endpoint_moves(&fabric)?;
    fabric.move_pod()?;
    fabric.until_all_reach_all()?;

    let mut nodes = objects(1..=NODES);
    nodes[0]["spec"]["taints"] = json!([{ "key": "away", "effect": "NoSchedule" }]);
    fabric.segment.manifests.put("nodes", &nodes)?;
    fabric.until_shown(VIPS[0], "(65535,0)", true)?;
    fabric.until_shown(&ranges(1)[0], "(65535,0)", false)?;
    // Traffic goes to another node that serves; where there is none, it stays.
    fabric.put_web(&[(0, true), (1, true)])?;
    fabric.until_next_hops(&[1])?;
    fabric.put_web(&[(0, true)])?;
    fabric.until_next_hops(&[0])
}

/// BIRD dies and does not come back: the agent says so, everything else goes on, and what BIRD has
/// learned stays in the kernel until `cleanup`.
#[test]
fn without_bird_the_agent_goes_on_and_says_so() -> Result<()> {
    let mut fabric = Underlay::new("bgp-away")?;
    fabric.segment.manifests.put("web", &web(&fabric.segment.nodes[0], true)?)?;
    fabric.until_shown(VIPS[0], "(64512,105)", true)?;
    drop(fabric.speakers.remove(0));
    let reason =
        |address: &Value| address["reason"] == "speaker-down" && address["announced"] == false;
    observed("explained", TIMEOUT, || explain(&fabric, VIPS[0]), reason)?;
    let agent = fabric.segment.nodes[0].agent()?;
    let status = agent.until("away", TIMEOUT, |status| status["bgp"]["isAnswering"] == false)?;
    let errors = status["errors"].to_string();
    ensure!(errors.contains("BIRD does not answer"), "{errors}");
    ensure!(status["announcements"]["inTable"] == status["announcements"]["wanted"], "{status}");
    // Routes to the pods of others are still there.
    let (from, to) = (fabric.segment.nodes[0].pod()?, fabric.segment.nodes[1].pod()?);
    for address in &to.addresses {
        let outcome = Probe::tcp(SocketAddr::new(*address, PORT)).send_in(&from.netns);
        ensure!(outcome.endpoint().is_some(), "{address}: {outcome:?}");
    }
    comes_back_beside_a_dead_router(&mut fabric)?;
    // When BIRD is gone, what it has left may go; and its passwords.
    drop(fabric.speakers.remove(0));
    let node = &mut fabric.segment.nodes[0];
    node.agent.take().context("an agent")?.terminate()?;
    let cleanup = node.netns.output(
        &binary::ours("denizen-agent")?.to_string_lossy(),
        &["cleanup", "--run-dir", &node.run_dir.to_string_lossy()],
    )?;
    ensure!(cleanup.contains("learned routes"), "{cleanup}");
    let left = node.all_routes()?.concat();
    ensure!(!left.iter().any(|route| route.contains("proto 12")), "{left:?}");
    ensure!(
        !node.run_dir.join("bird/bird.conf").exists(),
        "a configuration with passwords is left"
    );
    Ok(())
}
