//! A node that reflects routes between two routers of its own autonomous system, until its BIRD
//! dies and does not come back.

use anyhow::{Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::peers::bird::Bird;
use serde_json::json;

use super::TIMEOUT;
use super::segment::{Node, Segment, addresses, ranges};
use super::underlay::configured;

/// A router that announces a range of its own, and puts what it hears into its kernel.
fn client(number: u8) -> String {
    let [own, node] = [number, 1].map(|number| addresses(number)[0]);
    format!(
        "log stderr all;\nrouter id {own};\nprotocol device {{}}\n\
         protocol kernel {{ ipv4 {{ export where source = RTS_BGP; }}; }}\n\
         protocol static {{ ipv4; route 10.50.{number}.0/24 blackhole; }}\n\
         protocol bgp node {{ local {own} as 64512; neighbor {node} as 64512; direct; \
         connect delay time 1; \
         ipv4 {{ import all; export where source = RTS_STATIC; next hop self; }}; }}\n"
    )
}

/// The routes of this router's kernel that BIRD has made.
fn heard(router: &Node) -> Result<Vec<String>> {
    let shown = router.netns.output("ip", &["-4", "route", "show", "proto", "bird"])?;
    let route = |line: &str| line.split(" dev ").next().unwrap_or_default().to_owned();
    Ok(shown.lines().map(route).collect())
}

#[test]
fn a_node_reflects_routes_and_is_missed_when_its_restart_takes_too_long() -> Result<()> {
    let mut segment = Segment::new("bgp-reflect")?;
    let peer = |number: u8| {
        json!({
            "name": format!("router-{number}"), "address": addresses(number)[0], "asn": 64512,
            "rrClient": true, "import": ["10.50.0.0/16"],
        })
    };
    let bird = json!({ "asn": 64512, "gracefulRestart": "10s", "peers": [peer(2), peer(3)] });
    let flag = configured(&segment, &bird)?;
    segment.nodes[0].start_with(&[&flag])?;
    let folder = segment.folder.path().to_owned();
    let start = |number: u8| {
        let netns = &segment.nodes[usize::from(number) - 1].netns;
        Bird::start(netns, &folder, &format!("router-{number}"), &client(number))
    };
    let _routers = [start(2)?, start(3)?];
    let speaker = segment.nodes[0].speaker()?;
    // A reflected route leads to the router that has announced it, and not through the node.
    let wanted = |other: u8| {
        let [range, _] = ranges(1);
        let by = |number: u8| addresses(number)[0];
        [format!("{range} via {}", by(1)), format!("10.50.{other}.0/24 via {}", by(other))]
    };
    for (router, other) in segment.nodes[1..].iter().zip([3, 2]) {
        observed("heard", TIMEOUT, || heard(router), |routes| *routes == wanted(other))?;
    }
    drop(speaker);
    let kept = heard(&segment.nodes[1])?;
    ensure!(kept == wanted(3), "forgotten at once: {kept:?}");
    for router in &segment.nodes[1..] {
        observed("forgotten", TIMEOUT, || heard(router), Vec::is_empty)?;
    }
    Ok(())
}
