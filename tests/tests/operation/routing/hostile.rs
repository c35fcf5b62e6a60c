//! A router that tells a node's BIRD whatever it likes.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::observed;
use serde_json::{Value, json};

use super::BOUND;
use super::segment::{Segment, addresses};
use super::speaker::Bird;
use super::underlay::configured;

/// How many routes are taken.
const LIMIT: usize = 50;
/// How many are told beyond that.
const FLOOD: usize = 5000;

/// A router that claims the nodes, their network, pods and services, and floods what it may tell.
fn hostile() -> String {
    let claims = [
        "192.0.2.0/25",
        "192.0.2.2/32",
        "10.1.1.0/24",
        "10.1.1.7/32",
        "10.1.2.0/25",
        "203.0.113.7/32",
        "0.0.0.0/1",
        "127.0.0.0/8",
        "10.9.255.0/24",
    ];
    let mut routes = String::new();
    for claim in claims {
        let _ = writeln!(routes, "route {claim} blackhole;");
    }
    for index in 0..FLOOD {
        let _ = writeln!(routes, "route 10.9.{}.{}/32 blackhole;", index / 250, index % 250);
    }
    let [own, node] = [2, 1].map(|number| addresses(number)[0]);
    format!(
        "log stderr all;\nrouter id {own};\nprotocol device {{}}\n\
         protocol static {{ ipv4; route 0.0.0.0/0 blackhole;\n{routes} }}\n\
         protocol bgp node {{ local {own} as 65001; neighbor {node} as 64512; \
         connect delay time 1; ipv4 {{ import all; export all; }}; }}\n"
    )
}

/// Nothing of it gets into the kernel but what was asked for, and no more than is permitted. The
/// session stays.
#[test]
fn a_hostile_router_changes_nothing() -> Result<()> {
    let mut segment = Segment::new("bgp-hostile")?;
    let peer = json!({
        "name": "evil", "address": addresses(2)[0], "asn": 65001, "importLimit": LIMIT,
        "import": ["10.9.0.0/16", "192.0.2.0/24", "203.0.113.0/24"],
    });
    let bird = json!({ "asn": 64512, "peers": [peer] });
    let flag = configured(&segment, &bird)?;
    segment.nodes[0].start_with(&[&flag])?;
    let before = main_table(&segment)?;
    let _speaker = Bird::of_node(&segment.nodes[0])?;
    let folder = segment.folder.path().to_owned();
    let _evil = Bird::start(&segment.nodes[1].netns, &folder, "evil", &hostile())?;
    let session = || {
        let status = segment.nodes[0].agent()?.status()?;
        Ok(status["bgp"]["sessions"][0].clone())
    };
    let is_limited = |it: &Value| it["state"] == "Established" && it["isLimited"] == true;
    let shown = observed("limited", BOUND, session, is_limited)?;
    assert_eq!(shown["imported"], LIMIT, "{shown}");
    let learned = || {
        let now = main_table(&segment)?;
        Ok(now.into_iter().filter(|line| !before.contains(line)).collect::<Vec<_>>())
    };
    let routes = observed("learned", BOUND, learned, |routes| routes.len() == LIMIT)?;
    let is_asked = |line: &String| line.starts_with("10.9.") && line.contains("metric 1190");
    ensure!(routes.iter().all(is_asked), "{routes:?}");
    let kept = main_table(&segment)?;
    ensure!(before.iter().all(|line| kept.contains(line)), "{before:?} {kept:?}");
    Ok(())
}

fn main_table(segment: &Segment) -> Result<Vec<String>> {
    let shown = segment.nodes[0].netns.output("ip", &["-4", "route", "show"]);
    Ok(shown.context("routes")?.lines().map(str::to_owned).collect())
}
