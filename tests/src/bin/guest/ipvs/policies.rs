//! NetworkPolicies judge what IPVS carries: requests, which do not pass the forward hook.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, PORT, every_protocol, put_load_balancer, service_ips,
};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::host_length;
use denizen_tests::packets::long_connection::{self, LongConnection, MEMBERS};
use denizen_tests::packets::probe::{Probe, Protocol, SILENCE};
use denizen_tests::packets::server::Server;
use denizen_tests::policy::{
    self, LabelSelector, NamespaceObject, NetworkPolicy, ObjectMeta, PolicyPeer, PolicyRule,
    PolicyWorld,
};
use denizen_tests::test_length;
use serde_json::json;

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

const NODE_PORT: u16 = 30_080;

/// Numbers among [`service_ips`]: of a load balancer, and of a service whose endpoint is the node.
const BALANCER: u8 = 100;
const OF_NODE: u8 = 12;

/// A connection of either protocol counts as new until it is answered; the rules are the same.
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The reason of the rule that drops packets of pods whose labels are not known.
const PENDING: &str = "the pod's policies are not known yet";

/// Unless tests run in full length, one of this many connections of each kind is tried. Every
/// frontend, and every sender with either protocol, is among those.
const STEP: usize = 5;

/// Late packets of other connections may take an endpoint's turn.
const MOST_TRIES: usize = 3 * MEMBERS.len();

/// To which frontend, by whom, over which protocol.
type ProbedConnection = (SocketAddr, Host, Protocol);

/// Each of these clients at each of these frontends, by every protocol.
fn connections(frontends: &[SocketAddr], clients: &[Host]) -> Vec<ProbedConnection> {
    let at = |to: &SocketAddr| {
        let to = *to;
        clients.iter().flat_map(move |who| PROTOCOLS.map(|protocol| (to, *who, protocol)))
    };
    frontends.iter().flat_map(at).collect()
}

struct PolicyContext {
    fixture: Fixture,
    agent: Agent,
    /// Listens at the node's own addresses.
    _node: Server,
}

/// All endpoints of `web`.
fn all() -> BTreeSet<Host> {
    MEMBERS.into()
}

fn without(who: Host) -> BTreeSet<Host> {
    MEMBERS.into_iter().filter(|member| *member != who).collect()
}

fn of(role: &str) -> LabelSelector {
    LabelSelector::label("role", role)
}

impl PolicyContext {
    fn new() -> Result<Self> {
        let fixture = long_connection::fixture("ipvs-np")?;
        let ports: Vec<_> =
            every_protocol().into_iter().map(|port| port.at_node(NODE_PORT)).collect();
        let mut web = fixture.service("web", 10, &ports, &MEMBERS)?;
        put_load_balancer(&mut web, BALANCER);
        let manifests = &fixture.cluster.manifests;
        manifests.put("web", &web)?;
        let own = [Port::tcp("own", 80, PORT)];
        manifests.put("own", &fixture.service("own", OF_NODE, &own, &[Host::ThisNode])?)?;
        let namespace = NamespaceObject {
            metadata: ObjectMeta { name: "default".to_owned(), ..ObjectMeta::default() },
        };
        let world = PolicyWorld { namespaces: vec![namespace], ..PolicyWorld::default() };
        manifests.put("objects", &world.manifests())?;
        let node = &fixture.cluster.world.node;
        let addresses = &fixture.cluster.world.addresses().node;
        let server = serve(node, addresses, &[(Protocol::Tcp, PORT)])?;
        let settings = fixture.cluster.settings_with(["--backend=ipvs", "--network-policy=on"]);
        let mut agent = Agent::spawn(node, settings)?;
        agent.wait_programmed(TIMEOUT)?;
        Ok(Self { fixture, agent, _node: server })
    }

    fn put_policies(&self, policies: &[NetworkPolicy]) -> Result<()> {
        let world = PolicyWorld { policies: policies.into(), ..PolicyWorld::default() };
        self.fixture.cluster.manifests.put("policies", &world.manifests())
    }

    /// A pod whose labels are not known yet gets nothing through IPVS either: any policy may select
    /// it. At the end, the labels become known.
    fn unknown_pods_are_cut_off(&self) -> Result<()> {
        self.put_policies(&[self.narrow()?])?;
        // Without any policy there are no rules. The rules of one family come all at once.
        let node = &self.fixture.cluster.world.node;
        let has_rules = |family| -> Result<bool> {
            let table = node.output("nft", &["list", "table", family, "denizen-firewall"])?;
            Ok(table.contains(PENDING))
        };
        eventually("rules", TIMEOUT, || Ok(has_rules("ip")? && has_rules("ip6")?))?;
        ensure!(self.agent.status()?["networkPolicy"]["pending"] == 2);
        let to = service_ips(10).map(|ip| SocketAddr::new(ip, 80));
        let who = [Host::Bridged, Host::Outside];
        // A pod reaches itself, even while its labels are not known.
        let reached =
            |who| BTreeSet::from([who, Host::Remote]).intersection(&all()).copied().collect();
        self.expect_of("pending", connections(&to, &who), reached)?;
        self.fixture.cluster.manifests.put("pods", &self.fixture.pod_objects("front", "back"))
    }

    /// These policies are in force from now on.
    fn put(&self, policies: &[NetworkPolicy]) -> Result<()> {
        self.put_policies(policies)?;
        self.agent.until("the policies are in force", TIMEOUT, |status| {
            let policy = &status["networkPolicy"];
            status["synced"] == true
                && policy["waitingFor"] == json!([])
                && policy["policies"] == policies.len()
                && policy["pending"] == 0
        })?;
        Ok(())
    }

    /// Each frontend of `web`.
    fn frontends(&self) -> Result<Vec<SocketAddr>> {
        let mut frontends = Vec::new();
        for (ip, balancer) in service_ips(10).into_iter().zip(service_ips(BALANCER)) {
            let node = self.fixture.address(Host::ThisNode, ip)?;
            let all = [(ip, 80), (balancer, 80), (node, NODE_PORT)];
            frontends.extend(all.map(|(ip, port)| SocketAddr::new(ip, port)));
        }
        Ok(frontends)
    }

    /// At every frontend, exactly these endpoints answer, and `explain` says so.
    fn expect(&self, what: &str, expected: impl Fn(Host) -> BTreeSet<Host>) -> Result<()> {
        let all = connections(&self.frontends()?, &EVERYONE);
        self.expect_of(what, all.into_iter().step_by(test_length::in_full(1, STEP)), expected)
    }

    /// The same of these connections.
    fn expect_of(
        &self,
        what: &str,
        connections: impl IntoIterator<Item = ProbedConnection>,
        expected: impl Fn(Host) -> BTreeSet<Host>,
    ) -> Result<()> {
        for (to, who, protocol) in connections {
            let describe = || format!("{what}: {who:?} to {to}/{protocol}");
            let (mut answered, mut answers) = (BTreeSet::new(), Vec::new());
            // IPVS serves one endpoint after the other.
            while answers.len() < MEMBERS.len()
                || answered != expected(who) && answers.len() < MOST_TRIES
            {
                answers.push(self.answerer(who, to, protocol).with_context(describe)?);
                answered = answers.iter().copied().flatten().collect();
            }
            ensure!(answered == expected(who), "{}: {answers:?}", describe());
            let explained = self.explained(who, to, protocol).with_context(describe)?;
            ensure!(explained == answered, "{}: explained {explained:?}", describe());
        }
        Ok(())
    }

    fn answerer(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<Option<Host>> {
        let source = self.fixture.address(who, to.ip())?;
        let probe = Probe { protocol, ..Probe::tcp(to) }.from(source).timeout(SILENCE);
        let outcome = probe.send_in(self.fixture.place(who).0);
        let owner = |at: SocketAddr| self.fixture.owner(at.ip()).context("nobody's address");
        outcome.endpoint().map(owner).transpose()
    }

    /// The endpoints that `explain` lets through.
    fn explained(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<BTreeSet<Host>> {
        let from = self.fixture.address(who, to.ip())?;
        let interface = self.fixture.place(who).1;
        let from = interface.map_or(from.to_string(), |interface| format!("{from}@{interface}"));
        let question = json!({ "explain": { "from": from, "to": format!("{to}/{protocol}") } });
        let explanation = self.agent.ask_directly(&question)?;
        ensure!(
            explanation["virtualServer"].is_object(),
            "IPVS does not carry it: {explanation:#}"
        );
        let refused: Vec<_> = explanation["policies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|row| row["result"] == "refused" || row["result"] == "pending")
            .map(|row| &row["endpoint"])
            .collect();
        let endpoints = explanation["endpoints"].as_array().context("endpoints")?.iter();
        let passed = endpoints.filter(|endpoint| !refused.contains(endpoint));
        let owner = |endpoint: &serde_json::Value| -> Result<Host> {
            let at: SocketAddr = endpoint.as_str().context("an endpoint")?.parse()?;
            self.fixture.owner(at.ip()).context("nobody's address")
        };
        passed.map(owner).collect()
    }

    /// Whether the node itself, as a service's endpoint, answers `who` as expected.
    fn expect_node(&self, who: Host, answers: bool) -> Result<()> {
        for ip in service_ips(OF_NODE) {
            let answered = self.answerer(who, SocketAddr::new(ip, 80), Protocol::Tcp)?;
            let expected = answers.then_some(Host::ThisNode);
            ensure!(answered == expected, "{who:?} to {ip} of the node: {answered:?}");
        }
        Ok(())
    }

    fn lasting(&self, who: Host) -> Result<LongConnection> {
        let to = SocketAddr::new(service_ips(11)[usize::from(who == Host::Remote)], 7);
        LongConnection::open(self.fixture.place(who).0, to)
    }

    /// A policy: only pods `front` and the host outside reach pods `back`.
    fn narrow(&self) -> Result<NetworkPolicy> {
        let address = |like| self.fixture.address(Host::Outside, like);
        let block = |ip: IpAddr| PolicyPeer::block(format!("{ip}/{}", host_length(ip)), []);
        let mut peers = vec![PolicyPeer::pods(of("front"))];
        for like in service_ips(10) {
            peers.push(block(address(like)?));
        }
        Ok(NetworkPolicy::new("default", "narrow", of("back")).ingress([PolicyRule::from(peers)]))
    }

    /// A policy: pods `front` reach only pods `back` and, `with_node`, one port of the node.
    fn kept_in(&self, with_node: bool) -> Result<NetworkPolicy> {
        let mut rules = vec![PolicyRule::to([PolicyPeer::pods(of("back"))])];
        for like in service_ips(10) {
            let ip = self.fixture.address(Host::ThisNode, like)?;
            let node = PolicyRule::to([PolicyPeer::block(format!("{ip}/{}", host_length(ip)), [])]);
            rules.push(node.at([policy::PolicyPort::number(Protocol::Tcp, PORT)]));
        }
        rules.truncate(if with_node { rules.len() } else { 1 });
        Ok(NetworkPolicy::new("default", "kept-in", of("front")).egress(rules))
    }
}

/// Ingress and egress of isolated pods, and connections that a policy forbids later.
pub(crate) fn hold() -> Result<()> {
    let context = PolicyContext::new()?;
    context.unknown_pods_are_cut_off()?;
    context.put(&[])?;
    context.expect("without policies", |_| all())?;
    let mut kept = context.lasting(Host::Bridged)?;
    let [mut cut, mut closed] = [context.lasting(Host::Remote)?, context.lasting(Host::Remote)?];

    context.put(&[context.narrow()?])?;
    context.expect("ingress", |who| match who {
        Host::Remote => without(Host::Routed),
        Host::Bridged | Host::Routed | Host::Outside | Host::ThisNode => all(),
    })?;
    kept.still_alive().context("it is permitted still")?;
    cut.is_silent().context("it is forbidden now")?;
    closed.is_reset_when_closed().context("it is forbidden now")?;

    context.put(&[context.kept_in(true)?])?;
    let of_front = BTreeSet::from([Host::Bridged, Host::Routed]);
    context.expect("egress", |who| match who {
        Host::Bridged => of_front.clone(),
        Host::Routed | Host::Remote | Host::Outside | Host::ThisNode => all(),
    })?;
    kept.still_alive().context("it is permitted still")?;
    context.expect_node(Host::Bridged, true)?;
    context.expect_node(Host::Routed, true)?;
    context.put(&[context.kept_in(false)?])?;
    context.expect_node(Host::Bridged, false)?;
    context.expect_node(Host::Routed, true)?;

    let status = context.agent.status()?;
    ensure!(status["errors"] == json!([]), "{status:#}");
    for reason in ["ingress", "egress", "forbidden"] {
        let dropped = status["networkPolicy"]["dropped"][reason].as_u64();
        ensure!(dropped > Some(0), "{reason}: {status:#}");
    }
    context.agent.terminate()?;
    Ok(())
}
