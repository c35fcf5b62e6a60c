//! A node whose only link leads to its router, and has link-local addresses alone: both families go
//! over one BGP session, and IPv4 packets by way of IPv6 neighbours (RFC 8950).
//!
//! ```text
//!   pod ─ node (addresses on lo) ─ eth0 ─ fe80::2 … fe80::1 ─ eth0 ─ router ─ client
//! ```

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Probe;
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Segment, addresses, objects, ranges};
use super::table::{VIPS, web};
use super::underlay::configured;

/// The client's addresses, which it has on its link to the router.
const CLIENT: [&str; 2] = ["198.51.100.9", "2001:db8:100::9"];
const PASSWORD: &str = "of the fabric";

/// The router: it tells of default routes, of one range that is asked for, and of some that are the
/// node's own.
fn router() -> String {
    format!(
        "log stderr all;\nrouter id 192.0.2.254;\nprotocol device {{}}\n\
         protocol bfd {{ interface \"*\" {{ interval 2 s; multiplier 5; }}; }}\n\
         protocol kernel {{ ipv4 {{ export where source = RTS_BGP; }}; }}\n\
         protocol kernel {{ ipv6 {{ export where source = RTS_BGP; }}; }}\n\
         protocol static {{ ipv4; route 0.0.0.0/0 blackhole; route 10.9.1.0/24 blackhole; \
         route 10.9.0.0/25 blackhole; route {vip}/32 blackhole; }}\n\
         protocol static {{ ipv6; route ::/0 blackhole; route {vip6}/128 blackhole; }}\n\
         protocol bgp node {{ local fe80::1 as 65001; neighbor fe80::2%eth0 as 64512; direct; \
         password \"{PASSWORD}\"; bfd on; connect delay time 1; \
         ipv4 {{ extended next hop on; import all; export all; }}; \
         ipv6 {{ import all; export all; }}; }}\n",
        vip = VIPS[0].replace(".7", ".8"),
        vip6 = VIPS[1].replace("::7", "::8"),
    )
}

/// The link between the first two of the segment has link-local addresses alone, and behind the
/// second is a client.
fn unnumbered(segment: &Segment) -> Result<Netns> {
    let [v4, v6] = [0, 1].map(|family| addresses(1)[family]);
    let [node, router] = [0, 1].map(|index| &segment.nodes[index].netns);
    router.ip("addr flush dev eth0\naddr add fe80::1/64 dev eth0")?;
    node.ip(&format!(
        "addr flush dev eth0\naddr add fe80::2/64 dev eth0\n\
         addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo"
    ))?;
    let client = Netns::new("unnumbered-client")?;
    router.ip(&format!(
        "link add client type veth peer name eth0 netns {}\nlink set client up\n\
         addr add 198.51.100.1/24 dev client\naddr add 2001:db8:100::1/64 dev client",
        client.name()
    ))?;
    client.ip(&format!(
        "addr add {}/24 dev eth0\naddr add {}/64 dev eth0\nlink set eth0 up\n\
         route add default via 198.51.100.1\nroute add default via 2001:db8:100::1",
        CLIENT[0], CLIENT[1]
    ))?;
    Ok(client)
}

/// The routes that BIRD has put into the main table there, both families, without what does not
/// matter.
fn learned(netns: &Netns) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        let shown = netns.output("ip", &[family, "route", "show", "proto", "bird"])?;
        let route =
            |line: &str| line.split(" metric ").next().unwrap_or_default().trim().to_owned();
        lines.extend(shown.lines().map(route));
    }
    Ok(lines)
}

#[test]
fn both_families_are_announced_and_reached_over_a_link_local_session() -> Result<()> {
    let mut segment = Segment::new("unnumbered")?;
    let client = unnumbered(&segment)?;
    let folder = segment.folder.path().to_owned();
    fs::write(folder.join("password"), PASSWORD)?;
    let peer = json!({
        "name": "tor", "address": "fe80::1%eth0", "asn": 65001, "families": ["ipv4", "ipv6"],
        "passwordFile": folder.join("password"), "bfd": true,
        "import": ["default", "10.9.0.0/23", "203.0.113.0/24"],
    });
    let elsewhere = json!({ "name": "gone", "address": "fe80::1%eth9", "asn": 65001 });
    let bird = json!({ "asn": 64512, "drainPrepend": 2, "peers": [peer, elsewhere] });
    let flag = configured(&segment, &bird)?;
    segment.nodes[0].start_with(&[&flag])?;
    segment.nodes[0].attach()?;
    segment.manifests.put("web", &web(&segment.nodes[0], true)?)?;
    let router = Bird::start(&segment.nodes[1].netns, &folder, "router", &router())?;
    let speaker = segment.nodes[0].speaker()?;
    let node = &segment.nodes[0];

    let [range, range6] = ranges(1);
    let by = |prefix: &str, family: &str| format!("{prefix} via {family}fe80::2 dev eth0");
    let wanted = [by(&range, "inet6 "), by(VIPS[0], "inet6 "), by(VIPS[1], ""), by(&range6, "")];
    let heard = || learned(&segment.nodes[1].netns);
    observed("heard", TIMEOUT * 2, heard, |routes| *routes == wanted)?;
    let [v4, v6] = [0, 1].map(|family| addresses(1)[family]);
    let wanted = [
        format!("default via inet6 fe80::1 dev eth0 src {v4}"),
        format!("10.9.0.0/25 via inet6 fe80::1 dev eth0 src {v4}"),
        format!("10.9.1.0/24 via inet6 fe80::1 dev eth0 src {v4}"),
        format!("default via fe80::1 dev eth0 src {v6}"),
    ];
    observed("learned", TIMEOUT, || learned(&node.netns), |routes| *routes == wanted)?;
    for family in 0..2 {
        let (own, pod) = (ip(CLIENT[family]), node.pod()?.addresses[family]);
        for to in [SocketAddr::new(ip(VIPS[family]), 80), SocketAddr::new(pod, PORT)] {
            let outcome = Probe::tcp(to).from(own).send_in(&client);
            let is_direct = outcome.endpoint().is_some() && outcome.seen() == Some(own);
            ensure!(is_direct, "from {own} to {to}: {outcome:?}");
        }
    }
    let has_bfd = || Ok(router.ask("show bfd sessions")?.contains(" Up "));
    eventually("BFD", TIMEOUT, has_bfd)?;
    is_told(node.agent()?)?;
    // The node drains.
    let mut nodes = objects(1..=3);
    nodes[0]["spec"]["taints"] = json!([{ "key": "away", "effect": "NoSchedule" }]);
    segment.manifests.put("nodes", &nodes)?;
    let path = || router.ask(&format!("show route all {}/32", VIPS[0]));
    let is_longer = |shown: &String| shown.contains("as_path: 64512 64512 64512\n");
    observed("prepended", TIMEOUT, path, is_longer)?;
    let of_pods = router.ask(&format!("show route all {range}"))?;
    ensure!(of_pods.contains("as_path: 64512\n"), "pods have no other way: {of_pods}");
    drop(speaker);
    let agent = segment.nodes[0].agent.take().context("an agent")?;
    agent.terminate()?;
    let node = &segment.nodes[0];
    node.netns.output(
        &binary::ours("denizen-agent")?.to_string_lossy(),
        &["cleanup", "--run-dir", &node.run_dir.to_string_lossy()],
    )?;
    assert_eq!(learned(&node.netns)?, [""; 0]);
    Ok(())
}

/// What status and `explain` say: one session with both families, and one whose interface is not
/// there.
fn is_told(agent: &Agent) -> Result<()> {
    let is_counted = |status: &Value| {
        let sessions = status["bgp"]["sessions"].as_array().into_iter().flatten();
        let mut tor = sessions.filter(|session| session["peer"] == "peer:tor");
        tor.any(|session| {
            session["state"] == "Established"
                && session["exported"] == 4
                && session["imported"] == 4
        })
    };
    let status = agent.until("counted", TIMEOUT, is_counted)?;
    let output = "no BGP session with gone (fe80::1%eth9): interface eth9: No such device";
    assert_eq!(status["errors"], json!([output]));
    for vip in VIPS {
        let explained = agent.ask_directly(&json!({ "announce": vip }))?;
        assert_eq!(explained["peers"], json!(["peer:tor"]), "{explained}");
    }
    Ok(())
}
