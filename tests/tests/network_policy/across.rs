//! `kubectl denizen explain` of a service whose endpoints are on other nodes. Of each endpoint it
//! says what the oracle and the routes say: which of both nodes refuses the connection, in which
//! direction, and by which policy. The nodes' agents are in this process: their plans.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::policy::{
    NodeObject, PodObject, PolicyPacket, PolicyWorld, Transport, allowed, egress_allowed,
    ingress_allowed,
};
use denizen_tests::random::{self, Draw};
use denizen_tests::workstation::{Workstation, agent_program};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use crate::case::{PROTOCOLS, full};
use crate::evaluated::{Planned, at_once};
use crate::hosts::{Hosts, PORTS, PodLocation, nine};
use crate::play::Play;
use crate::random::{Cluster, played};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Of a service, and of its endpoints.
const PORT: u16 = 8000;
const TARGET: u16 = 80;

/// How many worlds there are.
const WORLDS: u32 = 200;

/// Three nodes that are only thought of.
#[derive(Debug, Default)]
struct ThreeNodes {
    given: usize,
}

impl Hosts for ThreeNodes {
    fn nodes(&self) -> Vec<NodeObject> {
        let node = |(number, name): (usize, &&str)| NodeObject {
            name: (*name).to_owned(),
            addresses: vec![ip(&format!("192.168.0.{number}")), ip(&format!("2001:db8::{number}"))],
            ..NodeObject::default()
        };
        (1..).zip(&NODES).map(node).collect()
    }

    fn add(&mut self, namespace: &str, name: &str) -> Result<PodLocation> {
        let (at, number) = (self.given % NODES.len(), self.given + 1);
        self.given += 1;
        Ok(PodLocation {
            node: NODES[at].to_owned(),
            uid: format!("uid-{namespace}-{name}"),
            addresses: [
                ip(&format!("10.10.{at}.{number}")),
                ip(&format!("fd00:10:{at}::{number}")),
            ],
        })
    }

    fn remove(&mut self, _namespace: &str, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// Policies for the nine pods, and routes that are missing: from one node to another one's pods.
#[derive(Debug, Clone)]
struct RoutedWorld {
    world: PolicyWorld,
    missing: BTreeSet<(usize, usize)>,
    /// Who asks for which service.
    draw: u16,
}

impl RoutedWorld {
    /// The service that is asked for.
    fn service(&self) -> TestedService {
        let draw = usize::from(self.draw);
        TestedService { protocol: PROTOCOLS[draw % 3], family: draw / 3 % 2 }
    }
}

impl fmt::Display for RoutedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "missing routes: {:?}, draw {}", self.missing, self.draw)?;
        Cluster(self.world.clone()).fmt(f)
    }
}

fn worlds(there: PolicyWorld) -> impl Strategy<Value = RoutedWorld> {
    let numbers = vec(any::<u16>(), NODES.len() * NODES.len());
    (played::worlds(there, 1..=4), numbers, any::<u16>()).prop_map(
        |(Cluster(world), numbers, draw)| {
            let draws = &mut Draw::new(&numbers);
            let all = 0..NODES.len();
            let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
            let missing = pairs.filter(|(from, to)| draws.percent(15) && from != to).collect();
            RoutedWorld { world, missing, draw }
        },
    )
}

/// A service for each protocol and family.
#[derive(Debug, Clone, Copy)]
struct TestedService {
    protocol: Protocol,
    family: usize,
}

impl TestedService {
    fn all() -> impl Iterator<Item = Self> {
        PROTOCOLS.into_iter().flat_map(|protocol| [0, 1].map(|family| Self { protocol, family }))
    }

    fn name(self) -> String {
        format!("web-{}-{}", self.protocol, self.family).to_lowercase()
    }

    /// Its endpoints are all pods of the other nodes than the first.
    fn objects(self, world: &PolicyWorld) -> [Value; 2] {
        let Self { protocol, family } = self;
        let ports = [Port::tcp("p", PORT, TARGET).over(protocol)];
        let endpoint = |pod: &PodObject| {
            json!({
                "addresses": [pod.status.pod_ips[family].ip],
                "nodeName": pod.spec.node_name, "conditions": { "ready": true },
                "targetRef": { "kind": "Pod", "namespace": pod.metadata.namespace,
                    "name": pod.metadata.name },
            })
        };
        let away = world.pods.iter().filter(|pod| pod.spec.node_name != NODES[0]);
        let service_ip = ip(["172.30.0.10", "fd00:172:30::10"][family]);
        let mut slice = manifest::slice(&self.name(), &ports, &[(service_ip, "")]);
        slice["endpoints"] = away.map(endpoint).collect();
        [manifest::service(&self.name(), &[service_ip], &ports), slice]
    }
}

/// The agents of all nodes, and how packets leave their nodes.
#[derive(Default)]
struct Agents {
    nodes: BTreeMap<String, Planned>,
    missing: BTreeSet<(usize, usize)>,
    node_of: BTreeMap<IpAddr, usize>,
}

impl Agents {
    fn of(routed: &RoutedWorld) -> Result<Self> {
        let RoutedWorld { world, missing, .. } = routed;
        let folder = tempfile::tempdir()?;
        let services = routed.service().objects(world);
        let planned = |node: &&str| {
            let planned = Planned::with_services(world, node, folder.path(), at_once, &services)?;
            Ok(((*node).to_owned(), planned))
        };
        let at = |name: &str| NODES.iter().position(|node| *node == name);
        let owner = |pod: &PodObject| {
            let node = at(&pod.spec.node_name);
            let ips: Vec<IpAddr> = pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip).collect();
            ips.into_iter().filter_map(move |ip| Some((ip, node?)))
        };
        Ok(Self {
            nodes: NODES.iter().map(planned).collect::<Result<_>>()?,
            missing: missing.clone(),
            node_of: world.pods.iter().flat_map(owner).collect(),
        })
    }

    /// What the agent of a node says to a request.
    fn answer(&self, node: &str, request: &Value) -> Result<Value> {
        let planned = self.nodes.get(node).context("no such node")?;
        if let Some(query) = request.get("explain") {
            let end = |key: &str| query[key].as_str().context("no end");
            return planned.explained(end("from")?, end("to")?);
        }
        let to: IpAddr = serde_json::from_value(request["route"].clone())?;
        let own = NODES.iter().position(|name| *name == node).context("no such node")?;
        let there = self.node_of.get(&to).context("nobody has it")?;
        Ok(json!({ "reachable": !self.missing.contains(&(own, *there)), "interface": "eth0" }))
    }
}

/// A workstation from which all nodes' agents are asked, whatever these are at the time.
fn workstation(world: &PolicyWorld, agents: &Arc<Mutex<Agents>>) -> Result<Workstation> {
    let workstation = Workstation::new("across")?;
    for node in &world.nodes {
        workstation.node(&node.name, &node.addresses[0].to_string())?;
        workstation.agent(&node.name, &json!({ "running": {} }), &[])?;
    }
    workstation.api.put_all(&world.manifests())?;
    TestedService::all()
        .try_for_each(|service| workstation.api.put_all(&service.objects(world)))?;
    let agents = agents.clone();
    workstation.execute(move |node, _| {
        let (agents, node) = (agents.clone(), node.to_owned());
        let answer = move |request: &Value| {
            let agents = agents.lock().unwrap_or_else(PoisonError::into_inner);
            match agents.answer(&node, request) {
                Ok(answer) => json!({ "answer": answer }),
                Err(error) => json!({ "error": format!("{error:#}") }),
            }
        };
        Execution::relays(answer)
    });
    Ok(workstation)
}

/// Who ends a connection, in the packet's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EndedBy {
    Egress,
    Route,
    Ingress,
    WayBack,
    Nobody,
}

impl EndedBy {
    fn expected(routed: &RoutedWorld, packet: PolicyPacket, [from, to]: [usize; 2]) -> Self {
        let RoutedWorld { world, missing, .. } = routed;
        match () {
            () if !egress_allowed(world, packet) => Self::Egress,
            () if missing.contains(&(from, to)) => Self::Route,
            () if !ingress_allowed(world, packet) => Self::Ingress,
            () if missing.contains(&(to, from)) => Self::WayBack,
            () => Self::Nobody,
        }
    }

    /// What `kubectl denizen explain` says of a path.
    fn of_kubectl(path: &Value) -> Result<Self> {
        let is = |side: &str, results: &[&str]| {
            results.iter().any(|result| path[side]["result"] == *result)
        };
        let found = match () {
            () if is("egress", &["refused"]) => Self::Egress,
            () if is("route", &["missing"]) => Self::Route,
            () if is("ingress", &["refused"]) => Self::Ingress,
            () if is("wayBack", &["missing"]) => Self::WayBack,
            () => Self::Nobody,
        };
        let verdict = if found == Self::Nobody { "permitted" } else { "refused" };
        ensure!(path["verdict"] == verdict, "{path:#}");
        Ok(found)
    }
}

/// Whether what is said of a direction names the policies that decide: without those that refuse it
/// the packet passes, and with the one rule that permits it, it passes too.
fn names_who_decides(
    world: &PolicyWorld,
    packet: PolicyPacket,
    direction: &str,
    side: &Value,
    pod: &str,
) -> Result<()> {
    let passes = |world: &PolicyWorld| match direction {
        "egress" => egress_allowed(world, packet),
        _ => ingress_allowed(world, packet),
    };
    let without = |names: &[&str]| {
        let mut world = world.clone();
        world.policies.retain(|policy| !names.contains(&&*full(&policy.metadata)));
        world
    };
    let why = side["why"].as_str().unwrap_or_default();
    let words = why.strip_prefix(&format!("{direction} of {pod}: "));
    match side["result"].as_str().context("no result")? {
        "open" => ensure!(passes(world), "{side:#}"),
        "refused" => {
            let names = words.and_then(|words| words.strip_prefix("no rule of "));
            let names = names.and_then(|names| names.strip_suffix(" permits it"));
            let names: Vec<&str> = names.with_context(|| why.to_owned())?.split(", ").collect();
            ensure!(passes(&without(&names)), "others refuse it too: {why}");
        }
        "permitted" => {
            let named = words.and_then(|words| words.strip_prefix("permitted by "));
            let named = named.and_then(|named| named.split_once(&format!(", {direction} rule ")));
            let (name, rule) = named.with_context(|| why.to_owned())?;
            let rule: usize = rule.parse()?;
            let mut alone = world.clone();
            alone.policies.retain(|policy| full(&policy.metadata) == name);
            let policy = alone.policies.first_mut().context("no such policy")?;
            let rules = match direction {
                "egress" => &mut policy.spec.egress,
                _ => &mut policy.spec.ingress,
            };
            let rules = rules.as_mut().context("no rules")?;
            ensure!(rule < rules.len(), "{why}");
            *rules = vec![rules.swap_remove(rule)];
            ensure!(passes(&alone), "it does not permit it: {why}");
        }
        result => ensure!(result == "unknown", "{side:#}"),
    }
    Ok(())
}

/// Asks about one service from a pod of the first node.
fn explained(
    workstation: &Workstation,
    routed: &RoutedWorld,
    counts: &mut BTreeMap<EndedBy, usize>,
) -> Result<()> {
    let service @ TestedService { protocol, family } = routed.service();
    let pods = &routed.world.pods;
    let senders: Vec<_> = pods.iter().filter(|pod| pod.spec.node_name == NODES[0]).collect();
    let sender = senders[usize::from(routed.draw) / 6 % senders.len()];
    let from = full(&sender.metadata);
    let to = format!("default/{}:{PORT}/{protocol}", service.name()).to_lowercase();
    let output = workstation.run(&["explain", &from, &to, "-o", "json"])?;
    let json = output.json()?;
    let paths = json["ways"].as_array().context("no ways")?;
    ensure!(paths.len() == pods.len() - senders.len(), "{output:#?}");
    let mut verdicts = BTreeSet::new();
    for path in paths {
        let name = path["pod"].as_str().context("no pod")?;
        let pod = pods.iter().find(|pod| full(&pod.metadata) == name).context("no such pod")?;
        ensure!(path["node"] == *pod.spec.node_name, "{path:#}");
        let packet = PolicyPacket {
            from: sender.status.pod_ips[family].ip,
            to: pod.status.pod_ips[family].ip,
            transport: Transport::Port(protocol, TARGET),
        };
        let there = NODES.iter().position(|node| *node == pod.spec.node_name);
        let nodes = [0, there.context("no such node")?];
        let (expected, found) =
            (EndedBy::expected(routed, packet, nodes), EndedBy::of_kubectl(path)?);
        ensure!(found == expected, "{packet:?}: expected {expected:?}: {path:#}");
        for (direction, pod) in [("egress", &*from), ("ingress", name)] {
            names_who_decides(&routed.world, packet, direction, &path[direction], pod)?;
        }
        verdicts.insert(expected == EndedBy::Nobody);
        *counts.entry(expected).or_default() += 1;
    }
    let verdict = match (verdicts.contains(&true), verdicts.contains(&false)) {
        (true, false) => "permitted",
        (true, true) => "partly",
        (false, _) => "refused",
    };
    ensure!(json["verdict"] == verdict, "{json:#}");
    ensure!(output.code == i32::from(verdict != "permitted"), "{output:#?}");
    Ok(())
}

/// A workstation from which the real agents of both nodes are asked.
pub fn real(play: &Play, world: &PolicyWorld) -> Result<Workstation> {
    let workstation = Workstation::new("across-real")?;
    let mut nodes = Vec::new();
    for host in &play.nodes.hosts {
        let name = &host.node.name;
        workstation.node(name, &host.node.addresses[0].to_string())?;
        let flags = [format!("--run-dir={}", host.run_dir.display())];
        workstation.agent(name, &json!({ "running": {} }), &flags)?;
        nodes.push((name.clone(), host.netns.path()));
    }
    workstation.execute_on_nodes(agent_program()?, nodes);
    workstation.api.put_all(&world.manifests())?;
    workstation.api.put_all(&play.services(world))?;
    Ok(workstation)
}

/// Whether it says of some connections to services what the oracle says, as packets do. Which ones
/// follows from the number of the world.
pub fn agrees(workstation: &Workstation, world: &PolicyWorld, number: usize) -> Result<()> {
    const CONNECTIONS: usize = 3;
    let pods = &world.pods;
    for at in number..number + CONNECTIONS {
        // Every other pod is on the other node.
        let (from, to) =
            (&pods[number % pods.len()], &pods[(number + 1 + 2 * (at - number)) % pods.len()]);
        let (protocol, port) = (PROTOCOLS[at % 3], PORTS[at / 3 % 2]);
        let service = full(&to.metadata).replace('/', "-");
        let to_service = format!("default/{service}:{port}/{protocol}").to_lowercase();
        let output =
            workstation.run(&["explain", &full(&from.metadata), &to_service, "-o", "json"])?;
        let json = output.json()?;
        let path = &json["ways"][0];
        let target: SocketAddr = path["endpoint"]
            .as_str()
            .and_then(|end| end.rsplit_once('/')?.0.parse().ok())
            .with_context(|| format!("no endpoint: {output:#?}"))?;
        let ends = from.status.pod_ips.iter().zip(&to.status.pod_ips);
        let ends = ends.map(|(from, to)| (from.ip, to.ip)).find(|(_, to)| *to == target.ip());
        let (from_ip, to_ip) = ends.with_context(|| format!("not its endpoint: {json:#}"))?;
        let transport = Transport::Port(protocol, target.port());
        let packet = PolicyPacket { from: from_ip, to: to_ip, transport };
        let verdict = if allowed(world, packet) { "permitted" } else { "refused" };
        ensure!(json["verdict"] == verdict, "{packet:?}: {verdict}, but {json:#}");
        ensure!(path["node"] == *to.spec.node_name, "{json:#}");
        ensure!(output.code == i32::from(verdict != "permitted"), "{output:#?}");
    }
    Ok(())
}

#[test]
fn explain_across_nodes_says_what_the_oracle_says() -> Result<()> {
    let there = nine(&mut ThreeNodes::default())?;
    let agents = Arc::default();
    let workstation = workstation(&there, &agents)?;
    let counts = RefCell::new(BTreeMap::new());
    random::run(WORLDS, random::seed()?, Duration::ZERO, worlds(there), |routed| {
        let now = Agents::of(routed)?;
        *agents.lock().map_err(|_| anyhow!("an answer failed"))? = now;
        explained(&workstation, routed, &mut counts.borrow_mut())
    })?;
    let counts = counts.into_inner();
    eprintln!("{counts:?}");
    // A tenth of a tenth of all ways would still be a dozen.
    let is_common = |by| counts.get(&by).is_some_and(|count| *count > 10);
    use EndedBy::{Egress, Ingress, Nobody, Route, WayBack};
    ensure!([Egress, Route, Ingress, WayBack, Nobody].into_iter().all(is_common), "{counts:?}");
    Ok(())
}
