//! Plays cases with packets: nine pods on two nodes, each asking every other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::kernel::ctnetlink;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::packets::server::Server;
use denizen_tests::peers::kube_proxy::{KubeProxy, Served};
use denizen_tests::policy::{NodeObject, PolicyWorld, Transport};
use denizen_tests::test_length::in_full;
use serde_json::{Value, json};

use crate::case::{Case, Expected, PROTOCOLS, Step, everything, full};
use crate::explained::Questions;
use crate::hosts::{Hosts, PORTS, PodLocation, nine, some};
use crate::packets::half;
use crate::prober::{Answer, ProbedPort, Prober};
use denizen_tests::node::two_nodes::TwoNodes;

/// How a question finds its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    PodIp,
    /// Through a service that the pod alone serves.
    ClusterIp,
}

/// How long an answer may take, at each try. Questions are asked again that nobody answered
/// although somebody should: a packet can be late on a busy machine. What arrives although it must
/// not is never asked again.
const ANSWER_TIMEOUTS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];

/// All pods of both nodes.
const PODS: &str = "10.0.0.0/8";

/// Who translates services' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    Agents,
    /// One on each node, of TCP and IPv4 alone; the agents have `--services=off`.
    KubeProxy,
}

/// The pods and their nodes. Members end before their nodes do.
pub struct Play {
    members: BTreeMap<String, Member>,
    pub nodes: TwoNodes,
    /// A Service beside those of the pods, and its slices.
    pub more: Vec<Value>,
    wiring: fn(usize) -> Wiring,
    attached: usize,
    /// How many services the agents were last given.
    services: usize,
    served_by: ServedBy,
    /// How many policies that are not understood and select nobody, by which is seen without
    /// services that the agents have read all objects: one and two in turns.
    marks: usize,
}

/// A pod that asks and answers.
struct Member {
    prober: Prober,
    _server: Server,
    pod: Pod,
    node: usize,
    services: [IpAddr; 2],
}

/// One question, and what must come of it.
#[derive(Debug, Clone, Copy)]
struct Probe {
    from: usize,
    to: usize,
    family: usize,
    via: Via,
    transport: Transport,
    arrives: bool,
}

impl Hosts for Play {
    fn nodes(&self) -> Vec<NodeObject> {
        self.nodes.hosts.iter().map(|host| host.node.clone()).collect()
    }

    fn add(&mut self, namespace: &str, name: &str) -> Result<PodLocation> {
        let number = self.attached;
        self.attached += 1;
        let node = number % 2;
        let name = format!("{namespace}/{name}");
        let pod = self.nodes.attach(node, &name, (self.wiring)(number))?;
        let ports = PORTS.into_iter().flat_map(|port| PROTOCOLS.map(|protocol| (protocol, port)));
        let server = serve(&pod.netns, &pod.addresses, &ports.collect::<Vec<_>>())?;
        let prober = Prober::start(&pod.netns)?;
        let services =
            [ip(&format!("172.30.0.{}", number + 1)), ip(&format!("fd00:30::{:x}", number + 1))];
        let place = PodLocation {
            node: self.nodes.hosts[node].node.name.clone(),
            uid: format!("uid-{}", pod.netns.name()),
            addresses: [pod.addresses[0], pod.addresses[1]],
        };
        ensure!(place.addresses[0].is_ipv4() && place.addresses[1].is_ipv6(), "{place:?}");
        self.members.insert(name, Member { prober, _server: server, pod, node, services });
        Ok(place)
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Result<()> {
        let member = self.members.remove(&format!("{namespace}/{name}")).context("no such pod")?;
        member.pod.detach(&self.nodes.hosts[member.node].netns)
    }
}

impl Play {
    /// Two nodes with their agents, and the nine pods, wired so, by the order in which they come.
    pub fn new(label: &str, wiring: fn(usize) -> Wiring) -> Result<(Self, PolicyWorld)> {
        Self::with(label, wiring, ServedBy::Agents, |play| nine(play))
    }

    /// Two nodes with their agents and these pods only, every other one on the second node.
    pub fn few(
        label: &str,
        served_by: ServedBy,
        pods: &[(&str, &str)],
    ) -> Result<(Self, PolicyWorld)> {
        Self::with(label, half, served_by, |play| some(play, pods))
    }

    fn with(
        label: &str,
        wiring: fn(usize) -> Wiring,
        served_by: ServedBy,
        pods: impl FnOnce(&mut Self) -> Result<PolicyWorld>,
    ) -> Result<(Self, PolicyWorld)> {
        let mut play = Self {
            members: BTreeMap::new(),
            nodes: TwoNodes::new(label, &Value::Null)?,
            more: Vec::new(),
            wiring,
            attached: 0,
            services: 0,
            served_by,
            marks: 1,
        };
        let world = pods(&mut play)?;
        play.write_objects(&world)?;
        match served_by {
            ServedBy::Agents => play.nodes.start_agents(&[])?,
            ServedBy::KubeProxy => {
                play.start_kube_proxies()?;
                play.nodes.start_agents(&["--services=off"])?;
            }
        }
        play.settled()?;
        Ok((play, world))
    }

    fn start_kube_proxies(&self) -> Result<()> {
        let served = self.members.iter().flat_map(|(name, member)| {
            PORTS.map(|port| Served {
                name: format!("{name}:tcp-{port}"),
                at: member.at(0, Via::ClusterIp, port),
                endpoints: vec![member.at(0, Via::PodIp, port)],
            })
        });
        let services: Vec<_> = served.collect();
        self.nodes.hosts.iter().try_for_each(|host| {
            let (node, variant) = (&host.netns, Variant::Nft);
            KubeProxy { node, variant, services: services.clone(), cluster_cidr: PODS }.start()
        })
    }

    /// Waits until both agents have read the objects that were written last.
    fn settled(&self) -> Result<()> {
        self.nodes.settled(|_, status| match self.served_by {
            ServedBy::Agents => status["services"] == self.services,
            ServedBy::KubeProxy => status["networkPolicy"]["notUnderstood"] == self.marks,
        })
    }

    /// Who translates services' addresses.
    pub fn served_by(&self) -> ServedBy {
        self.served_by
    }

    /// Has both agents enforce a world.
    pub fn put(&mut self, world: &PolicyWorld) -> Result<()> {
        self.write_objects(world)?;
        self.settled()
    }

    /// A pod `namespace/name`, and the addresses of the service that it alone serves.
    pub fn pod(&self, name: &str) -> (&Pod, [IpAddr; 2]) {
        let member = &self.members[name];
        (&member.pod, member.services)
    }

    /// Plays a case from a world without policies, and returns to it.
    pub fn case(&mut self, case: &Case, world: &PolicyWorld, vias: &[Via]) -> Result<()> {
        // The agents search conntrack after each change of policies: no need to do so among the
        // thousands of questions of earlier cases.
        for host in &self.nodes.hosts {
            host.netns.run(ctnetlink::forget)??;
        }
        let mut now = world.clone();
        let mut played = Ok(());
        for (number, step) in case.steps.iter().enumerate() {
            played = played.and_then(|()| {
                self.step(step, &mut now, vias).with_context(|| format!("step {}", number + 1))
            });
        }
        // Pods that a case left behind would be in the next one's way.
        let left: Vec<_> = now.pods.iter().filter(|pod| !world.pods.contains(pod)).collect();
        for pod in left
            .iter()
            .filter(|pod| world.pod(&pod.metadata.namespace, &pod.metadata.name).is_none())
        {
            self.remove(&pod.metadata.namespace, &pod.metadata.name)?;
        }
        played.with_context(|| case.name.clone())
    }

    /// Whether packets of every kind and `explain` agree with the oracle about a world, whose pods
    /// are those that there are.
    pub fn verify(&mut self, world: &PolicyWorld, vias: &[Via]) -> Result<()> {
        self.put(world)?;
        self.agree(world, &everything(), vias, true)
    }

    /// The same of packets alone.
    pub fn verify_packets(&mut self, world: &PolicyWorld, vias: &[Via]) -> Result<()> {
        self.put(world)?;
        self.agree(world, &everything(), vias, false)
    }

    fn step(&mut self, step: &Step, world: &mut PolicyWorld, vias: &[Via]) -> Result<()> {
        for change in &step.changes {
            change.apply(world, self)?;
        }
        self.put(world)?;
        self.agree(world, &step.expected, vias, true)
    }

    /// Whether packets agree with what is expected, and `explain`, if it is asked.
    fn agree(
        &self,
        world: &PolicyWorld,
        expected: &[Expected],
        vias: &[Via],
        is_explained: bool,
    ) -> Result<()> {
        let mut probes = probes(world, expected, vias);
        if self.served_by == ServedBy::KubeProxy {
            probes.retain(|probe| probe.via == Via::PodIp || probe.is_over_tcp_and_ipv4());
        }
        let [first, again @ ..] = ANSWER_TIMEOUTS;
        self.ask(world, &probes, first)?;
        // Meanwhile the packets are on their way. Unless tests run in full length, each fifth is
        // asked about: neither two pods' packets nor those of a kind are a multiple of 5.
        let asked = if is_explained { &probes[..] } else { &[] };
        let asked = asked.iter().step_by(in_full(1, 5));
        let explained = self.explained_wrongly(world, asked)?;
        let mut wrong = self.answered_wrongly(world, &probes)?;
        for timeout in again {
            if wrong.is_empty() || wrong.iter().any(|(probe, _)| !probe.arrives) {
                break;
            }
            // A full round, so that nothing that went wrong meanwhile is overlooked.
            self.ask(world, &probes, timeout)?;
            wrong = self.answered_wrongly(world, &probes)?;
        }
        wrong.extend(explained);
        let lines: Vec<_> = wrong.iter().map(|question| self.line(world, question)).collect();
        let shown = lines.iter().take(12).cloned().collect::<Vec<_>>().join("\n  ");
        ensure!(lines.is_empty(), "{} of {} are wrong:\n  {shown}", lines.len(), probes.len());
        Ok(())
    }

    /// Writes all objects at once. Services that nobody serves make their number another one than
    /// before, by which is seen that the agents have read them.
    fn write_objects(&mut self, world: &PolicyWorld) -> Result<()> {
        let mut objects = world.manifests();
        let mut written = world.pods.len() + usize::from(!self.more.is_empty());
        if written == self.services {
            let nobody = manifest::service("nobody", &[ip("172.30.1.1")], &[Port::tcp("p", 1, 1)]);
            objects.push(nobody);
            written += 1;
        }
        objects.extend(self.services(world));
        objects.extend_from_slice(&self.more);
        self.services = written;
        if self.served_by == ServedBy::KubeProxy {
            self.marks = 3 - self.marks;
            objects.extend((0..self.marks).map(|number| {
                json!({
                    "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                    "metadata": { "namespace": "nobodys", "name": format!("mark-{number}") },
                    "spec": { "podSelector": {}, "mark": "no such field" },
                })
            }));
        }
        self.nodes.manifests.put("objects", &objects)
    }

    /// Of each pod, the service that it alone serves.
    pub fn services(&self, world: &PolicyWorld) -> Vec<Value> {
        const NAMES: [[&str; 3]; 2] =
            [["tcp-80", "udp-80", "sctp-80"], ["tcp-81", "udp-81", "sctp-81"]];
        let ports = NAMES.iter().zip(PORTS).flat_map(|(names, port)| {
            let named = names.iter().zip(PROTOCOLS);
            named.map(move |(name, protocol)| Port::tcp(name, port, port).over(protocol))
        });
        let ports: Vec<_> = ports.collect();
        let mut objects = Vec::new();
        for pod in &world.pods {
            let member = &self.members[&full(&pod.metadata)];
            let name = full(&pod.metadata).replace('/', "-");
            objects.push(manifest::service(&name, &member.services, &ports));
            let node = pod.spec.node_name.as_str();
            let slice = |address: &IpAddr| manifest::slice(&name, &ports, &[(*address, node)]);
            objects.extend(member.pod.addresses.iter().map(slice));
        }
        objects
    }

    /// Asks everything at once.
    fn ask(&self, world: &PolicyWorld, probes: &[Probe], timeout: Duration) -> Result<()> {
        let members = self.members(world);
        for (member, probes) in members.iter().zip(of_each(&members, probes)) {
            let question = |probe: &Probe| {
                let protocol = match probe.transport {
                    Transport::Port(protocol, _) => Some(protocol),
                    Transport::Other => None,
                };
                let to = members[probe.to].at(probe.family, probe.via, probe.port());
                ProbedPort { protocol, to }
            };
            member.prober.ask(probes.into_iter().map(question).collect(), timeout)?;
        }
        Ok(())
    }

    /// What was answered although it should not be, or was not.
    fn answered_wrongly<'a>(
        &self,
        world: &PolicyWorld,
        probes: &'a [Probe],
    ) -> Result<Vec<(&'a Probe, String)>> {
        let members = self.members(world);
        let mut wrong = Vec::new();
        for (member, probes) in members.iter().zip(of_each(&members, probes)) {
            for (probe, answer) in probes.into_iter().zip(member.prober.answers()?) {
                let expected = if probe.arrives { Answer::Answered } else { Answer::Silent };
                if answer != expected {
                    wrong.push((probe, format!("{answer:?}")));
                }
            }
        }
        Ok(wrong)
    }

    fn members(&self, world: &PolicyWorld) -> Vec<&Member> {
        world.pods.iter().map(|pod| &self.members[&full(&pod.metadata)]).collect()
    }

    /// What `explain` says the opposite of: the sender's node, and the receiver's if that is
    /// another, which sees the pod's own address.
    fn explained_wrongly<'a>(
        &self,
        world: &PolicyWorld,
        probes: impl Iterator<Item = &'a Probe>,
    ) -> Result<Vec<(&'a Probe, String)>> {
        let members = self.members(world);
        let mut questions = [Questions::default(), Questions::default()];
        let mut asked = Vec::new();
        // What another program translates, `explain` does not know.
        let is_known =
            |probe: &&Probe| self.served_by == ServedBy::Agents || probe.via == Via::PodIp;
        let probes: Vec<&Probe> = probes.filter(is_known).collect();
        for probe in &probes {
            let (sender, receiver) = (members[probe.from], members[probe.to]);
            let from = sender.pod.addresses[probe.family];
            let mut ask = |node: usize, interface: &str, via: Via| {
                let to = receiver.at(probe.family, via, probe.port());
                (node, questions[node].ask(from, interface, to, probe.transport))
            };
            let sent = ask(sender.node, &sender.pod.input_interface, probe.via);
            let is_far = sender.node != receiver.node;
            asked.push((sent, is_far.then(|| ask(receiver.node, "eth0", Via::PodIp))));
        }
        let mut passes = Vec::new();
        for (host, questions) in self.nodes.hosts.iter().zip(&questions) {
            passes.push(questions.answers(host.agent()?)?);
        }
        let passes = |(node, question): (usize, usize)| passes[node][question];
        let is_wrong = |(probe, (sent, received)): &(&Probe, ((usize, usize), Option<_>))| {
            (passes(*sent) && received.is_none_or(passes)) != probe.arrives
        };
        let wrong = probes.into_iter().zip(asked).filter(is_wrong);
        Ok(wrong.map(|(probe, _)| (probe, "explain says the opposite".to_owned())).collect())
    }

    fn line(&self, world: &PolicyWorld, (probe, what): &(&Probe, String)) -> String {
        let Probe { from, to, family, via, transport, arrives } = **probe;
        let name = |number: usize| {
            let name = full(&world.pods[number].metadata);
            let member = &self.members[&name];
            format!("{name} ({}, node {})", member.pod.addresses[family], member.node + 1)
        };
        let expected = if arrives { "arrives" } else { "is dropped" };
        format!("{} -> {} {via:?} {transport:?} {expected}, but: {what}", name(from), name(to))
    }
}

impl Probe {
    fn is_over_tcp_and_ipv4(&self) -> bool {
        self.family == 0 && matches!(self.transport, Transport::Port(Protocol::Tcp, _))
    }

    /// A ping has none.
    fn port(&self) -> u16 {
        match self.transport {
            Transport::Port(_, port) => port,
            Transport::Other => 0,
        }
    }
}

impl Member {
    fn at(&self, family: usize, via: Via, port: u16) -> SocketAddr {
        let address = match via {
            Via::PodIp => self.pod.addresses[family],
            Via::ClusterIp => self.services[family],
        };
        SocketAddr::new(address, port)
    }
}

/// The probes of each sender.
fn of_each<'a>(members: &[&Member], probes: &'a [Probe]) -> Vec<Vec<&'a Probe>> {
    let mut of_each = vec![Vec::new(); members.len()];
    for probe in probes {
        of_each[probe.from].push(probe);
    }
    of_each
}

/// Every pair in both families. Whether a pod reaches itself through a service is not defined.
fn probes(world: &PolicyWorld, expected: &[Expected], vias: &[Via]) -> Vec<Probe> {
    let count = world.pods.len();
    let mut probes = Vec::new();
    for it in expected {
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            for family in 0..2 {
                // What a pod sends to its own address does not leave it.
                let arrives = from == to || it.holds(world, from, to, family);
                // Nobody answers pings at a cluster IP.
                let is_service = from != to && it.transport != Transport::Other;
                let vias = vias.iter().filter(|via| **via == Via::PodIp || is_service);
                let transport = it.transport;
                let probe = |via: &Via| Probe { from, to, family, via: *via, transport, arrives };
                probes.extend(vias.map(probe));
            }
        }
    }
    probes
}

/// Plays all of these and says how long it took; an error names those that failed.
pub fn play(
    label: &str,
    wiring: fn(usize) -> Wiring,
    cases: impl Fn(&PolicyWorld) -> Vec<(Case, Vec<Via>)>,
) -> Result<()> {
    let (mut play, world) = Play::new(label, wiring)?;
    let started = Instant::now();
    let cases = cases(&world);
    let mut failures = Vec::new();
    for (case, vias) in &cases {
        if let Err(error) = play.case(case, &world, vias) {
            failures.push(format!("{error:#}"));
        }
    }
    eprintln!("{} cases in {:?}", cases.len(), started.elapsed());
    ensure!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        cases.len(),
        failures.iter().take(10).cloned().collect::<Vec<_>>().join("\n")
    );
    Ok(())
}
