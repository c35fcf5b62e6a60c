//! The suite between real pods, bridged and routed ones, on two nodes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::node::cluster::serve;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{PolicyPacket, PolicyWorld, allowed};

use super::houses::{container, labels_of, namespaces};
use super::{HOUSES, ProtocolPort, TESTS, Verifier, tests_of_nodes};
use crate::play::{Play, ServedBy, Via};
use crate::prober::{Answer, ProbedPort, Prober};

/// What is not answered by then is dropped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Every pod asks every other one at both ports of each protocol, and `explain` is asked too. The
/// oracle says what is expected: of what the suite asks, it says what the suite says.
struct Packets {
    play: Play,
    world: PolicyWorld,
}

impl Packets {
    /// Pod 0 of each house is on the first node. G and H are bridged, S and R are routed.
    fn new(label: &str, served_by: ServedBy) -> Result<Self> {
        let names = ["g", "s", "h", "r"].map(|house| [(house, "pod-0"), (house, "pod-1")]);
        let (play, mut world) = Play::few(label, served_by, &names.concat())?;
        world.namespaces = namespaces();
        let houses = HOUSES.into_iter().flat_map(|house| [house, house]);
        for (pod, house) in world.pods.iter_mut().zip(houses) {
            pod.metadata.labels = labels_of(house);
            pod.spec.containers = vec![container()];
        }
        Ok(Self { play, world })
    }
}

impl Verifier for Packets {
    fn world(&self) -> PolicyWorld {
        self.world.clone()
    }

    fn verify(
        &mut self,
        world: &PolicyWorld,
        expected: &[(PolicyPacket, bool)],
    ) -> Result<Vec<String>> {
        let ways = match self.play.served_by() {
            ServedBy::Agents => &[Via::PodIp][..],
            ServedBy::KubeProxy => &[Via::PodIp, Via::ClusterIp],
        };
        self.play.verify(world, ways)?;
        let wrong = expected.iter().filter(|(packet, passes)| allowed(world, *packet) != *passes);
        Ok(wrong.map(|(packet, passes)| format!("{packet:?} passes: {}", !passes)).collect())
    }
}

#[test]
fn twenty_two_tests_with_packets() -> Result<()> {
    let mut packets = Packets::new("cnp-suite", ServedBy::Agents)?;
    TESTS.into_iter().try_for_each(|test| test(&mut packets))
}

/// Its rules stand before ours, and accept what they have marked.
#[test]
fn twenty_two_tests_beside_kube_proxy() -> Result<()> {
    let mut packets = Packets::new("cnp-beside", ServedBy::KubeProxy)?;
    TESTS.into_iter().try_for_each(|test| test(&mut packets))
}

/// A node's own ports are those of the pods in its network.
#[test]
fn two_tests_of_nodes_with_packets() -> Result<()> {
    let Packets { mut play, world } = Packets::new("cnp-nodes", ServedBy::Agents)?;
    let cases = tests_of_nodes(&world);
    let ports: BTreeSet<ProtocolPort> =
        cases.iter().flat_map(|(_, expected)| expected).map(|(at, _)| *at).collect();
    let ports: Vec<ProtocolPort> = ports.into_iter().collect();
    let mut servers = Vec::new();
    for host in &play.nodes.hosts {
        servers.push(serve(&host.netns, &host.node.addresses, &ports)?);
    }
    for (world, expected) in cases {
        play.put(&world)?;
        for name in ["g/pod-0", "g/pod-1"] {
            let prober = Prober::start(&play.pod(name).0.netns)?;
            let nodes = play.nodes.hosts.iter().flat_map(|host| &host.node.addresses);
            let all: Vec<(SocketAddr, Protocol, bool)> = nodes
                .flat_map(|node| expected.iter().map(move |(at, passes)| (*node, *at, *passes)))
                .map(|(node, (protocol, port), passes)| {
                    (SocketAddr::new(node, port), protocol, passes)
                })
                .collect();
            let question =
                |(to, protocol, _): &_| ProbedPort { protocol: Some(*protocol), to: *to };
            prober.ask(all.iter().map(question).collect(), ANSWER_TIMEOUT)?;
            for ((to, protocol, passes), answer) in all.into_iter().zip(prober.answers()?) {
                let expected = if passes { Answer::Answered } else { Answer::Silent };
                ensure!(answer == expected, "{name} to {to}/{protocol}: {answer:?}");
            }
        }
    }
    Ok(())
}
