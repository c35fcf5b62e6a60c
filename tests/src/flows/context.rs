//! One case of the table as a world: its hosts, its pods, its servers, its agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::table::{Backend, Case, Flow, From, Nobody, Verdict};
use crate::agent::{Agent, Objects, Settings};
use crate::manifest::{self, Manifests};
use crate::netns::Netns;
use crate::pod::{Pod, Wiring};
use crate::server::{Listen, Server};
use crate::world::{Addresses, World, host_length};

/// How many packets are traced at once. Each trace hears of all the others' chains, and of too many
/// the kernel cannot keep the messages (45 at once: over 8 MB for each).
const TRACES: usize = 15;

/// A case, ready to be played.
pub(super) struct CaseContext {
    pub(super) agent: Agent,
    pods: Vec<Pod>,
    _servers: Vec<Server>,
    pub(super) world: World,
    /// How many flows are played at once.
    pub(super) at_once: usize,
    /// Whether the kernel is asked what the rules do to each packet.
    pub(super) is_traced: bool,
}

/// Who listens where: by the host's first address, or the host that is no pod.
#[derive(Default)]
struct Listens {
    of_pod: BTreeMap<IpAddr, BTreeSet<Listen>>,
    remote: BTreeSet<Listen>,
    node: BTreeSet<Listen>,
}

impl CaseContext {
    pub(super) fn new(case: &Case, backend: Backend, label: &str, wiring: Wiring) -> Result<Self> {
        let listens = Listens::of(case)?;
        let world = World::new(label, addresses(case, &listens))?;
        borrow_addresses(case, &world)?;
        let run_dir = world.subfolder("run")?;
        let mut pods = Vec::new();
        for (index, addresses) in local_pods(case, &listens).iter().enumerate() {
            let name = format!("p{index}");
            let netns = Netns::new(&format!("{label}-{name}"))?;
            let mut pod = Pod::wire(&world.node, netns, &name, wiring, addresses)?;
            pod.record(&world.node, &run_dir, &Value::Null)?;
            pods.push(pod);
        }
        let servers = listens.serve(&world, &pods)?;
        let settings = write_down(case, backend, &world)?;
        let agent = Agent::start(&world.node, settings)?;
        let (at_once, is_traced) = match backend {
            Backend::Nftables | Backend::IptablesNft => (TRACES, true),
            Backend::IptablesLegacy => (case.flows.len().max(1), false),
            // What IPVS counts is one flow's if no other is played meanwhile.
            Backend::Ipvs => (1, false),
        };
        Ok(Self { agent, pods, _servers: servers, world, at_once, is_traced })
    }

    /// The namespace that a packet starts in, and the interface through which the node sees it
    /// come.
    pub(super) fn origin(&self, flow: &Flow) -> Result<(&Netns, Option<&str>)> {
        Ok(match flow.from_kind {
            From::Node => (&self.world.node, None),
            From::External => (&self.world.client, Some("eth0")),
            From::RemotePod => (&self.world.remote, Some("eth0")),
            From::LocalPod => {
                let pod = self.pods.iter().find(|pod| pod.addresses.contains(&flow.from));
                let pod = pod.with_context(|| format!("no pod has {}", flow.from))?;
                (&pod.netns, Some(pod.input_interface.as_str()))
            }
        })
    }
}

impl Listens {
    fn of(case: &Case) -> Result<Self> {
        let mut listens = Self::default();
        for endpoint in case.endpoints()? {
            // The same address may be listed for two nodes; it can only be at one.
            let local = endpoint.node.as_ref() == Some(&case.node.name);
            for address in endpoint.addresses {
                let at = |(protocol, port): &(_, u16)| Listen {
                    protocol: *protocol,
                    address: (address, *port).into(),
                };
                let here = endpoint.ports.iter().map(at);
                if local || listens.of_pod.contains_key(&address) {
                    listens.of_pod.entry(address).or_default().extend(here);
                } else {
                    listens.remote.extend(here);
                }
            }
        }
        let of_pod = &listens.of_pod;
        listens.remote.retain(|listen| !of_pod.contains_key(&listen.address.ip()));
        // A packet that the proxy leaves alone is answered by whoever really has its destination.
        for flow in case.flows.iter().filter(|flow| {
            matches!(flow.expect.endpoints, Verdict::Nobody(Nobody::None | Nobody::Accept))
        }) {
            let listen = Listen {
                protocol: flow.protocol,
                address: SocketAddr::new(flow.dest_ip, flow.dest_port),
            };
            let own = flow.dest_ip.is_loopback() || case.node.ips.contains(&flow.dest_ip);
            if own { &mut listens.node } else { &mut listens.remote }.insert(listen);
        }
        Ok(listens)
    }

    fn serve(&self, world: &World, pods: &[Pod]) -> Result<Vec<Server>> {
        let start = |netns: &Netns, listens: &BTreeSet<Listen>| {
            Server::start(netns, &listens.iter().copied().collect::<Vec<_>>())
        };
        let mut servers =
            vec![start(&world.remote, &self.remote)?, start(&world.node, &self.node)?];
        for (address, listens) in &self.of_pod {
            let pod = pods
                .iter()
                .find(|pod| pod.addresses.contains(address))
                .context("every address has a pod")?;
            servers.push(start(&pod.netns, listens)?);
        }
        Ok(servers)
    }
}

/// Who is where outside the node.
fn addresses(case: &Case, listens: &Listens) -> Addresses {
    let sources = |kind: From| {
        case.flows.iter().filter(move |flow| flow.from_kind == kind).map(|flow| flow.from)
    };
    let remote: BTreeSet<_> = listens.remote.iter().map(|listen| listen.address.ip()).collect();
    Addresses {
        node: case.node.ips.clone(),
        client: sources(From::External).collect::<BTreeSet<_>>().into_iter().collect(),
        remote: remote
            .into_iter()
            .chain(sources(From::RemotePod))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
    }
}

/// The pods of the node, one a list of addresses: those that the case records, and every other
/// endpoint that is on this node.
fn local_pods(case: &Case, listens: &Listens) -> Vec<Vec<IpAddr>> {
    let mut pods: Vec<_> =
        case.config.detect_local.pods.iter().map(|pod| pod.ips.clone()).collect();
    for address in listens.of_pod.keys() {
        if !pods.iter().any(|pod| pod.contains(address)) {
            pods.push(vec![*address]);
        }
    }
    pods
}

/// A packet of the node's that comes from an address which is not the node's: a service address
/// that something bound to the loopback interface, as some load balancers do.
fn borrow_addresses(case: &Case, world: &World) -> Result<()> {
    let from_node =
        case.flows.iter().filter(|flow| flow.from_kind == From::Node).map(|flow| flow.from);
    let borrowed =
        from_node.filter(|address| !address.is_loopback() && !case.node.ips.contains(address));
    for address in borrowed.collect::<BTreeSet<_>>() {
        world.node.ip(&format!("addr add {address}/{} dev lo", host_length(address)))?;
    }
    Ok(())
}

/// Writes the case's objects and configuration where the agent finds them.
fn write_down(case: &Case, backend: Backend, world: &World) -> Result<Settings> {
    let manifests = Manifests::in_folder(&world.folder().join("manifests"))?;
    let primary = |v4: bool| case.node.ips.iter().copied().find(|address| address.is_ipv4() == v4);
    let primaries: Vec<_> = [primary(true), primary(false)].into_iter().flatten().collect();
    manifests.put("node", &[manifest::node(&case.node.name, &primaries, &case.node.zone)])?;
    manifests.put("services", &case.services)?;
    manifests.put("slices", &case.endpointslices)?;
    manifests.put(
        "ranges",
        &[json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": { "name": "kubernetes" }, "spec": { "cidrs": case.config.service_cidrs },
        })],
    )?;
    Ok(Settings {
        program: None,
        objects: Objects::Manifests(manifests.folder().to_owned()),
        run_dir: world.subfolder("run")?,
        node_name: case.node.name.clone(),
        flags: flags(case, backend),
    })
}

/// The case's configuration on the agent's command line.
fn flags(case: &Case, backend: Backend) -> Vec<String> {
    let config = &case.config;
    let mut flags = backend.flags();
    flags.push(format!("--iptables-localhost-nodeports={}", config.localhost_node_ports));
    if !config.node_port_addresses.is_empty() {
        flags.push(format!("--nodeport-addresses={}", config.node_port_addresses.join(",")));
    }
    if config.masquerade_all {
        flags.push("--masquerade-all".to_owned());
    }
    if config.prefer_same_node == Some(false) {
        flags.push("--feature-gates=PreferSameTrafficDistribution=false".to_owned());
    }
    flags
}
