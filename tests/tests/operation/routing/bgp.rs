//! `--routing-mode bird`: three nodes, each with its agent and BIRD, whose pods have addresses of
//! three ranges.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::fixture::{PORT, service_ips};
use denizen_tests::load::Load;
use denizen_tests::probe::{Probe, Protocol};
use denizen_tests::world::ip;
use serde_json::{Value, json};

use super::BOUND;
use super::segment::{NODES, objects, ranges};
use super::table::{VIPS, web};
use super::underlay::{CLIENT, Underlay};

/// Between the connections of one client: this is about losses of seconds.
const PAUSE: Duration = Duration::from_millis(20);

impl Underlay {
    /// Every pod reaches every pod with its own address, and the service; so does the client.
    fn all_reach_all(&self) -> Result<()> {
        for family in 0..2 {
            let client = (ip(CLIENT[family]), &self.client);
            let pods = self.pods()?;
            let froms = pods.iter().map(|pod| (pod.addresses[family], &pod.netns)).chain([client]);
            for (own, netns) in froms {
                for to in &pods {
                    let to = SocketAddr::new(to.addresses[family], PORT);
                    let outcome = Probe::tcp(to).from(own).ask_in(netns);
                    let is_direct = outcome.endpoint() == Some(to) && outcome.seen() == Some(own);
                    ensure!(is_direct, "from {own} to {to}: {outcome:?}");
                }
                let service =
                    if own == client.0 { ip(VIPS[family]) } else { service_ips(10)[family] };
                let outcome = Probe::tcp(SocketAddr::new(service, 80)).from(own).ask_in(netns);
                ensure!(outcome.endpoint().is_some(), "from {own} to {service}: {outcome:?}");
            }
        }
        Ok(())
    }

    /// Connections between pods of different nodes, and from the client to the first node's service.
    fn load(&self) -> Result<Load> {
        let mut load = Load::with_pause(PAUSE);
        let pods = self.pods()?;
        let targets = |family: usize| {
            let others = pods.iter().skip(1).map(move |pod| pod.addresses[family]);
            others.map(|ip| (SocketAddr::new(ip, PORT), Protocol::Tcp)).collect::<Vec<_>>()
        };
        for family in 0..2 {
            load.client(&pods[0].netns, targets(family), |it| it.endpoint().is_some())?;
        }
        let vips = VIPS.map(|vip| (SocketAddr::new(ip(vip), 80), Protocol::Tcp)).to_vec();
        load.client(&self.client, vips, |it| it.endpoint().is_some())?;
        Ok(load)
    }

    fn explained(&self, address: &str) -> Result<Value> {
        self.segment.nodes[0].agent()?.ask_directly(&json!({ "announce": address }))
    }
}

/// The agent is killed and replaced: nobody hears of it. BIRD is killed and replaced: no connection
/// is lost. The node drains: routers learn of it.
#[test]
fn pods_of_three_ranges_reach_each_other_whatever_dies() -> Result<()> {
    let mut fabric = Underlay::new("bgp")?;
    let node = &fabric.segment.nodes[0];
    fabric.segment.manifests.put("web", &web(node, true)?)?;
    for vip in VIPS {
        fabric.until_said(vip, "(64512,105)", true)?;
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
    observed("settled", BOUND, settled, Option::is_none)?;
    let explained = fabric.explained(VIPS[0])?;
    let peers = ["node:192.0.2.2", "node:192.0.2.3", "peer:tor-101-0", "peer:tor-102-0"];
    let mut heard: Vec<&str> =
        explained["peers"].as_array().context("peers")?.iter().filter_map(Value::as_str).collect();
    heard.sort_unstable();
    ensure!(explained["announced"] == true && heard == peers, "{explained}");

    let load = fabric.load()?;
    let before = fabric.heard()?;
    ensure!(before.iter().flatten().count() >= 32, "{before:?}");
    let flag = format!("--config={}", fabric.segment.folder.path().join("config.yaml").display());
    fabric.segment.nodes[0].agent.take().context("an agent")?.kill()?;
    fabric.segment.nodes[0].start_with(&[&flag])?;
    fabric.until_up()?;
    fabric.segment.nodes[0].upgrade_with(&[&flag])?;
    fabric.until_up()?;
    assert_eq!(fabric.heard()?, before, "messages of BGP while agents were replaced");
    fabric.replace_speaker()?;
    fabric.until_up()?;
    let tally = load.stop()?;
    ensure!(tally.answered > 100 && tally.failed == 0, "{tally:?}");
    fabric.all_reach_all()?;

    let mut nodes = objects(1..=NODES);
    nodes[0]["spec"]["taints"] = json!([{ "key": "away", "effect": "NoSchedule" }]);
    fabric.segment.manifests.put("nodes", &nodes)?;
    fabric.until_said(VIPS[0], "(65535,0)", true)?;
    fabric.until_said(&ranges(1)[0], "(65535,0)", false)
}

/// BIRD dies and does not come back: the agent says so, everything else goes on, and what BIRD has
/// learned stays in the kernel until `cleanup`.
#[test]
fn without_bird_the_agent_goes_on_and_says_so() -> Result<()> {
    let mut fabric = Underlay::new("bgp-away")?;
    fabric.segment.manifests.put("web", &web(&fabric.segment.nodes[0], true)?)?;
    fabric.until_said(VIPS[0], "(64512,105)", true)?;
    drop(fabric.speakers.remove(0));
    let reason = |it: &Value| it["reason"] == "speaker-down" && it["announced"] == false;
    observed("explained", BOUND, || fabric.explained(VIPS[0]), reason)?;
    let agent = fabric.segment.nodes[0].agent()?;
    let status = agent.until("away", BOUND, |status| status["bgp"]["isAnswering"] == false)?;
    let errors = status["errors"].to_string();
    ensure!(errors.contains("BIRD does not answer"), "{errors}");
    ensure!(status["announcements"]["inTable"] == status["announcements"]["wanted"], "{status}");
    // Routes to the pods of others are still there.
    let (from, to) = (fabric.segment.nodes[0].pod()?, fabric.segment.nodes[1].pod()?);
    for address in &to.addresses {
        let outcome = Probe::tcp(SocketAddr::new(*address, PORT)).ask_in(&from.netns);
        ensure!(outcome.endpoint().is_some(), "{address}: {outcome:?}");
    }
    // BIRD is gone, so what it has left may go; and its passwords.
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
