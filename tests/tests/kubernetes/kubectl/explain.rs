//! `explain` across two real nodes, beside real connections.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::two_nodes::TwoNodes;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::packets::server::Server;
use denizen_tests::peers::api::Api;
use denizen_tests::workstation::{CommandOutput, Workstation, agent_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The service's port, and that of its endpoints.
const HTTP: Port = Port::tcp("http", 80, 8080);

/// A client on the first node; a server on each.
pub struct Shop {
    pub workstation: Workstation,
    pub nodes: TwoNodes,
    pub client: Pod,
    pub near: Pod,
    pub far: Pod,
    _servers: Vec<Server>,
}

impl Shop {
    pub fn new() -> Result<Self> {
        Self::with("explain", &[])
    }

    /// Agents with these flags.
    pub fn with(label: &str, flags: &[&str]) -> Result<Self> {
        Self::of(label, flags, None)
    }

    /// Agents of another release.
    pub fn of(label: &str, flags: &[&str], program: Option<PathBuf>) -> Result<Self> {
        let workstation = Workstation::new(label)?;
        let mut nodes = TwoNodes::new(&format!("{label}-shop"), &Value::Null)?;
        nodes.hosts.iter_mut().for_each(|host| host.program.clone_from(&program));
        let pod = |node, name| nodes.attach_without_agent(node, name, Wiring::Routed);
        let client = pod(0, "default/client")?;
        let (near, far) = (pod(0, "default/near")?, pod(1, "default/far")?);
        let serve = |pod: &Pod| {
            let at = |address: &IpAddr| SocketAddr::new(*address, HTTP.target);
            Server::at(&pod.netns, Protocol::Tcp, at(&pod.addresses[0]))
        };
        let _servers = vec![serve(&near)?, serve(&far)?];
        nodes.start_agents(flags)?;
        let shop = Self { workstation, nodes, client, near, far, _servers };
        shop.put_objects()?;
        shop.hold(&[])?;
        Ok(shop)
    }

    /// The same objects for the agents and for the API.
    fn put_objects(&self) -> Result<()> {
        let ends = [&self.near, &self.far].map(|pod| pod.addresses[0]);
        let endpoints = [(ends[0], "node-1"), (ends[1], "node-2")];
        let objects = [
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "default" } }),
            Self::pod_object("node-1", "client", &self.client),
            Self::pod_object("node-1", "near", &self.near),
            Self::pod_object("node-2", "far", &self.far),
            manifest::service("web", &[ip("172.30.0.10")], &[HTTP]),
            manifest::slice("web", &[HTTP], &endpoints),
        ];
        self.nodes.manifests.put("shop", &objects)?;
        self.workstation.api.put_all(&objects)?;
        let mut containers = Vec::new();
        for host in &self.nodes.hosts {
            let name = &host.node.name;
            self.workstation.node(name, &host.node.addresses[0].to_string())?;
            let flags = [format!("--run-dir={}", host.run_dir.display())];
            self.workstation.agent(name, &json!({ "running": {} }), &flags)?;
            containers.push((name.clone(), host.netns.path()));
        }
        let program = match &self.nodes.hosts[0].program {
            Some(program) => program.clone(),
            None => agent_program()?,
        };
        self.workstation.execute_on_nodes(program, containers);
        Ok(())
    }

    /// A pod of this node and name, with the name as its app.
    pub fn pod_object(node: &str, name: &str, pod: &Pod) -> Value {
        let ips: Vec<Value> = pod.addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "default", "name": name, "labels": { "app": name },
                "uid": format!("uid-{}", pod.netns.name()) },
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "x" }] },
            "status": { "phase": "Running", "podIP": pod.addresses[0], "podIPs": ips },
        })
    }

    /// These policies hold, each for a pod and a direction that nothing permits.
    pub fn hold(&self, denied: &[(&str, &str)]) -> Result<()> {
        let policy = |(pod, direction): &(&str, &str)| {
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "namespace": "default", "name": format!("deny-{pod}") },
                "spec": { "podSelector": { "matchLabels": { "app": pod } },
                    "policyTypes": [direction] },
            })
        };
        let policies: Vec<Value> = denied.iter().map(policy).collect();
        self.nodes.manifests.put("policies", &policies)?;
        let expected = |node: usize| {
            let pods: &[&str] = if node == 0 { &["client", "near"] } else { &["far"] };
            denied.iter().filter(|(pod, _)| pods.contains(pod)).count()
        };
        self.nodes.settled(|node, status| {
            status["networkPolicy"]["policies"] == expected(node)
                && status["services"] == 1
                && status["endpoints"] == 2
        })
    }

    fn explained(&self, to: &str, code: i32) -> Result<CommandOutput> {
        self.workstation.json(&["explain", "client", to], code)
    }

    /// What is said of a connection to a pod is what becomes of it.
    fn agrees(&self, name: &str, pod: &Pod, verdict: &str) -> Result<()> {
        let code = if verdict == "permitted" { 0 } else { 1 };
        let json = self.explained(&format!("{name}:8080"), code)?.json()?;
        ensure!(json["verdict"] == verdict, "{name}: {json:#}");
        let to = SocketAddr::new(pod.addresses[0], HTTP.target);
        let probe = if code == 0 { Probe::tcp(to) } else { Probe::tcp(to).timeout(SILENCE) };
        let outcome = probe.send_in(&self.client.netns);
        let arrives = matches!(outcome, Outcome::Answered { .. });
        ensure!(arrives == (code == 0), "{name}: {outcome:?}, but {json:#}");
        Ok(())
    }
}

/// The way to the endpoint on this node.
fn way<'a>(json: &'a Value, node: &str) -> Result<&'a Value> {
    let ways = json["ways"].as_array().context("no ways")?;
    ways.iter().find(|way| way["node"] == node).with_context(|| format!("{json:#}"))
}

#[test]
fn both_nodes_are_asked_and_packets_agree() -> Result<()> {
    let shop = Shop::new()?;
    let all = shop.explained("web:80", 0)?.json()?;
    ensure!(all["verdict"] == "permitted" && all["service"] == "default/web:http", "{all:#}");
    ensure!(all["ways"].as_array().map(Vec::len) == Some(2), "{all:#}");
    ensure!(way(&all, "node-2")?["source"] == json!(shop.client.addresses[0]), "{all:#}");
    shop.agrees("near", &shop.near, "permitted")?;
    shop.agrees("far", &shop.far, "permitted")?;

    shop.hold(&[("far", "Ingress")])?;
    let some = shop.explained("web:80", 1)?.json()?;
    ensure!(some["verdict"] == "partly", "{some:#}");
    let far = way(&some, "node-2")?;
    ensure!(far["verdict"] == "refused" && far["egress"]["result"] == "open", "{far:#}");
    let why = far["ingress"]["why"].to_string();
    ensure!(why.contains("ingress of default/far") && why.contains("deny-far"), "{why}");
    ensure!(way(&some, "node-1")?["verdict"] == "permitted", "{some:#}");
    shop.agrees("near", &shop.near, "permitted")?;
    shop.agrees("far", &shop.far, "refused")?;

    shop.hold(&[("client", "Egress"), ("near", "Ingress")])?;
    let none = shop.explained("web:80", 1)?.json()?;
    ensure!(none["verdict"] == "refused", "{none:#}");
    let far = way(&none, "node-2")?;
    ensure!(far["egress"]["why"].to_string().contains("deny-client"), "{far:#}");
    shop.agrees("near", &shop.near, "refused")?;
    shop.agrees("far", &shop.far, "refused")?;

    let restricted = shop.workstation.json(&["policies", "near"], 0)?.json()?;
    let sides = restricted["sides"].to_string();
    ensure!(sides.contains("deny-near") && sides.contains("isolated"), "{restricted:#}");
    shop.hold(&[])?;
    a_connection_of_two_nodes_is_shown_once(&shop)?;
    a_missing_way_back_is_found(&shop)?;
    a_node_port_is_judged_with_the_source_that_the_endpoint_sees(&shop)?;
    a_node_needs_a_route_to_a_service(&shop)?;
    what_is_not_known_is_not_permitted(&shop)
}

/// Connections that are open at once, each of them in the tables of one node or of both.
fn a_connection_of_two_nodes_is_shown_once(shop: &Shop) -> Result<()> {
    const MANY: usize = 12;
    let (service, far) = (ip("172.30.0.10"), shop.far.addresses[0]);
    let connect = |to| shop.client.netns.run(move || Probe::tcp(to).connect());
    let mut open = vec![connect(SocketAddr::new(far, HTTP.target))??];
    for _ in 1..MANY {
        open.push(connect(SocketAddr::new(service, HTTP.port))??);
    }
    let json = shop.workstation.json(&["connections", "--pod", "client"], 0)?.json()?;
    let all = json["connections"].as_array().context("no connections")?;
    // Those of the tests before are still closing.
    let is_open = |connection: &&Value| {
        let from = connection["client"]["address"].as_str().unwrap_or_default();
        open.iter().any(|stream| stream.local_addr().is_ok_and(|own| own.to_string() == from))
    };
    let found: Vec<&Value> = all.iter().filter(is_open).collect();
    ensure!(found.len() == MANY, "{} of {MANY}: {json:#}", found.len());
    for connection in found {
        let end = match connection.get("endpoint") {
            Some(endpoint) => &endpoint["address"],
            None => &connection["destination"]["address"],
        };
        let is_far = end.as_str().is_some_and(|end| end.starts_with(&format!("{far}:")));
        let nodes = if is_far { json!(["node-1", "node-2"]) } else { json!(["node-1"]) };
        ensure!(connection["nodes"] == nodes, "{connection:#}");
        ensure!(connection["client"]["name"] == "default/client", "{connection:#}");
    }
    Ok(())
}

/// Though all policies permit.
fn a_missing_way_back_is_found(shop: &Shop) -> Result<()> {
    let json = shop.explained("far:8080", 0)?.json()?;
    let far = way(&json, "node-2")?;
    ensure!(far["route"]["via"] == "192.168.0.2 (eth0)", "{far:#}");
    ensure!(far["wayBack"]["via"] == "192.168.0.1 (eth0)", "{far:#}");
    let far_host = &shop.nodes.hosts[1].netns;
    let range = "10.11.1.0/24";
    far_host.ip(&format!("route del {range}"))?;
    shop.agrees("far", &shop.far, "refused")?;
    let json = shop.explained("far:8080", 1)?.json()?;
    let far = way(&json, "node-2")?;
    ensure!(far["ingress"]["result"] == "open" && far["route"]["result"] == "there", "{far:#}");
    let why = format!("no route to {}", shop.client.addresses[0]);
    ensure!(far["wayBack"]["why"] == why.as_str(), "{far:#}");
    far_host.ip(&format!("route add {range} via 192.168.0.1"))?;

    let near_host = &shop.nodes.hosts[0].netns;
    near_host.ip("route del 10.11.2.0/24")?;
    shop.agrees("far", &shop.far, "refused")?;
    let json = shop.explained("far:8080", 1)?.json()?;
    ensure!(way(&json, "node-2")?["route"]["result"] == "missing", "{json:#}");
    near_host.ip("route add 10.11.2.0/24 via 192.168.0.2")?;
    shop.agrees("far", &shop.far, "permitted")
}

/// From elsewhere. With policy Cluster that is the node that the client asks, with policy Local the
/// client.
fn a_node_port_is_judged_with_the_source_that_the_endpoint_sees(shop: &Shop) -> Result<()> {
    let service = |name: &str, ip: &str, policy: &str, port: u16| {
        let mut service = manifest::service(name, &[ip.parse()?], &[HTTP]);
        service["spec"]["type"] = json!("NodePort");
        service["spec"]["externalTrafficPolicy"] = json!(policy);
        service["spec"]["ports"][0]["nodePort"] = json!(port);
        let end = (shop.far.addresses[0], "node-2");
        anyhow::Ok([service, manifest::slice(name, &[HTTP], &[end])])
    };
    let cluster = service("any", "172.30.0.20", "Cluster", 30080)?;
    let local = service("own", "172.30.0.21", "Local", 30081)?;
    let policy = |name: &str, range: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": "default", "name": name },
            "spec": { "podSelector": { "matchLabels": { "app": "far" } },
                "ingress": [{ "from": [{ "ipBlock": { "cidr": range } }] }] },
        })
    };
    let elsewhere = Elsewhere::new(shop)?;
    for (name, range) in [("elsewhere", "203.0.113.0/24"), ("first-node", "192.168.0.1/32")] {
        let objects = [&cluster[..], &local[..], &[policy(name, range)]].concat();
        shop.nodes.manifests.put("node-ports", &objects)?;
        shop.nodes.settled(|node, status| {
            status["services"] == 3 && status["networkPolicy"]["policies"] == node
        })?;
        let is_client = name == "elsewhere";
        elsewhere.agrees("192.168.0.1:30080", "node-1", ("192.168.0.1", !is_client, name))?;
        elsewhere.agrees("192.168.0.2:30081", "node-2", (CLIENT, is_client, name))?;
        let json = elsewhere.explained("192.168.0.1:30081", "node-1", 1)?;
        ensure!(json["verdict"] == "refused", "no endpoint is there: {json:#}");
        ensure!(elsewhere.asks("192.168.0.1:30081")? == Outcome::Dropped);
        shop.nodes.manifests.put("node-ports", &[])?;
        shop.hold(&[])?;
    }
    Ok(())
}

const CLIENT: &str = "203.0.113.9";

/// A client with a link to each node.
struct Elsewhere<'a> {
    shop: &'a Shop,
    netns: Netns,
}

impl<'a> Elsewhere<'a> {
    fn new(shop: &'a Shop) -> Result<Self> {
        let netns = Netns::new("explain-elsewhere")?;
        netns.ip(&format!("link set lo up\naddr add {CLIENT}/32 dev lo\n"))?;
        for (at, host) in shop.nodes.hosts.iter().enumerate() {
            let name = netns.name();
            host.netns.ip(&format!(
                "link add away type veth peer name node{at} netns {name}\n\
                 link set away up\nroute add {CLIENT}/32 dev away\n"
            ))?;
            let node = host.node.addresses[0];
            netns.ip(&format!(
                "link set node{at} up\nroute add {node}/32 dev node{at} src {CLIENT}\n"
            ))?;
        }
        Ok(Self { shop, netns })
    }

    fn explained(&self, to: &str, via: &str, code: i32) -> Result<Value> {
        self.shop.workstation.json(&["explain", CLIENT, to, "--via", via], code)?.json()
    }

    fn asks(&self, to: &str) -> Result<Outcome> {
        Ok(Probe::tcp(to.parse()?).timeout(SILENCE).send_in(&self.netns))
    }

    /// The source that the endpoint sees is what its policy is about, and what is said of the
    /// connection is what becomes of it.
    fn agrees(&self, to: &str, via: &str, expected: (&str, bool, &str)) -> Result<()> {
        let (source, is_permitted, policy) = expected;
        let json = self.explained(to, via, i32::from(!is_permitted))?;
        let far = way(&json, "node-2")?;
        let verdict = if is_permitted { "permitted" } else { "refused" };
        ensure!(far["source"] == source && far["verdict"] == verdict, "{json:#}");
        ensure!(far["ingress"]["result"] == verdict, "{json:#}");
        let why = far["ingress"]["why"].as_str().context("no reason")?;
        ensure!(why.starts_with("ingress of default/far: "), "{why}");
        ensure!(why.contains(&format!("default/{policy}")), "{why}");
        let outcome = self.asks(to)?;
        match is_permitted {
            true => ensure!(outcome.seen() == Some(source.parse()?), "{to}: {outcome:?}"),
            false => ensure!(outcome == Outcome::Dropped, "{to}: {outcome:?}"),
        }
        Ok(())
    }
}

/// A pod does not: its packets are translated before their route is looked for.
fn a_node_needs_a_route_to_a_service(shop: &Shop) -> Result<()> {
    let host = &shop.nodes.hosts[0];
    let node = host.node.addresses[0].to_string();
    let is_answered = || {
        let probe = Probe::tcp(SocketAddr::new(ip("172.30.0.10"), HTTP.port));
        matches!(probe.send_in(&host.netns), Outcome::Answered { .. })
    };
    shop.explained("web:80", 0)?;
    for to in ["web:80", "172.30.0.10:80"] {
        let json = shop.workstation.json(&["explain", &node, to], 1)?.json()?;
        let near = way(&json, "node-1")?;
        ensure!(json["verdict"] == "refused", "{json:#}");
        ensure!(near["route"]["why"] == "no route to 172.30.0.10", "{near:#}");
    }
    ensure!(!is_answered(), "there is no route");
    host.netns.ip("route add 172.30.0.0/24 via 192.168.0.2")?;
    let json = shop.workstation.json(&["explain", &node, "web:80"], 0)?.json()?;
    ensure!(json["verdict"] == "permitted" && is_answered(), "{json:#}");
    host.netns.ip("route del 172.30.0.0/24")
}

fn what_is_not_known_is_not_permitted(shop: &Shop) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(shop.nodes.hosts[1].agent()?.pid())?);
    kill(pid, Signal::SIGSTOP)?;
    let output = shop.explained("far:8080", 3)?;
    ensure!(output.json()?["verdict"] == "unknown", "{output:#?}");
    let (_, reason) = output.unanswered("node-2")?;
    ensure!(reason.contains("it is stopped, or hangs"), "{reason}");
    kill(pid, Signal::SIGCONT)?;
    let nobody = shop.workstation.run(&["explain", "client", "nobody:80"])?;
    let words = "there is no pod default/nobody";
    ensure!(nobody.code == 2 && nobody.stderr.contains(words), "{nobody:#?}");
    let outside = shop.workstation.run(&["explain", "203.0.113.5", "web:80"])?;
    ensure!(outside.code == 2 && outside.stderr.contains("--via NODE"), "{outside:#?}");
    Ok(())
}
