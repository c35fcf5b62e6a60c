//! Random clusters: pods of a tiny alphabet of labels on two nodes, up to six policies for them,
//! some of which nobody can understand, and the same with tiers of ClusterNetworkPolicies.

pub mod played;
mod policies;
pub mod tiers;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::policy::{
    self, Container, ContainerPort, Labels, NamespaceObject, NodeObject, ObjectMeta, PodIp,
    PodObject, PodSpec, PodStatus, PolicyPacket, PolicyWorld, Transport,
};
use denizen_tests::random::{self, Draw};
use denizen_tests::test_length;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;

use crate::case::PROTOCOLS;
use crate::evaluated::{EvaluatedWorld, Planned, at_once};

/// How long a world that fails is made plainer.
const SHRINKING: Duration = Duration::from_secs(60);

pub const NODES: [&str; 2] = ["node-1", "node-2"];
pub const NAMESPACES: [&str; 3] = ["x", "y", "z"];
/// Keys of labels, and their values.
pub const KEYS: [&str; 2] = ["app", "role"];
pub const VALUES: [&str; 3] = ["a", "b", "c"];
/// Names of ports.
pub const NAMES: [&str; 2] = ["web", "dns"];
pub const PORTS: [u16; 3] = [53, 80, 81];
pub const OUTSIDE: [&str; 4] = ["203.0.113.1", "10.9.0.1", "2600::1", "fd00:9::1"];

/// How many numbers decide about each.
const A_POD: usize = 40;
const A_POLICY: usize = 120;

/// A cluster.
#[derive(Debug, Clone)]
pub struct Cluster(pub PolicyWorld);

pub fn clusters() -> impl Strategy<Value = Cluster> {
    let pods = vec(vec(any::<u16>(), A_POD), 2..=7);
    let policies = vec(vec(any::<u16>(), A_POLICY), 0..=6);
    let namespaces = vec(any::<u16>(), 30);
    (namespaces, pods, policies).prop_map(|(namespaces, pods, policies)| {
        let draw = &mut Draw::new(&namespaces);
        let mut world = PolicyWorld { nodes: nodes(), ..PolicyWorld::default() };
        world.namespaces = NAMESPACES.map(|name| namespace(draw, name)).into();
        for (number, numbers) in pods.iter().enumerate() {
            let pod = pod(&mut Draw::new(numbers), number);
            world.pods.push(pod);
        }
        let addresses = addresses(&world);
        for (number, numbers) in policies.iter().enumerate() {
            let policy = policies::policy(&mut Draw::new(numbers), number, &addresses);
            world.policies.push(policy);
        }
        Cluster(world)
    })
}

/// Every address that a packet may come from or go to.
pub fn addresses(world: &PolicyWorld) -> Vec<IpAddr> {
    let pods = world.pods.iter().flat_map(|pod| pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip));
    let nodes = world.nodes.iter().flat_map(|node| node.addresses.iter().copied());
    let mut all: Vec<_> = pods.chain(nodes).chain(OUTSIDE.map(ip)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

pub fn nodes() -> Vec<NodeObject> {
    let addresses =
        |number| vec![ip(&format!("192.168.0.{number}")), ip(&format!("2001:db8::{number}"))];
    NODES
        .into_iter()
        .zip(1..)
        .map(|(name, number)| NodeObject {
            name: name.to_owned(),
            addresses: addresses(number),
            ..NodeObject::default()
        })
        .collect()
}

fn labels(draw: &mut Draw<'_>) -> Labels {
    let keys = draw.subset(&KEYS, 60);
    keys.into_iter().map(|key| (key.to_owned(), draw.one(&VALUES).to_owned())).collect()
}

fn namespace(draw: &mut Draw<'_>, name: &str) -> NamespaceObject {
    let labels = labels(draw);
    NamespaceObject {
        metadata: ObjectMeta { name: name.to_owned(), labels, ..ObjectMeta::default() },
    }
}

/// The higher a pod's number, the younger it is. Some have an address of another pod, which ends or
/// has ended: its object says so late.
fn pod(draw: &mut Draw<'_>, number: usize) -> PodObject {
    let namespace = draw.one(&NAMESPACES);
    let node = draw.below(NODES.len());
    let labels = labels(draw);
    let host_network = draw.percent(8);
    let phase = if draw.percent(10) { "Succeeded" } else { "Running" };
    let owner = if number > 0 && draw.percent(10) { draw.below(number) } else { number };
    let pod_ips = match (host_network, draw.percent(5)) {
        (true, _) => nodes()[node].addresses.clone(),
        (false, true) => Vec::new(),
        (false, false) => {
            vec![
                ip(&format!("10.0.{}.{}", owner / 4, 4 + owner)),
                ip(&format!("fd00::{}:{}", owner / 4, 4 + owner)),
            ]
        }
    };
    let containers = vec![container(draw, None)];
    let restart = draw.one(&[Some("Always"), None]);
    let init_containers = if draw.percent(30) { vec![container(draw, restart)] } else { vec![] };
    let timestamp = |minute| format!("2026-11-20T12:{minute:02}:00Z");
    PodObject {
        metadata: ObjectMeta {
            annotations: std::collections::BTreeMap::new(),
            namespace: namespace.to_owned(),
            name: format!("pod-{number}"),
            uid: format!("uid-{number}"),
            labels,
            creation_timestamp: Some(timestamp(number)),
            deletion_timestamp: draw.percent(10).then(|| timestamp(59)),
        },
        spec: PodSpec {
            node_name: NODES[node].to_owned(),
            host_network,
            init_containers,
            containers,
        },
        status: PodStatus {
            phase: phase.to_owned(),
            pod_ips: pod_ips.into_iter().map(|ip| PodIp { ip }).collect(),
        },
    }
}

fn container(draw: &mut Draw<'_>, restart: Option<&str>) -> Container {
    let names = draw.subset(&NAMES, 60);
    let mut port = |name: &str| ContainerPort {
        name: Some(name.to_owned()),
        protocol: draw.one(&[None, Some("TCP"), Some("UDP"), Some("SCTP")]).map(str::to_owned),
        container_port: draw.one(&PORTS),
    };
    let ports = names.into_iter().map(&mut port).collect();
    Container { name: "c".to_owned(), restart_policy: restart.map(str::to_owned), ports }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.manifests().iter().try_for_each(|object| writeln!(f, "{object}"))
    }
}

/// A packet of every kind from every address to every other one of its family.
pub fn packets(world: &PolicyWorld) -> Vec<PolicyPacket> {
    packets_at(world, &PORTS)
}

/// The same, where these are the ports.
pub fn packets_at(world: &PolicyWorld, ports: &[u16]) -> Vec<PolicyPacket> {
    let addresses = addresses(world);
    let pairs = addresses.iter().flat_map(|from| addresses.iter().map(move |to| (*from, *to)));
    let of_one_family = pairs.filter(|(from, to)| from.is_ipv4() == to.is_ipv4());
    let of_protocol = |protocol| ports.iter().map(move |port| Transport::Port(protocol, *port));
    let kinds = PROTOCOLS.into_iter().flat_map(of_protocol);
    let kinds: Vec<_> = kinds.chain([Transport::Other]).collect();
    let of = |(from, to)| kinds.iter().map(move |kind| PolicyPacket { from, to, transport: *kind });
    of_one_family.flat_map(of).collect()
}

/// Every third of these packets, unless tests run in full length: of each two ends a third of the
/// kinds, whose number is no multiple of 3, so that the next two have others. A world more finds
/// more than a packet more in the same world.
pub fn sample(packets: Vec<PolicyPacket>) -> impl Iterator<Item = PolicyPacket> {
    packets.into_iter().step_by(test_length::in_full(1, 3))
}

/// Worlds in which everything arrives, or nothing, would show little.
#[test]
fn random_policies_permit_some_and_deny_some() -> Result<()> {
    let (allowed, denied) = (Cell::new(0_u64), Cell::new(0_u64));
    random::run(300, random::seed()?, SHRINKING, clusters(), |Cluster(world)| {
        for packet in sample(packets(world)) {
            let counted = if policy::allowed(world, packet) { &allowed } else { &denied };
            counted.set(counted.get() + 1);
        }
        Ok(())
    })?;
    both_are_common(allowed.get(), denied.get())
}

fn both_are_common(allowed: u64, denied: u64) -> Result<()> {
    eprintln!("{allowed} allowed, {denied} denied");
    ensure!(allowed.min(denied) * 10 > allowed + denied, "{allowed} allowed, {denied} denied");
    Ok(())
}

/// What a packet needs: its way through the sender's node, and through the receiver's.
#[test]
fn the_plans_of_both_nodes_say_what_the_oracle_says() -> Result<()> {
    let worlds = u32::try_from(test_length::times(6_000, 600))?;
    random::run(worlds, random::seed()?, SHRINKING, clusters(), |Cluster(world)| {
        let folder = tempfile::tempdir()?;
        let planned = NODES.map(|node| Planned::new(world, node, folder.path(), at_once));
        for packet in sample(packets(world)) {
            let mut passes = Some(true);
            for planned in &planned {
                let planned = planned.as_ref().map_err(|error| anyhow!("{error:#}"))?;
                passes = passes.zip(planned.passes(packet)?).map(|(all, this)| all && this);
            }
            let allowed = policy::allowed(world, packet);
            let agree = passes.is_none_or(|passes| passes == allowed);
            ensure!(agree, "{packet:?}: the oracle says {allowed}");
        }
        Ok(())
    })
}

/// The tables that both nodes render, read as the kernel would read them.
#[test]
fn the_rules_of_both_nodes_do_what_the_oracle_says() -> Result<()> {
    let worlds = u32::try_from(test_length::times(1_000, 60))?;
    random::run(worlds, random::seed()?, SHRINKING, clusters(), |Cluster(world)| {
        let evaluated = EvaluatedWorld::new(world)?;
        sample(packets(world)).try_for_each(|packet| evaluated.passes(packet).map(drop))?;
        if world.policies.is_empty() { Ok(()) } else { evaluated.drop_forged() }
    })
}
