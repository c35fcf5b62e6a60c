//! A node that has IPv6 alone, with two routers: one waits for the hold time, the other has BFD.
//! BIRD refuses a configuration, and then the node loses its power.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Probe;
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Segment, addresses, object, ranges};
use super::spoiler::Spoiler;
use super::table::{VIPS, web};
use super::underlay::configured;

/// Too long to be waited for: what ends a session before is something else.
const HOLD: &str = "600s";

/// The router with this number. BFD may miss packets for 10 s, for machines with much to do.
fn router(number: u8, options: &str) -> String {
    let [own, node] = [number, 1].map(|number| addresses(number)[1]);
    let asn = 64999 + u32::from(number);
    format!(
        "log stderr all;\nrouter id 192.0.2.{number};\nprotocol device {{}}\n\
         protocol bfd {{ interface \"*\" {{ interval 2 s; multiplier 5; }}; }}\n\
         protocol kernel {{ ipv6 {{ export all; }}; }}\n\
         protocol bgp node {{ local {own} as {asn}; neighbor {node} as 64512; {options} \
         connect delay time 1; ipv6 {{ import all; export none; }}; }}\n"
    )
}

/// The node's objects: it has IPv6 alone.
fn node_object(labels: &Value) -> Value {
    let mut node = object("node-1", 1, &addresses(1)[1..], &ranges(1)[1..]);
    node["metadata"]["labels"] = labels.clone();
    node
}

struct Fabric {
    _speaker: Bird,
    routers: [Bird; 2],
    segment: Segment,
}

impl Fabric {
    fn new() -> Result<Self> {
        let mut segment = Segment::new("bgp-six")?;
        segment.manifests.put("nodes", &[node_object(&json!({}))])?;
        segment.nodes[0].netns.ip("addr del 192.0.2.1/24 dev eth0")?;
        let peer = |number: u8, more: &Value| {
            let mut peer = json!({
                "name": format!("router-{number}"), "address": addresses(number)[1],
                "asn": 64999 + u32::from(number),
            });
            let fields = more.as_object().into_iter().flatten();
            fields.for_each(|(name, value)| peer[name] = value.clone());
            peer
        };
        let labelled = json!({ "nodeSelector": { "third": "yes" } });
        let peers = [peer(2, &json!({})), peer(3, &json!({ "bfd": true })), peer(9, &labelled)];
        let flag =
            configured(&segment, &json!({ "asn": 64512, "holdTime": HOLD, "peers": peers }))?;
        segment.nodes[0].start_with(&[&flag])?;
        segment.nodes[0].attach()?;
        let folder = segment.folder.path().to_owned();
        let start = |number: u8, name: &str, options: &str| {
            let netns = &segment.nodes[usize::from(number) - 1].netns;
            Bird::start(netns, &folder, name, &router(number, options))
        };
        let routers =
            [start(2, "slow", "hold time 6;")?, start(3, "quick", "hold time 600; bfd on;")?];
        let speaker = segment.nodes[0].speaker()?;
        Ok(Self { _speaker: speaker, routers, segment })
    }

    /// Waits until both routers' kernels have exactly these routes.
    fn until_heard(&self, wanted: &[&str]) -> Result<()> {
        for router in &self.segment.nodes[1..] {
            let heard = || {
                let shown = router.netns.output("ip", &["-6", "route", "show", "proto", "bird"])?;
                let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
                Ok(shown.lines().map(first).collect::<Vec<_>>())
            };
            observed("heard", TIMEOUT, heard, |heard| *heard == wanted)?;
        }
        Ok(())
    }

    fn status(&self) -> Result<Value> {
        self.segment.nodes[0].agent()?.status()
    }

    /// BIRD reads a configuration that it refuses: it keeps the one that it has, with its sessions,
    /// and status names file and line. When one comes that it takes, all is well.
    fn refuses(&self) -> Result<()> {
        let folder = self.segment.nodes[0].run_dir.join("bird");
        let running = fs::read_to_string(folder.join("bird.conf"))?;
        let spoiler = Spoiler::before(&folder.join("bird.ctl"))?;
        self.segment.manifests.put("nodes", &[node_object(&json!({ "third": "yes" }))])?;
        let next = folder.join("bird.conf.next");
        let output = format!("BIRD keeps its configuration: BIRD refuses: {}:", next.display());
        let is_named = |status: &Value| {
            let errors = status["errors"].as_array().into_iter().flatten();
            let place = errors.filter_map(|error| error.as_str()?.split_once(&output));
            place
                .clone()
                .any(|(_, at)| at.starts_with(|character: char| character.is_ascii_digit()))
        };
        let status = observed("refused", TIMEOUT, || self.status(), is_named)?;
        ensure!(status["bgp"]["isCurrent"] == false, "{status}");
        ensure!(fs::read_to_string(folder.join("bird.conf"))? == running, "it was replaced");
        let states: Vec<&Value> = status["bgp"]["sessions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|session| &session["state"])
            .collect();
        assert_eq!(states, ["Established", "Established"], "{status}");
        drop(spoiler);
        self.segment.manifests.put("nodes", &[node_object(&json!({}))])?;
        observed(
            "as before",
            TIMEOUT,
            || self.status(),
            |status| status["bgp"]["isCurrent"] == true,
        )?;
        self.segment.manifests.put("nodes", &[node_object(&json!({ "third": "yes" }))])?;
        let has_third = |status: &Value| {
            let count = status["bgp"]["sessions"].as_array().map(Vec::len);
            status["bgp"]["isCurrent"] == true && count == Some(3)
        };
        observed("taken", TIMEOUT, || self.status(), has_third).map(drop)
    }
}

#[test]
fn a_node_with_ipv6_alone_announces_until_its_power_is_off() -> Result<()> {
    let fabric = Fabric::new()?;
    let segment = &fabric.segment;
    let node = &segment.nodes[0];
    segment.manifests.put("web", &web(node, true)?)?;
    let [_, range] = ranges(1);
    fabric.until_heard(&[VIPS[1], &range])?;
    for (router, number) in segment.nodes[1..].iter().zip(2..) {
        let from = addresses(number)[1];
        let outcome =
            Probe::tcp(SocketAddr::new(ip(VIPS[1]), 80)).from(from).send_in(&router.netns);
        ensure!(outcome.seen() == Some(from), "{outcome:?}");
    }
    let [slow, quick] = &fabric.routers;
    let bfd = || Ok(quick.ask("show bfd sessions")?.contains(" Up "));
    eventually("BFD", TIMEOUT, bfd)?;
    fabric.refuses()?;
    // Nobody says goodbye.
    segment.unplug(1)?;
    fabric.until_heard(&[])?;
    for (router, why) in [(slow, "Hold timer expired"), (quick, "BFD session down")] {
        let shown = router.ask("show protocols all node")?;
        ensure!(shown.contains(why), "{why}: {shown}");
    }
    Ok(())
}
