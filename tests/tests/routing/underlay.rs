//! A fabric for BGP: three nodes, two top-of-rack routers, and a spine with a client behind it.
//!
//! ```text
//!   node-1 ─┐          ┌─ tor-a ─┐
//!   node-2 ─┼─ switch ─┤         ├─ spine (client)
//!   node-3 ─┘          └─ tor-b ─┘
//! ```
//!
//! Each node has a pod of its podCIDRs, and two of other ranges: one behind another bridge, and one
//! that is routed to.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cni::Chain;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Probe;
use denizen_tests::packets::server::Server;
use denizen_tests::peers::bird::Bird;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{NODES, Node, Segment, addresses};
use super::table::{VIPS, web};

/// The routers' numbers on the network of the nodes.
pub(super) const TORS: [u8; 2] = [101, 102];
/// The client's addresses, which only the spine has.
pub(super) const CLIENT: [&str; 2] = ["198.51.100.1", "2001:db8:100::1"];
/// The sessions of one node: with both routers and both other nodes, in both families.
pub(super) const SESSIONS: usize = 8;
/// How a router honours that a node drains (RFC 8326), by whomever it hears of it.
const GRACEFUL: &str = "if (65535,0) ~ bgp_community then bgp_local_pref = 0; accept;";
const PASSWORD: &str = "of the routers; # \\ and 'quoted'";

/// Everything. What runs ends before its namespaces do.
pub(super) struct Underlay {
    /// Each node's, by number.
    pub(super) speakers: Vec<Bird>,
    /// Those of [`TORS`].
    pub(super) tors: Vec<Bird>,
    _spine: Bird,
    /// By node, the pods that are not in its podCIDRs.
    exact: Vec<(Server, Pod)>,
    pub(super) segment: Segment,
    pub(super) client: Netns,
    /// Those of [`TORS`].
    pub(super) routers: Vec<Netns>,
}

/// The file that configures an agent, with this section `routing.bird`.
pub(super) fn configured(segment: &Segment, bird: &Value) -> Result<String> {
    let routing = json!({
        "mode": "bird", "services": ["load-balancer-ips"],
        "ranges": ["203.0.113.0/24", "2001:db8:5::/64"],
        "drainTaints": ["away"], "drainWait": "1h", "bird": bird,
    });
    configured_with(segment, &routing)
}

/// The file that configures an agent, with this section `routing`.
pub(super) fn configured_with(segment: &Segment, routing: &Value) -> Result<String> {
    let path = segment.folder.path().join("config.yaml");
    let text = json!({
        "apiVersion": "denizen.io/v1alpha1", "kind": "DenizenConfiguration", "routing": routing,
    });
    fs::write(&path, text.to_string())?;
    Ok(format!("--config={}", path.display()))
}

/// What nodes are configured to do: a full mesh, and both routers, which advertise the client by a
/// default route and other nodes' pods by host routes.
fn bird(segment: &Segment) -> Result<Value> {
    let file = segment.folder.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n"))?;
    let imports = [json!(["default", "10.8.0.0/15"]), json!(["default", "fd08::/15"])];
    let peer = |number: u8, family: usize| {
        json!({
            "name": format!("tor-{number}-{family}"), "address": addresses(number)[family],
            "asn": 64900 + u32::from(number), "passwordFile": file, "allowLocalAs": 1,
            "import": imports[family], "communities": { "load-balancer-ip": ["64512:105"] },
        })
    };
    let peers: Vec<Value> =
        TORS.iter().flat_map(|number| [0, 1].map(|family| peer(*number, family))).collect();
    Ok(json!({ "asn": 64512, "mesh": true, "peers": peers }))
}

/// One of BIRD's sessions. What is more stands in its options.
fn session(name: &str, [own, of]: [(IpAddr, u32); 2], options: &str) -> String {
    let n = if own.0.is_ipv4() { 4 } else { 6 };
    format!(
        "protocol bgp {name}_{n} {{ local {} as {}; neighbor {} as {}; {options} \
         connect delay time 1; error wait time 5, 60; \
         ipv{n} {{ import filter {{ {GRACEFUL} }}; export all; }}; }}\n",
        own.0, own.1, of.0, of.1
    )
}

/// What a router's configuration begins with.
fn router(id: IpAddr) -> String {
    format!(
        "log stderr all;\nrouter id {id};\nprotocol device {{}}\n\
         protocol kernel {{ merge paths on; ipv4 {{ export where source = RTS_BGP; }}; }}\n\
         protocol kernel {{ merge paths on; ipv6 {{ export where source = RTS_BGP; }}; }}\n"
    )
}

/// The addresses of the link between a router and the spine, the spine's first.
fn uplink(number: u8) -> [[IpAddr; 2]; 2] {
    [1, 2].map(|host| {
        [ip(&format!("198.18.{number}.{host}")), ip(&format!("2001:db8:18:{number}::{host}"))]
    })
}

fn tor(number: u8) -> String {
    let asn = 64900 + u32::from(number);
    let password = format!("password \"{PASSWORD}\";");
    let mut text = router(addresses(number)[0]);
    for family in 0..2 {
        let own = (addresses(number)[family], asn);
        for node in 1..=NODES {
            let of = (addresses(node)[family], 64512);
            text += &session(&format!("node{node}"), [own, of], &password);
        }
        let [spine, own] = uplink(number);
        text += &session("spine", [(own[family], asn), (spine[family], 65100)], "");
    }
    text
}

fn spine() -> String {
    let mut text = router(ip(CLIENT[0]))
        + "protocol static { ipv4; route 0.0.0.0/0 blackhole; }\n\
           protocol static { ipv6; route ::/0 blackhole; }\n";
    for number in TORS {
        let [own, of] = uplink(number);
        for (own, of) in own.into_iter().zip(of) {
            let asn = 64900 + u32::from(number);
            text += &session(&format!("tor{number}"), [(own, 65100), (of, asn)], "");
        }
    }
    text
}

impl Underlay {
    /// Waits until every session is up, and attaches all pods.
    pub(super) fn new(label: &str) -> Result<Self> {
        let mut segment = Segment::new(label)?;
        let client = Netns::new(&format!("{label}-spine"))?;
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            client.sysctl(key, "1")?;
        }
        client.ip(&format!(
            "link set lo up\naddr add {}/32 dev lo\naddr add {}/128 dev lo",
            CLIENT[0], CLIENT[1]
        ))?;
        let folder = segment.folder.path().to_owned();
        let (mut routers, mut tors) = (Vec::new(), Vec::new());
        for number in TORS {
            let netns = segment.join(&format!("{label}-tor{number}"), number)?;
            let [above, below] = uplink(number);
            client.ip(&format!(
                "link add tor{number} type veth peer name uplink netns {}\nlink set tor{number} up\n\
                 addr add {}/24 dev tor{number}\naddr add {}/64 dev tor{number} nodad",
                netns.name(),
                above[0],
                above[1]
            ))?;
            netns.ip(&format!(
                "link set uplink up\naddr add {}/24 dev uplink\naddr add {}/64 dev uplink nodad",
                below[0], below[1]
            ))?;
            tors.push(Bird::start(&netns, &folder, &format!("tor{number}"), &tor(number))?);
            routers.push(netns);
        }
        let spine = Bird::start(&client, &folder, "spine", &spine())?;
        let flag = configured(&segment, &bird(&segment)?)?;
        let (mut speakers, mut exact) = (Vec::new(), Vec::new());
        for node in &mut segment.nodes {
            node.start_with(&[&flag])?;
            node.attach()?;
            speakers.push(node.speaker()?);
        }
        for (node, number) in segment.nodes.iter().zip(1..) {
            for chain in chains(node, number) {
                exact.push(node.attach_by(&chain)?);
            }
            // Otherwise routers hear of each pod once more, a minute later.
            node.recorded("1 hour ago")?;
        }
        let underlay = Self { speakers, tors, _spine: spine, exact, segment, client, routers };
        underlay.until_up()?;
        Ok(underlay)
    }

    /// Waits until every agent says that all sessions are up and its configuration is in force.
    pub(super) fn until_up(&self) -> Result<()> {
        for node in &self.segment.nodes {
            let is_up = |status: &Value| {
                let sessions = status["bgp"]["sessions"].as_array().into_iter().flatten();
                let up = sessions.filter(|session| session["state"] == "Established").count();
                up == SESSIONS && status["bgp"]["isCurrent"] == true
            };
            // BIRD connects after 5 s, and again after others have refused it or were given up.
            node.agent()?.until("up", TIMEOUT * 2, is_up)?;
        }
        Ok(())
    }

    /// All pods.
    pub(super) fn pods(&self) -> Result<Vec<&Pod>> {
        let mut pods = self.segment.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        pods.extend(self.exact.iter().map(|(_, pod)| pod));
        Ok(pods)
    }

    /// BIRD of the first node dies without a word, and starts again as its container does.
    pub(super) fn replace_speaker(&mut self) -> Result<()> {
        drop(self.speakers.remove(0));
        let speaker = self.segment.nodes[0].speaker()?;
        let is_up = || Ok(speaker.established().unwrap_or_default() == SESSIONS);
        eventually("sessions of a new BIRD", TIMEOUT * 2, is_up)?;
        let is_over = || Ok(!speaker.ask("show status")?.contains("recovery"));
        eventually("recovered", TIMEOUT * 2, is_over)?;
        self.speakers.insert(0, speaker);
        Ok(())
    }

    /// The second node loses its power, so nobody hears that its BIRD ends, and can be started.
    pub(super) fn power_off(&mut self) -> Result<()> {
        self.segment.unplug(2)?;
        drop(self.speakers.remove(1));
        // Each node has two, in the order of the nodes.
        self.exact.drain(2..4);
        self.segment.reboot("bgp-rebooted", 2)
    }

    /// The second node starts, and gets its pods.
    pub(super) fn power_on(&mut self, flag: &str) -> Result<()> {
        let node = &mut self.segment.nodes[1];
        node.start_with(&[flag])?;
        self.speakers.insert(1, node.speaker()?);
        node.attach()?;
        for chain in chains(node, 2) {
            self.exact.push(node.attach_by(&chain)?);
        }
        Ok(())
    }

    /// The first node's routes that BIRD has put into the kernel.
    pub(super) fn learned(&self) -> Result<Vec<String>> {
        let [_, routes] = self.segment.nodes[0].all_routes()?;
        Ok(routes.into_iter().filter(|route| route.contains("proto 12 ")).collect())
    }

    /// The first node's pod that is routed to ends, and one on the second node gets its addresses.
    pub(super) fn move_pod(&mut self) -> Result<()> {
        let (_, pod) = self.exact.remove(0);
        let addresses = pod.addresses.clone();
        let [from, to] = [0, 1].map(|index| &self.segment.nodes[index]);
        pod.detach(&from.netns)?;
        let [mut chain, _] = chains(to, 1);
        "moved".clone_into(&mut chain.name);
        let moved = to.attach_by(&chain)?;
        ensure!(moved.1.addresses == addresses, "{:?} is not {addresses:?}", moved.1.addresses);
        self.exact.push(moved);
        for address in addresses {
            let [from, to] = [1, 2].map(|number| {
                let node = super::segment::addresses(number);
                node[usize::from(address.is_ipv6())].to_string()
            });
            self.until_shown(&address.to_string(), &format!("via {to} "), true)?;
            self.until_shown(&address.to_string(), &format!("via {from} "), false)?;
        }
        Ok(())
    }

    /// What the routers have heard of all nodes.
    pub(super) fn heard(&self) -> Result<Vec<Vec<String>>> {
        self.tors.iter().map(Bird::heard).collect()
    }

    /// Waits until both routers say this of a prefix, or not.
    pub(super) fn until_shown(&self, prefix: &str, what: &str, is_shown: bool) -> Result<()> {
        for tor in &self.tors {
            let shown = || tor.ask(&format!("show route all for {prefix}"));
            let is_so = |shown: &String| shown.contains(what) == is_shown;
            observed("said", TIMEOUT, || Ok(shown().unwrap_or_default()), is_so)
                .with_context(|| format!("{what} of {prefix}"))?;
        }
        Ok(())
    }

    /// Every pod reaches every pod with its own address, and the service; so does the client.
    pub(super) fn all_reach_all(&self) -> Result<()> {
        for family in 0..2 {
            let client = (ip(CLIENT[family]), &self.client);
            let pods = self.pods()?;
            let froms = pods.iter().map(|pod| (pod.addresses[family], &pod.netns)).chain([client]);
            for (own, netns) in froms {
                for to in &pods {
                    let to = SocketAddr::new(to.addresses[family], PORT);
                    let outcome = Probe::tcp(to).from(own).send_in(netns);
                    let is_direct = outcome.endpoint() == Some(to) && outcome.seen() == Some(own);
                    ensure!(is_direct, "from {own} to {to}: {outcome:?}");
                }
                let service =
                    if own == client.0 { ip(VIPS[family]) } else { service_ips(10)[family] };
                let outcome = Probe::tcp(SocketAddr::new(service, 80)).from(own).send_in(netns);
                ensure!(outcome.endpoint().is_some(), "from {own} to {service}: {outcome:?}");
            }
        }
        Ok(())
    }

    pub(super) fn until_all_reach_all(&self) -> Result<()> {
        let missing = || Ok(self.all_reach_all().err().map(|error| format!("{error:#}")));
        observed("reached", TIMEOUT * 2, missing, Option::is_none).map(drop)
    }

    /// The service with the pods of these nodes, each ready, or about to end and serving.
    pub(super) fn put_web(&self, pods: &[(usize, bool)]) -> Result<()> {
        let mut objects = web(&self.segment.nodes[0], true)?;
        for (slice, family) in objects[1..].iter_mut().zip(0..2) {
            let endpoint = |(index, is_ready): &(usize, bool)| {
                let address = self.segment.nodes[*index].pod()?.addresses[family];
                Ok(json!({
                    "addresses": [address], "nodeName": format!("node-{}", index + 1),
                    "conditions": {
                        "ready": is_ready, "serving": true, "terminating": !is_ready,
                    },
                }))
            };
            slice["endpoints"] = pods.iter().map(endpoint).collect::<Result<_>>()?;
        }
        self.segment.manifests.put("web", &objects)
    }

    /// Waits until the kernels of both routers have routes to the service by these nodes alone.
    pub(super) fn until_next_hops(&self, nodes: &[usize]) -> Result<()> {
        for (vip, family) in VIPS.iter().zip(0..2) {
            for router in &self.routers {
                let flag = ["-4", "-6"][family];
                let shown = || router.output("ip", &[flag, "route", "show", vip]);
                let is_so = |shown: &String| {
                    let by = |index: usize| {
                        let address = &addresses(u8::try_from(index + 1).unwrap_or(0))[family];
                        shown.contains(&format!("via {address} "))
                    };
                    (0..2).all(|index| by(index) == nodes.contains(&index))
                };
                observed("next hops", TIMEOUT, shown, is_so).context(*vip)?;
            }
        }
        Ok(())
    }
}

/// The chains of pods that are not in the node's podCIDRs.
pub(super) fn chains(node: &Node, number: u8) -> [Chain; 2] {
    let data = node.run_dir.join("addresses");
    let range = |n: u8| [format!("10.{n}.{number}.0/24"), format!("fd0{n}:{number}::/64")];
    let gateway = |n: u8| [format!("10.{n}.{number}.1"), format!("fd0{n}:{number}::1")];
    let [routed, bridged] = [9, 8].map(|n| (range(n), gateway(n).map(|text| ip(&text))));
    let pairs = |(ranges, gateways): &([String; 2], [IpAddr; 2])| {
        [0, 1].map(|family| (ranges[family].clone(), gateways[family]))
    };
    let (routed, bridged) = (pairs(&routed), pairs(&bridged));
    let routed = routed.each_ref().map(|(range, gateway)| (range.as_str(), *gateway));
    let bridged = bridged.each_ref().map(|(range, gateway)| (range.as_str(), *gateway));
    let wait = json!({ "waitForAgent": { "timeout": "10s", "onTimeout": "fail" } });
    [Chain::routed(&routed, &data), Chain::bridged("exact0", &bridged, &data)]
        .map(|chain| chain.then_denizen(&node.run_dir, &wait))
}
