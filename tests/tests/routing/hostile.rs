//! A router that tells a node's BIRD whatever it likes.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::peers::bird::Bird;
use denizen_tests::test_length;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Segment, addresses};
use super::underlay::configured;

/// How many routes are taken.
const LIMIT: usize = 50;
/// How many are advertised at first.
const FEW: usize = 10;
/// How many are advertised in the end.
fn flood() -> usize {
    test_length::in_full(100_000, 5000)
}

/// The nodes, their network, pods and services; and one that is nobody's.
const CLAIMS: [&str; 9] = [
    "192.0.2.0/25",
    "192.0.2.2/32",
    "10.1.1.0/24",
    "10.1.1.7/32",
    "10.1.2.0/25",
    "203.0.113.7/32",
    "0.0.0.0/0",
    "0.0.0.0/1",
    "10.9.255.0/24",
];

/// A router that claims all that, and tells so many routes that it may tell.
fn hostile(count: usize) -> String {
    let mut routes = String::new();
    for claim in CLAIMS {
        let _ = writeln!(routes, "route {claim} blackhole;");
    }
    for index in 0..count {
        let [_, a, b, c] = (index as u32).to_be_bytes();
        let _ = writeln!(routes, "route 10.{}.{b}.{c}/32 blackhole;", 8 + a);
    }
    let [own, node] = [2, 1].map(|number| addresses(number)[0]);
    format!(
        "log stderr all;\nrouter id {own};\nprotocol device {{}}\n\
         protocol static {{ ipv4;\n{routes} }}\n\
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
        "import": ["10.8.0.0/15", "192.0.2.0/24", "203.0.113.0/24"],
    });
    let bird = json!({ "asn": 64512, "peers": [peer] });
    let flag = configured(&segment, &bird)?;
    segment.nodes[0].start_with(&[&flag])?;
    let before = main_table(&segment)?;
    let speaker = segment.nodes[0].speaker()?;
    let folder = segment.folder.path().to_owned();
    let evil = Bird::start(&segment.nodes[1].netns, &folder, "evil", &hostile(FEW))?;
    let received = || Ok(received(&speaker).unwrap_or_default());
    observed("received", TIMEOUT, received, |count| *count == CLAIMS.len() + FEW)?;
    let learned = || {
        let now = main_table(&segment)?;
        Ok(now.into_iter().filter(|line| !before.contains(line)).collect::<Vec<_>>())
    };
    let is_asked = |line: &String| {
        (line.starts_with("10.8.") || line.starts_with("10.9.")) && line.contains("metric 1190")
    };
    let routes = learned()?;
    ensure!(routes.len() == FEW + 1 && routes.iter().all(is_asked), "{routes:?}");

    fs::write(folder.join("evil.conf"), hostile(flood()))?;
    evil.ask("configure")?;
    let session = || {
        let status = segment.nodes[0].agent()?.status()?;
        Ok(status["bgp"]["sessions"][0].clone())
    };
    let is_limited =
        |session: &Value| session["state"] == "Established" && session["isLimited"] == true;
    let shown = observed("limited", TIMEOUT, session, is_limited)?;
    assert_eq!(shown["imported"], LIMIT, "{shown}");
    let routes = observed("learned", TIMEOUT, learned, |routes| routes.len() == LIMIT)?;
    ensure!(routes.iter().all(is_asked), "{routes:?}");
    beside_another_bird(&segment, &speaker, &routes)?;
    let kept = main_table(&segment)?;
    ensure!(before.iter().all(|line| kept.contains(line)), "{before:?} {kept:?}");
    Ok(())
}

/// How many routes the node's BIRD has got of the router, as it counts them.
fn received(speaker: &Bird) -> Option<usize> {
    let shown = speaker.ask("show protocols all 'peer:evil'").ok()?;
    let counts = shown.lines().find_map(|line| line.trim().strip_prefix("Import updates:"))?;
    counts.split_whitespace().next()?.parse().ok()
}

/// Another BIRD with its own routes, at the metric that BIRD has unless it is configured otherwise:
/// both look at the kernel's table, and neither touches what the other has.
fn beside_another_bird(segment: &Segment, ours: &Bird, learned: &[String]) -> Result<()> {
    let configuration = "log stderr all;\nrouter id 192.0.2.77;\nprotocol device {}\n\
        protocol kernel others { persist; ipv4 { import none; export all; }; }\n\
        protocol static { ipv4; route 10.77.0.0/16 via 192.0.2.3; }\n";
    let netns = &segment.nodes[0].netns;
    let other = Bird::start(netns, segment.folder.path(), "other", configuration)?;
    let is_theirs = |line: &String| line.starts_with("10.77.0.0/16");
    let shown = || main_table(segment);
    observed("theirs", TIMEOUT, shown, |lines| lines.iter().any(is_theirs))?;
    for _ in 0..3 {
        other.ask("reload in others")?;
        ours.ask("reload in learned4")?;
    }
    let lines = main_table(segment)?;
    ensure!(lines.iter().any(is_theirs), "{lines:?}");
    ensure!(learned.iter().all(|route| lines.contains(route)), "{lines:?}");
    Ok(())
}

fn main_table(segment: &Segment) -> Result<Vec<String>> {
    let shown = segment.nodes[0].netns.output("ip", &["-4", "route", "show"]);
    Ok(shown.context("routes")?.lines().map(str::to_owned).collect())
}
