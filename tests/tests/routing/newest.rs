//! Two nodes announce one pod's address: routers, which would use both ways, and their packets,
//! prefer the one that has recorded it last. The router by iBGP goes by local preference and MED,
//! the one by eBGP by origin and MED, and one that is told no MED, like one that hears of the nodes
//! by routers of several autonomous systems, by origin alone.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;
use denizen_tests::packets::probe::{Probe, Protocol};
use denizen_tests::packets::server::Server;
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Node, Segment, addresses};
use super::underlay::{chains, configured};

/// The routers' numbers on the network, each with its autonomous system and what it does with MED.
const ROUTERS: [(u8, u32, &str); 3] =
    [(101, 64512, ""), (102, 65102, ""), (103, 65103, "bgp_med = 0;")];
/// Those who hear of MED.
const WITH_MED: usize = 2;
/// A record that will soon be fresh no more: until then there is time to see that it is.
const NEARLY_OLD: &str = "50 seconds ago";

/// What runs ends before its namespaces do.
struct Fabric {
    _speakers: Vec<Bird>,
    routers: Vec<(Bird, Netns)>,
    pods: Vec<(Server, Pod)>,
    segment: Segment,
}

fn router(number: u8, asn: u32, filter: &str) -> String {
    let [own, own6] = [0, 1].map(|family| addresses(number)[family]);
    let mut text = format!(
        "log stderr all;\nrouter id {own};\nprotocol device {{}}\n\
         protocol kernel {{ merge paths on; ipv4 {{ export all; }}; }}\n\
         protocol kernel {{ merge paths on; ipv6 {{ export all; }}; }}\n"
    );
    for node in [1, 2] {
        for (own, of, n) in [(own, addresses(node)[0], 4), (own6, addresses(node)[1], 6)] {
            text += &format!(
                "protocol bgp node{node}_{n} {{ local {own} as {asn}; neighbor {of} as 64512; \
                 direct; connect delay time 1; \
                 ipv{n} {{ import filter {{ {filter} accept; }}; export none; }}; }}\n"
            );
        }
    }
    text
}

impl Fabric {
    fn new() -> Result<Self> {
        let mut segment = Segment::new("newest")?;
        let folder = segment.folder.path().to_owned();
        let mut routers = Vec::new();
        for (number, asn, filter) in ROUTERS {
            let netns = segment.join(&format!("newest-router{number}"), number)?;
            let name = format!("router{number}");
            let bird = Bird::start(&netns, &folder, &name, &router(number, asn, filter))?;
            routers.push((bird, netns));
        }
        let peer = |(number, asn, _): (u8, u32, &str), family: usize| {
            json!({
                "name": format!("router-{number}-{family}"), "address": addresses(number)[family],
                "asn": asn, "communities": { "pod": ["64512:102"], "fresh-pod": ["64512:98"] },
            })
        };
        let peers = ROUTERS.map(|router| [0, 1].map(|family| peer(router, family))).concat();
        let flag = configured(&segment, &json!({ "asn": 64512, "peers": peers }))?;
        let mut speakers = Vec::new();
        for node in &mut segment.nodes[..2] {
            node.start_with(&[&flag])?;
            speakers.push(node.speaker()?);
        }
        let mut fabric = Self { _speakers: speakers, routers, pods: Vec::new(), segment };
        fabric.attach(1)?;
        Ok(fabric)
    }

    fn node(&self, number: u8) -> &Node {
        &self.segment.nodes[usize::from(number) - 1]
    }

    /// A pod with the same addresses on each node, that serves a port of its own.
    fn attach(&mut self, number: u8) -> Result<()> {
        let node = self.node(number);
        let [chain, _] = chains(node, 1);
        let name = format!("default/moved-{number}");
        let pod = Pod::attach(&node.netns, Netns::new("newest-pod")?, &name, &chain)?;
        let served = [(Protocol::Tcp, PORT + u16::from(number))];
        let server = serve(&pod.netns, &pod.addresses, &served)?;
        let before = self.pods.first().map(|(_, pod)| &pod.addresses);
        ensure!(before.is_none_or(|addresses| *addresses == pod.addresses), "{before:?} {pod:?}");
        self.pods.push((server, pod));
        Ok(())
    }

    /// Waits until the routers' kernels, those of the first so many, lead to this node, and their
    /// packets to its pod.
    fn until_preferred(&self, number: u8, routers: usize) -> Result<()> {
        for (index, (bird, netns)) in self.routers[..routers].iter().enumerate() {
            for (address, family) in self.pods[0].1.addresses.iter().zip([0, 1]) {
                let shown = || {
                    netns.output(
                        "ip",
                        &[["-4", "-6"][family], "route", "show", &address.to_string()],
                    )
                };
                let via = format!("via {} ", addresses(number)[family]);
                // A second way would be the old one.
                let is_only =
                    |line: &String| line.contains(&via) && line.matches("via ").count() == 1;
                observed("preferred", TIMEOUT, shown, is_only).with_context(|| {
                    let shown = bird.ask(&format!("show route all for {address}"));
                    format!("{via}at router {index}: {}", shown.unwrap_or_default())
                })?;
                let to = SocketAddr::new(*address, PORT + u16::from(number));
                let outcome = Probe::tcp(to).send_in(netns);
                ensure!(outcome.endpoint() == Some(to), "router {index}: {outcome:?}");
            }
        }
        Ok(())
    }

    /// What `explain --announce` says at a node, once the class is this one.
    fn until_class(&self, number: u8, class: &str) -> Result<Value> {
        let address: IpAddr = self.pods[0].1.addresses[0];
        let asked = || self.node(number).agent()?.ask_directly(&json!({ "announce": address }));
        observed(class, TIMEOUT, asked, |status| {
            status["class"] == class && status["announced"] == true
        })
    }

    /// The record of this node is fresh, and then as old as others. Whoever compares MED prefers
    /// the node all the time, and nobody hears of a withdrawal.
    fn ages(&self, number: u8) -> Result<()> {
        self.node(number).recorded(NEARLY_OLD)?;
        self.until_class(number, "fresh-pod")?;
        self.until_preferred(number, ROUTERS.len())?;
        let withdrawn = self.withdrawn()?;
        self.until_class(number, "pod")?;
        for (bird, _) in &self.routers {
            for address in &self.pods[0].1.addresses {
                let shown = || bird.ask(&format!("show route all for {address}"));
                let is_ordinary = |shown: &String| {
                    !shown.contains("(64512,98)") && shown.matches("(64512,102)").count() == 2
                };
                observed("ordinary", TIMEOUT, shown, is_ordinary)?;
            }
        }
        self.until_preferred(number, WITH_MED)?;
        ensure!(self.withdrawn()? == withdrawn, "{:?}, before {withdrawn:?}", self.withdrawn()?);
        Ok(())
    }

    fn withdrawn(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for (bird, _) in &self.routers {
            all.extend(bird.heard()?.into_iter().filter(|line| line.contains("withdraws")));
        }
        Ok(all)
    }
}

#[test]
fn routers_prefer_the_node_that_has_recorded_a_pod_last() -> Result<()> {
    let mut fabric = Fabric::new()?;
    fabric.node(1).recorded("1 hour ago")?;
    let explained = fabric.until_class(1, "pod")?;
    ensure!(explained["metric"] == 102, "{explained}");
    fabric.until_preferred(1, ROUTERS.len())?;
    // It moves, and the node that had it does not know.
    fabric.attach(2)?;
    let explained = fabric.until_class(2, "fresh-pod")?;
    let is_reported = explained["why"].to_string().contains("routers prefer this node");
    ensure!(is_reported && explained["metric"] == 98, "{explained}");
    fabric.until_preferred(2, ROUTERS.len())?;
    let (bird, _) = &fabric.routers[0];
    let shown = bird.ask(&format!("show route all for {}", fabric.pods[0].1.addresses[0]))?;
    ensure!(shown.contains("BGP.local_pref: 200"), "{shown}");
    let status = fabric.node(2).agent()?.status()?;
    assert_eq!(status["announcements"]["announced"]["fresh-pod"], 2, "{status}");
    fabric.ages(2)?;
    // And back again: the routers' own order of the nodes decides nothing.
    fabric.ages(1)?;
    Ok(())
}
