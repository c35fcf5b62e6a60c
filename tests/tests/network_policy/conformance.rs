//! The 24 tests of network-policy-api's conformance suite, made again from their truth tables: what
//! each expects, the oracle, the plans of both nodes and their rules say; and the same with packets
//! between pods.
//!
//! Of each protocol the suite has two ports. Here they are 80 and 81.

mod houses;
mod packets;

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::world::host_length;
use denizen_tests::packets::probe::Protocol::{self, Sctp, Tcp, Udp};
use denizen_tests::policy::{
    ClusterNetworkPolicy, LabelSelector, NetworkPolicy, PolicyPacket, PolicyPeer, PolicyRule,
    PolicyWorld, Transport,
};
use serde_json::{Value, json};

use self::houses::{number_of, world};
use crate::evaluated::EvaluatedWorld;

/// A house is a namespace with two pods, each on another node.
type House = char;
/// A protocol and a port.
type ProtocolPort = (Protocol, u16);

const HOUSES: [House; 4] = ['G', 'S', 'H', 'R'];
const LABEL: &str = "conformance-house";

const T80: ProtocolPort = (Tcp, 80);
const T81: ProtocolPort = (Tcp, 81);
const U80: ProtocolPort = (Udp, 80);
const U81: ProtocolPort = (Udp, 81);
const S80: ProtocolPort = (Sctp, 80);

/// The other port of the protocol.
fn other((protocol, port): ProtocolPort) -> ProtocolPort {
    (protocol, 161 - port)
}

/// Checks whether packets pass as expected.
trait Verifier {
    /// The pods, and no policy.
    fn world(&self) -> PolicyWorld;

    /// What is otherwise than expected.
    fn verify(
        &mut self,
        world: &PolicyWorld,
        expected: &[(PolicyPacket, bool)],
    ) -> Result<Vec<String>>;
}

/// The oracle, the plans and their rules.
struct OnPaper;

impl Verifier for OnPaper {
    fn world(&self) -> PolicyWorld {
        world()
    }

    fn verify(
        &mut self,
        world: &PolicyWorld,
        expected: &[(PolicyPacket, bool)],
    ) -> Result<Vec<String>> {
        let evaluated = EvaluatedWorld::new(world)?;
        let mut wrong = Vec::new();
        for (packet, passes) in expected {
            if evaluated.passes(*packet)? != *passes {
                wrong.push(format!("{packet:?} passes: {}", !passes));
            }
        }
        Ok(wrong)
    }
}

fn house(house: House) -> Value {
    json!({ "namespaces": { "matchLabels": { LABEL: house.to_string() } } })
}

fn port((protocol, number): ProtocolPort) -> Value {
    let name = protocol.to_string().to_lowercase();
    json!({ name: { "destinationPort": { "number": number } } })
}

/// A rule about one peer, `from` or `to`, at these ports or all.
fn rule(action: &str, side: &str, peer: Value, ports: &[ProtocolPort]) -> Value {
    let mut rule = json!({ "action": action, side: [peer] });
    if !ports.is_empty() {
        rule["protocols"] = ports.iter().map(|at| port(*at)).collect();
    }
    rule
}

/// A world, and what is expected of it as it is now.
struct Conformance<'a> {
    verifier: &'a mut dyn Verifier,
    world: PolicyWorld,
    expected: Vec<(PolicyPacket, bool)>,
    wrong: Vec<String>,
    count: usize,
}

impl<'a> Conformance<'a> {
    fn new(verifier: &'a mut dyn Verifier) -> Self {
        let world = verifier.world();
        Self { verifier, world, expected: Vec::new(), wrong: Vec::new(), count: 0 }
    }

    fn put(&mut self, policy: ClusterNetworkPolicy) -> Result<()> {
        self.change(|world| {
            world.tiers.retain(|other| other.metadata.name != policy.metadata.name);
            world.tiers.push(policy);
        })
    }

    /// What was expected until now is judged before.
    fn change(&mut self, change: impl FnOnce(&mut PolicyWorld)) -> Result<()> {
        self.verify()?;
        change(&mut self.world);
        Ok(())
    }

    /// An address of a pod. Family 0 is IPv4.
    fn address(&self, (house, pod): (House, usize), family: usize) -> IpAddr {
        self.world.pods[number_of(house, pod)].status.pod_ips[family].ip
    }

    /// Between all pods of two houses, in both families.
    fn expect(&mut self, from: House, to: House, at: ProtocolPort, passes: bool) {
        for pods in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            self.expect_between((from, pods.0), (to, pods.1), at, passes);
        }
    }

    fn expect_between(
        &mut self,
        from: (House, usize),
        to: (House, usize),
        (protocol, port): ProtocolPort,
        passes: bool,
    ) {
        for family in 0..2 {
            let (from, to) = (self.address(from, family), self.address(to, family));
            let transport = Transport::Port(protocol, port);
            self.expected.push((PolicyPacket { from, to, transport }, passes));
        }
    }

    fn verify(&mut self) -> Result<()> {
        let expected = std::mem::take(&mut self.expected);
        if !expected.is_empty() {
            self.count += expected.len();
            self.wrong.extend(self.verifier.verify(&self.world, &expected)?);
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.verify()?;
        ensure!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        ensure!(self.count > 0, "nothing was asked");
        Ok(())
    }
}

/// One direction of one of the suite's tests A and B.
#[derive(Clone, Copy)]
struct DirectionTest<'a> {
    is_ingress: bool,
    n: House,
    x: House,
    y: House,
    p: &'a [ProtocolPort],
    z: House,
    q: &'a [ProtocolPort],
}

impl DirectionTest<'_> {
    fn rules(&self, tier: &str) -> Vec<Value> {
        let side = if self.is_ingress { "from" } else { "to" };
        let rule = |action, peer, ports: &[ProtocolPort]| rule(action, side, house(peer), ports);
        let mut rules = vec![rule("Accept", self.x, &[]), rule("Deny", self.x, &[])];
        let is_admin = tier == "Admin";
        rules.extend(is_admin.then(|| rule("Pass", self.x, &[])));
        rules.push(rule("Deny", self.y, self.p));
        rules.extend(is_admin.then(|| rule("Pass", self.y, self.p)));
        rules.push(rule("Accept", self.z, self.q));
        rules.push(rule("Deny", self.z, &[]));
        rules
    }

    fn expect(
        &self,
        play: &mut Conformance<'_>,
        peer: House,
        ports: &[ProtocolPort],
        passes: bool,
    ) {
        let (from, to) = if self.is_ingress { (peer, self.n) } else { (self.n, peer) };
        ports.iter().for_each(|at| play.expect(from, to, *at, passes));
    }

    /// At both ports of each protocol.
    fn expect_of_x(&self, play: &mut Conformance<'_>, passes: bool) {
        self.expect(play, self.x, self.p, passes);
        self.expect(play, self.x, &others(self.p), passes);
    }
}

fn others(ports: &[ProtocolPort]) -> Vec<ProtocolPort> {
    ports.iter().map(|at| other(*at)).collect()
}

fn test_directions(
    verifier: &mut dyn Verifier,
    tier: &str,
    priority: u16,
    directions: &[DirectionTest<'_>],
) -> Result<()> {
    let mut play = Conformance::new(verifier);
    let n = directions[0].n;
    let put = |play: &mut Conformance<'_>, rules: &[Vec<Value>]| {
        let policy = ClusterNetworkPolicy::new(tier, priority, "gress", house(n));
        let policy = directions.iter().zip(rules).fold(policy, |policy, (side, rules)| match side
            .is_ingress
        {
            true => policy.ingress(rules.clone()),
            false => policy.egress(rules.clone()),
        });
        play.put(policy)
    };
    let mut rules: Vec<_> = directions.iter().map(|side| side.rules(tier)).collect();
    put(&mut play, &rules)?;
    for side in directions {
        side.expect_of_x(&mut play, true);
        side.expect(&mut play, side.z, side.q, true);
        side.expect(&mut play, side.z, &others(side.q), false);
    }
    rules.iter_mut().for_each(|rules| rules.swap(0, 1));
    put(&mut play, &rules)?;
    for side in directions {
        side.expect_of_x(&mut play, false);
        side.expect(&mut play, side.y, side.p, false);
        side.expect(&mut play, side.y, &others(side.p), true);
    }
    if tier == "Admin" {
        rules.iter_mut().for_each(|rules| rules.swap(0, 2));
        put(&mut play, &rules)?;
        directions.iter().for_each(|side| side.expect_of_x(&mut play, true));
        rules.iter_mut().for_each(|rules| rules.swap(3, 4));
        put(&mut play, &rules)?;
        for side in directions {
            side.expect(&mut play, side.y, side.p, true);
            side.expect(&mut play, side.y, &others(side.p), true);
        }
    }
    play.end()
}

/// CNP{Admin,Baseline}Tier{Ingress,Egress}{TCP,UDP,SCTP}.
fn of_one_direction_and_protocol(verifier: &mut dyn Verifier) -> Result<()> {
    let tcp =
        DirectionTest { is_ingress: true, n: 'G', x: 'R', y: 'S', p: &[T80], z: 'H', q: &[T80] };
    let udp = DirectionTest { n: 'H', p: &[U81], z: 'G', q: &[U80], ..tcp };
    let sctp = DirectionTest { n: 'R', x: 'G', p: &[S80], q: &[S80], ..tcp };
    for tier in ["Admin", "Baseline"] {
        let egress = |side| DirectionTest { is_ingress: false, ..side };
        let all =
            [tcp, DirectionTest { q: &[T81], ..egress(tcp) }, udp, egress(udp), sctp, egress(sctp)];
        for (side, priority) in all.into_iter().zip(3..) {
            let played = test_directions(verifier, tier, priority, &[side]);
            played.with_context(|| format!("{tier}, {priority}"))?;
        }
    }
    Ok(())
}

/// CNP{Admin,Baseline}TierGress.
fn of_both_directions_and_all_protocols(verifier: &mut dyn Verifier) -> Result<()> {
    let (p, q) = ([T80, U80, S80], [T80, U81, S80]);
    let ingress = DirectionTest { is_ingress: true, n: 'G', x: 'R', y: 'S', p: &p, z: 'H', q: &q };
    let egress = DirectionTest { is_ingress: false, q: &[T81, U81, S80], ..ingress };
    test_directions(verifier, "Admin", 15, &[ingress, egress])?;
    test_directions(verifier, "Baseline", 10, &[ingress, egress])
}

fn both_ways(tier: &str, priority: u16, name: &str, actions: [&str; 2]) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy::new(tier, priority, name, house('G'))
        .ingress([rule(actions[0], "from", house('S'), &[])])
        .egress([rule(actions[1], "to", house('S'), &[])])
}

const SOME: [ProtocolPort; 3] = [T80, U80, S80];

fn between_s_and_g(play: &mut Conformance<'_>, to_g: bool, from_g: bool) {
    for at in SOME {
        play.expect('S', 'G', at, to_g);
        play.expect('G', 'S', at, from_g);
    }
}

/// CNPAdminTierPriorityField.
fn of_priorities(verifier: &mut dyn Verifier) -> Result<()> {
    let mut play = Conformance::new(verifier);
    play.put(both_ways("Admin", 50, "old", ["Deny", "Deny"]))?;
    play.put(both_ways("Admin", 60, "new", ["Pass", "Pass"]))?;
    play.put(both_ways("Baseline", 50, "default", ["Accept", "Accept"]))?;
    between_s_and_g(&mut play, false, false);
    play.put(both_ways("Admin", 40, "new", ["Pass", "Pass"]))?;
    between_s_and_g(&mut play, true, true);
    play.end()
}

/// CNPAdminTierIntegration.
fn of_network_policies_between(verifier: &mut dyn Verifier) -> Result<()> {
    let mut play = Conformance::new(verifier);
    play.put(both_ways("Baseline", 50, "default", ["Deny", "Deny"]))?;
    play.put(both_ways("Admin", 50, "admin", ["Deny", "Deny"]))?;
    let peer = || PolicyPeer::namespaces(LabelSelector::label(LABEL, "S"));
    let policy = NetworkPolicy::new("g", "np", LabelSelector::default());
    let policy = policy.ingress([PolicyRule::from([peer()])]).egress([PolicyRule::to([peer()])]);
    play.change(|world| world.put_policy(policy))?;
    between_s_and_g(&mut play, false, false);
    play.put(both_ways("Admin", 50, "admin", ["Pass", "Deny"]))?;
    between_s_and_g(&mut play, true, false);
    play.put(both_ways("Admin", 50, "admin", ["Pass", "Pass"]))?;
    between_s_and_g(&mut play, true, true);
    play.change(|world| world.policies.clear())?;
    between_s_and_g(&mut play, false, false);
    play.end()
}

fn to_all(play: &mut Conformance<'_>, passes: [(House, bool); 3]) {
    for (to, passes) in passes {
        SOME.iter().for_each(|at| play.expect('G', to, *at, passes));
    }
}

/// CNP{Admin,Baseline}TierEgressInlineCIDRPeers.
fn of_networks(verifier: &mut dyn Verifier) -> Result<()> {
    for tier in ["Admin", "Baseline"] {
        let mut play = Conformance::new(verifier);
        let pods = json!({ "pods": {
            "namespaceSelector": { "matchLabels": { LABEL: "S" } }, "podSelector": {},
        } });
        let all = json!({ "networks": ["0.0.0.0/0", "::/0"] });
        let mut rules = vec![rule("Accept", "to", pods, &[]), rule("Deny", "to", all, &[])];
        let put = |play: &mut Conformance<'_>, rules: &[Value]| {
            let policy = ClusterNetworkPolicy::new(tier, 70, "cidr", house('G'));
            play.put(policy.egress(rules.iter().cloned()))
        };
        put(&mut play, &rules)?;
        to_all(&mut play, [('R', false), ('H', false), ('S', true)]);
        let labels = |play: &mut Conformance<'_>, value: &str| {
            play.change(|world| {
                let found = world.namespaces.iter_mut().find(|other| other.metadata.name == "s");
                let found = found.expect("there is one");
                found.metadata.labels = [(LABEL.to_owned(), value.to_owned())].into();
            })
        };
        labels(&mut play, "other")?;
        to_all(&mut play, [('R', false), ('H', false), ('S', false)]);
        labels(&mut play, "S")?;
        to_all(&mut play, [('R', false), ('H', false), ('S', true)]);
        let hosts = ['R', 'H'].map(|house| [0, 1].map(|family| play.address((house, 0), family)));
        let hosts = hosts.concat().into_iter().map(|ip| format!("{ip}/{}", host_length(ip)));
        let hosts: Vec<_> = hosts.collect();
        rules.insert(0, rule("Accept", "to", json!({ "networks": hosts }), &[]));
        put(&mut play, &rules)?;
        for to in [('R', 0), ('H', 0), ('R', 1), ('H', 1)] {
            SOME.iter().for_each(|at| play.expect_between(('G', 0), to, *at, to.1 == 0));
        }
        play.end()?;
    }
    Ok(())
}

/// CNP{Admin,Baseline}Tier{Ingress,Egress}NamedPort.
fn of_named_ports(verifier: &mut dyn Verifier) -> Result<()> {
    let cases = [
        ("Admin", false, 'G', 'H', "web", T80),
        ("Admin", true, 'G', 'H', "dns", U80),
        ("Baseline", false, 'H', 'G', "dns", U80),
        ("Baseline", true, 'H', 'G', "web", T80),
    ];
    for (tier, is_ingress, n, z, name, at) in cases {
        let mut play = Conformance::new(verifier);
        let side = if is_ingress { "from" } else { "to" };
        let mut accept = rule("Accept", side, house(z), &[]);
        accept["protocols"] = json!([{ "destinationNamedPort": name }]);
        let rules = [accept, rule("Deny", side, house(z), &[])];
        let policy = ClusterNetworkPolicy::new(tier, 80, "named", house(n));
        play.put(if is_ingress { policy.ingress(rules) } else { policy.egress(rules) })?;
        let (from, to) = if is_ingress { (z, n) } else { (n, z) };
        play.expect(from, to, at, true);
        play.expect(from, to, other(at), false);
        play.end()?;
    }
    Ok(())
}

/// All of the suite but [`two_tests_of_nodes`].
const TESTS: [fn(&mut dyn Verifier) -> Result<()>; 6] = [
    of_one_direction_and_protocol,
    of_both_directions_and_all_protocols,
    of_priorities,
    of_network_policies_between,
    of_networks,
    of_named_ports,
];

#[test]
fn twenty_two_tests_on_paper() -> Result<()> {
    TESTS.into_iter().try_for_each(|test| test(&mut OnPaper))
}

/// CNP{Admin,Baseline}TierEgressNodePeers. A node's own ports are those of its hostNetwork pods.
fn tests_of_nodes(world: &PolicyWorld) -> [(PolicyWorld, Vec<(ProtocolPort, bool)>); 2] {
    let nodes = || json!({ "nodes": {} });
    let all = || json!({ "networks": ["0.0.0.0/0", "::/0"] });
    let rule = |action, peer, ports: &[ProtocolPort]| rule(action, "to", peer, ports);
    let (p0, p1, p2) = ((Tcp, 34345), (Tcp, 34346), (Udp, 34347));
    let admin = vec![
        rule("Accept", nodes(), &[p0]),
        rule("Pass", nodes(), &[p2]),
        rule("Deny", house('S'), &[]),
        rule("Deny", nodes(), &[]),
        rule("Deny", all(), &[]),
    ];
    let baseline = vec![
        rule("Accept", nodes(), &[p0, p1]),
        rule("Deny", nodes(), &[]),
        rule("Deny", all(), &[]),
    ];
    let (u4, s6) = ((Udp, 34349), (Sctp, 34351));
    let cases = [
        ("Admin", admin, vec![(p0, true), (p2, true), (p1, false), (u4, false), (s6, false)]),
        ("Baseline", baseline, vec![(p0, true), (p1, true), (u4, false), (s6, false)]),
    ];
    cases.map(|(tier, rules, expected)| {
        let policy = ClusterNetworkPolicy::new(tier, 75, "nodes", house('G')).egress(rules);
        (PolicyWorld { tiers: vec![policy], ..world.clone() }, expected)
    })
}

#[test]
fn two_tests_of_nodes_on_paper() -> Result<()> {
    for (world, expected) in tests_of_nodes(&world()) {
        let evaluated = EvaluatedWorld::new(&world)?;
        for ((protocol, port), expected) in expected {
            for node in &world.nodes {
                for (family, to) in node.addresses.iter().enumerate() {
                    let transport = Transport::Port(protocol, port);
                    let from = world.pods[0].status.pod_ips[family].ip;
                    let packet = PolicyPacket { from, to: *to, transport };
                    let passes = evaluated.passes(packet)?;
                    ensure!(
                        passes == expected,
                        "{}: {packet:?}: {passes}",
                        world.tiers[0].spec["tier"]
                    );
                }
            }
        }
    }
    Ok(())
}
