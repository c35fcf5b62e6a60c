//! Which pods probe which targets, and the expected outcomes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use serde::Serialize;

/// The port at which servers and newcomers answer.
pub const PORT: u16 = 8080;

/// Another port at which servers answer, and which newcomers may not reach.
pub const CLOSED: u16 = 8081;

/// Prefix of the servers' names.
pub const SERVER: &str = "server-";

/// Up to this many servers, each server asks all others.
const ALL: usize = 20;

/// With more servers, each asks its neighbour, and this many others.
const OTHERS: usize = 3;

/// What is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// Pods reach pods by their addresses
    Pod,
    /// Pods reach a service's cluster IP
    ClusterIp,
    /// Pods reach a service's node port, on their own node and on others
    NodePort,
    /// A pod reaches itself through a service
    Hairpin,
    /// A NetworkPolicy holds, from a pod's first packet on
    Policy,
    /// Pods reach what --external names
    External,
}

/// Whether the policy permits newcomers to be reached by a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerClass {
    Permitted,
    Other,
}

/// A pod of the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestPod {
    pub name: String,
    pub node: String,
    pub class: ServerClass,
    /// Whether it is the only server on its node, or the first one.
    pub is_first: bool,
    /// Empty until it runs.
    pub ips: Vec<IpAddr>,
}

/// A pod that a policy isolates, and that sends its first packets to two servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newcomer {
    pub name: String,
    pub node: String,
    /// One server of each class.
    pub servers: [TestPod; 2],
    /// Empty until it runs.
    pub ips: Vec<IpAddr>,
}

/// How a service is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceEnds {
    pub ips: Vec<IpAddr>,
    /// For TCP and for UDP.
    pub node_ports: [Option<u16>; 2],
}

/// All that can be asked.
#[derive(Debug, Default)]
pub struct TestFacts {
    pub servers: Vec<TestPod>,
    pub newcomers: Vec<Newcomer>,
    /// The service that has every server as an endpoint.
    pub service: ServiceEnds,
    /// The service that sends a pod to the server on its own node.
    pub local: ServiceEnds,
    /// The addresses of nodes inside the cluster.
    pub nodes: BTreeMap<String, Vec<IpAddr>>,
    pub external: Vec<String>,
}

/// The expected outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// This pod answers.
    Answer(String),
    /// Any of the servers answers.
    AnswerOfServer,
    Connection,
    /// No answer and no connection, however often.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedProbe {
    pub kind: CheckKind,
    /// The pod that asks, and its node.
    pub from: String,
    pub node: String,
    /// As an argument of `probe connect`: `HOST:PORT/PROTO`.
    pub to: String,
    /// The target in words.
    pub what: String,
    pub expected: ExpectedOutcome,
}

/// The peers that each of `number` servers asks. `random` returns a number below its argument.
pub fn peers(number: usize, mut random: impl FnMut(usize) -> usize) -> Vec<Vec<usize>> {
    let others = |own: usize| (0..number).filter(move |other| *other != own);
    if number <= ALL {
        return (0..number).map(|own| others(own).collect()).collect();
    }
    let mut of = |own: usize| {
        let next = (own + 1) % number;
        let mut peers = vec![next];
        let mut left: Vec<usize> = others(own).filter(|other| *other != next).collect();
        for _ in 0..OTHERS {
            peers.push(left.swap_remove(random(left.len())));
        }
        peers
    };
    (0..number).map(&mut of).collect()
}

/// The servers of these nodes: one each, and two if there is only one node.
pub fn servers(nodes: &[String]) -> Vec<TestPod> {
    let again = nodes.first().filter(|_| nodes.len() == 1);
    let server = |(number, node): (usize, &String)| TestPod {
        name: format!("{SERVER}{number}"),
        node: node.clone(),
        class: if number % 2 == 0 { ServerClass::Permitted } else { ServerClass::Other },
        is_first: number == 0 || nodes.len() > 1,
        ips: Vec::new(),
    };
    nodes.iter().chain(again).enumerate().map(server).collect()
}

/// One newcomer on each node with a running server. It asks the server on its own node, and a
/// server of the other class.
pub fn newcomers(servers: &[TestPod]) -> Vec<Newcomer> {
    let first = servers.iter().enumerate().filter(|(_, server)| server.is_first);
    let newcomer = |(number, server): (usize, &TestPod)| {
        let mut next = servers[number..].iter().chain(&servers[..number]);
        let other = next.find(|other| other.class != server.class)?;
        let mut servers = [server.clone(), other.clone()];
        servers.sort_by_key(|server| server.class != ServerClass::Permitted);
        let node = server.node.clone();
        Some(Newcomer { name: format!("newcomer-{number}"), node, servers, ips: Vec::new() })
    };
    first.filter_map(newcomer).collect()
}

/// The addresses of `to` whose family is also among those of `from`.
fn reachable<'a>(from: &'a [IpAddr], to: &'a [IpAddr]) -> impl Iterator<Item = IpAddr> + 'a {
    to.iter().copied().filter(|to| from.iter().any(|from| from.is_ipv4() == to.is_ipv4()))
}

fn tcp(ip: IpAddr, port: u16) -> String {
    format!("{}/tcp", SocketAddr::new(ip, port))
}

fn both(ip: IpAddr, port: u16) -> [String; 2] {
    let end = SocketAddr::new(ip, port);
    [format!("{end}/tcp"), format!("{end}/udp")]
}

impl TestPod {
    fn shown(&self) -> String {
        format!("pod {} on {}", self.name, self.node)
    }

    fn probe(
        &self,
        kind: CheckKind,
        to: String,
        what: String,
        expected: ExpectedOutcome,
    ) -> PlannedProbe {
        PlannedProbe { kind, from: self.name.clone(), node: self.node.clone(), to, what, expected }
    }
}

impl Newcomer {
    /// The probes of its first packets, in the order of its arguments.
    pub fn first(&self) -> Vec<PlannedProbe> {
        let probe = |server: &TestPod, to: String, expected: ExpectedOutcome| PlannedProbe {
            kind: CheckKind::Policy,
            from: self.name.clone(),
            node: self.node.clone(),
            to,
            what: server.shown(),
            expected,
        };
        let of = |server: &TestPod| {
            let answer = || ExpectedOutcome::Answer(server.name.clone());
            let ips = server.ips.iter().flat_map(move |ip| {
                let open = both(*ip, PORT).map(|to| probe(server, to, answer()));
                open.into_iter().chain([probe(server, tcp(*ip, CLOSED), ExpectedOutcome::Nothing)])
            });
            ips.collect::<Vec<_>>()
        };
        self.servers.iter().flat_map(of).collect()
    }

    /// The probe by which a server connected back to the newcomer, after `probe`.
    pub fn back(&self, probe: &PlannedProbe, to: &str) -> Option<PlannedProbe> {
        let server = self.servers.iter().find(|server| server.shown() == probe.what)?;
        let expected = match server.class {
            ServerClass::Permitted => ExpectedOutcome::Connection,
            ServerClass::Other => ExpectedOutcome::Nothing,
        };
        Some(server.probe(CheckKind::Policy, to.to_owned(), self.shown(), expected))
    }

    fn shown(&self) -> String {
        format!("pod {} on {}, isolated", self.name, self.node)
    }

    /// Whether it has an address of the family of `ADDR:PORT/PROTO`.
    pub fn has_family_of(&self, to: &str) -> bool {
        let end = to.split('/').next().and_then(|end| end.parse::<SocketAddr>().ok());
        end.is_some_and(|end| self.ips.iter().any(|ip| ip.is_ipv4() == end.is_ipv4()))
    }

    /// A pod that is not isolated reaches the port that newcomers must not reach.
    fn control(&self) -> impl Iterator<Item = PlannedProbe> + '_ {
        let [one, other] = &self.servers;
        reachable(&one.ips, &other.ips).map(|ip| {
            let expected = ExpectedOutcome::Answer(other.name.clone());
            one.probe(CheckKind::Policy, tcp(ip, CLOSED), other.shown(), expected)
        })
    }

    /// The probes by which servers reach the newcomer later.
    fn later(&self) -> impl Iterator<Item = PlannedProbe> + '_ {
        self.servers.iter().flat_map(|server| {
            let ips = reachable(&server.ips, &self.ips);
            ips.map(|ip| {
                let expected = match server.class {
                    ServerClass::Permitted => ExpectedOutcome::Answer(self.name.clone()),
                    ServerClass::Other => ExpectedOutcome::Nothing,
                };
                server.probe(CheckKind::Policy, tcp(ip, PORT), self.shown(), expected)
            })
        })
    }
}

impl TestFacts {
    /// The probes that servers make.
    pub fn probes(&self, random: impl FnMut(usize) -> usize) -> Vec<PlannedProbe> {
        let mut probes = Vec::new();
        for (server, peers) in self.servers.iter().zip(peers(self.servers.len(), random)) {
            let peers: Vec<&TestPod> = peers.into_iter().map(|peer| &self.servers[peer]).collect();
            for peer in &peers {
                self.to_pod(server, peer, &mut probes);
            }
            self.to_services(server, &mut probes);
            let nodes = peers.iter().map(|peer| &peer.node).chain([&server.node]);
            let mut nodes: Vec<&String> = nodes.collect();
            nodes.sort_unstable();
            nodes.dedup();
            for node in nodes {
                self.to_node(server, node, &mut probes);
            }
            for to in &self.external {
                let (to, what) = (format!("{to}/tcp"), "outside of the cluster".to_owned());
                probes.push(server.probe(
                    CheckKind::External,
                    to,
                    what,
                    ExpectedOutcome::Connection,
                ));
            }
        }
        probes.extend(self.newcomers.iter().flat_map(Newcomer::later));
        let mut pairs = BTreeSet::new();
        for newcomer in &self.newcomers {
            // Newcomers of several nodes may have the same two servers.
            if pairs.insert(newcomer.servers.each_ref().map(|server| &server.name)) {
                probes.extend(newcomer.control());
            }
        }
        probes
    }

    fn to_pod(&self, from: &TestPod, to: &TestPod, probes: &mut Vec<PlannedProbe>) {
        for ip in reachable(&from.ips, &to.ips) {
            let of = |end| {
                let expected = ExpectedOutcome::Answer(to.name.clone());
                from.probe(CheckKind::Pod, end, to.shown(), expected)
            };
            probes.extend(both(ip, PORT).map(of));
        }
    }

    fn to_services(&self, from: &TestPod, probes: &mut Vec<PlannedProbe>) {
        for ip in reachable(&from.ips, &self.service.ips) {
            let of = |end| {
                let what = "cluster IP of service servers".to_owned();
                from.probe(CheckKind::ClusterIp, end, what, ExpectedOutcome::AnswerOfServer)
            };
            probes.extend(both(ip, PORT).map(of));
        }
        for ip in reachable(&from.ips, &self.local.ips).filter(|_| from.is_first) {
            let of = |end| {
                let what = "itself, through service local".to_owned();
                from.probe(
                    CheckKind::Hairpin,
                    end,
                    what,
                    ExpectedOutcome::Answer(from.name.clone()),
                )
            };
            probes.extend(both(ip, PORT).map(of));
        }
    }

    fn to_node(&self, from: &TestPod, node: &str, probes: &mut Vec<PlannedProbe>) {
        let ips = self.nodes.get(node).map(Vec::as_slice).unwrap_or_default();
        let is_served = |ip: &IpAddr| reachable(&[*ip], &self.service.ips).next().is_some();
        for ip in reachable(&from.ips, ips).filter(is_served) {
            for (port, protocol) in self.service.node_ports.iter().zip(["tcp", "udp"]) {
                let Some(port) = port else { continue };
                let end = format!("{}/{protocol}", SocketAddr::new(ip, *port));
                let what = format!("node port of {node}");
                let expected = ExpectedOutcome::AnswerOfServer;
                probes.push(from.probe(CheckKind::NodePort, end, what, expected));
            }
        }
    }
}

#[cfg(test)]
mod tests;
