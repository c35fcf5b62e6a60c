//! What routers hear of the table of announcements by BIRD, with the configuration of
//! `conf/bird/bird.conf`: judged by two routers' own tables, and by their packets.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Probe;
use denizen_tests::peers::bird::Bird;
use serde_json::json;
use tempfile::TempDir;

use super::segment::{Node, Segment, addresses, objects};
use super::storm::{Storm, change};
use super::table::{FLAGS, VIPS, table, web};
use super::{TIMEOUT, ranges};

/// The router that has this number among the segment's nodes.
fn router(number: u8) -> String {
    let [v4, v6] = [0, 1].map(|family| addresses(number)[family]);
    let asn = 64999 + u32::from(number);
    let session = |name: &str, own: IpAddr, node: IpAddr, family: &str| {
        format!(
            "protocol bgp {name} {{ local {own} as {asn}; neighbor {node} as 64512; \
             connect delay time 1; {family} {{ import all; export none; }}; }}\n"
        )
    };
    let [node4, node6] = [0, 1].map(|family| addresses(1)[family]);
    format!(
        "log stderr all;\nrouter id {v4};\nprotocol device {{}}\n\
         protocol kernel {{ ipv4 {{ export all; }}; }}\n\
         protocol kernel {{ ipv6 {{ export all; }}; }}\n{}{}",
        session("node", v4, node4, "ipv4"),
        session("node6", v6, node6, "ipv6"),
    )
}

/// Everything that announces and hears.
struct Fabric {
    routers: [Bird; 2],
    speaker: Bird,
    segment: Segment,
    _folder: TempDir,
}

impl Fabric {
    /// The first node announces to the two others, which are routers.
    fn new() -> Result<Self> {
        let mut segment = Segment::new("fabric")?;
        let folder = netns::folder()?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/bird/bird.conf");
        let configuration = fs::read_to_string(path)?.replace("log syslog", "log stderr");
        let node = &mut segment.nodes[0];
        node.start_with(&[&FLAGS[..], &["--drain-taints=away", "--drain-wait=1h"]].concat())?;
        node.attach()?;
        let start = |index: usize, name: &str, configuration: &str| {
            Bird::start(&segment.nodes[index].netns, folder.path(), name, configuration)
        };
        let routers = [start(1, "router_a", &router(2))?, start(2, "router_b", &router(3))?];
        let speaker = start(0, "speaker", &configuration)?;
        Ok(Self { routers, speaker, segment, _folder: folder })
    }

    fn node(&self) -> &Node {
        &self.segment.nodes[0]
    }

    fn put_web(&self, is_ready: bool) -> Result<()> {
        self.segment.manifests.put("web", &web(self.node(), is_ready)?)
    }

    /// Waits until both routers have exactly these routes to the node, as the kernel shows them.
    fn until_heard(&self, wanted: &[&str]) -> Result<()> {
        for node in &self.segment.nodes[1..] {
            let routes = || {
                let shown = ["-4", "-6"].map(|family| {
                    node.netns.output("ip", &[family, "route", "show", "proto", "bird"])
                });
                let mut heard = Vec::new();
                for shown in shown {
                    let prefixes = shown?.lines().map(first_word).collect::<Vec<_>>();
                    heard.extend(prefixes);
                }
                Ok(heard)
            };
            observed("heard", TIMEOUT, routes, |heard| *heard == wanted)?;
        }
        Ok(())
    }
}

impl Fabric {
    /// Somebody else's routes change thousands of times a second, and BIRD looks through the
    /// tables: what is withdrawn goes nevertheless. So it does when BIRD has missed the kernel's
    /// word of it.
    fn hears_beside_a_storm(&self, pods: &[&str], all: &[&str]) -> Result<()> {
        let storm = Storm::start(&self.node().netns)?;
        for (is_ready, wanted) in [(false, pods), (true, all)] {
            self.put_web(is_ready)?;
            self.speaker.ask("reload in all")?;
            self.until_heard(wanted)?;
        }
        let changes = storm.stop()?;
        ensure!(changes > 0, "no route changed");
        // More than its sockets hold.
        self.speaker.pause(true)?;
        change(&self.node().netns, 40_000)?;
        self.put_web(false)?;
        let is_vip = |line: &String| VIPS.iter().any(|vip| line.ends_with(vip));
        let is_withdrawn = || Ok(!table(&self.node().netns)?.iter().any(is_vip));
        eventually("withdrawn", TIMEOUT, is_withdrawn)?;
        self.speaker.pause(false)?;
        self.until_heard(pods)?;
        let log = self.speaker.log()?;
        ensure!(log.contains("Kernel dropped some netlink messages"), "nothing was missed: {log}");
        self.put_web(true)?;
        self.until_heard(all)
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

/// Endpoints come and go, the agent is killed, the node drains, somebody else uses the table.
#[test]
fn routers_hear_what_the_agent_announces_and_nothing_else() -> Result<()> {
    let mut fabric = Fabric::new()?;
    let [range, range6] = ranges(1);
    let pods = [&*range, &range6];
    let all = [&*range, VIPS[0], VIPS[1], &range6];
    fabric.until_heard(&pods)?;
    // Somebody else's: nobody hears of it.
    let theirs = "route add blackhole 203.0.113.99 proto static metric 105 table 219";
    fabric.node().netns.ip(theirs)?;
    fabric.put_web(true)?;
    fabric.until_heard(&all)?;
    for (vip, family) in VIPS.map(ip).iter().zip(0..) {
        for (node, number) in fabric.segment.nodes[1..].iter().zip(2..) {
            let from = addresses(number)[family];
            let outcome = Probe::tcp(SocketAddr::new(*vip, 80)).from(from).send_in(&node.netns);
            let is_served = outcome.endpoint().is_some() && outcome.seen() == Some(from);
            ensure!(is_served, "{vip} from {from}: {outcome:?}");
        }
    }
    let heard =
        |fabric: &Fabric| fabric.routers.iter().map(Bird::heard).collect::<Result<Vec<_>>>();
    let before = heard(&fabric)?;
    ensure!(before.iter().flatten().count() >= 8, "{before:?}");
    let node = &mut fabric.segment.nodes[0];
    node.agent.take().context("an agent")?.kill()?;
    node.start_with(&[&FLAGS[..], &["--drain-taints=away", "--drain-wait=1h"]].concat())?;
    let is_whole = |status: &serde_json::Value| status["announcements"]["announced"] != json!({});
    node.agent()?.until("announced", TIMEOUT, is_whole)?;
    assert_eq!(heard(&fabric)?, before, "updates while the agent was replaced");
    fabric.put_web(false)?;
    fabric.until_heard(&pods)?;
    fabric.put_web(true)?;
    fabric.until_heard(&all)?;
    fabric.hears_beside_a_storm(&pods, &all)?;
    // The node drains: GRACEFUL_SHUTDOWN for its services.
    let mut nodes = objects(1..=3);
    nodes[0]["spec"]["taints"] = json!([{ "key": "away", "effect": "NoSchedule" }]);
    fabric.segment.manifests.put("nodes", &nodes)?;
    let has_community = |bird: &Bird, prefix: &str| {
        Ok(bird.ask(&format!("show route all {prefix}"))?.contains("(65535,0)"))
    };
    for bird in &fabric.routers {
        let vip = format!("{}/32", VIPS[0]);
        eventually("drained", TIMEOUT, || has_community(bird, &vip))?;
        ensure!(!has_community(bird, &range)?, "pods have no other way");
    }
    Ok(())
}
