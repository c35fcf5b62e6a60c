//! Runs a case of the table as a world: its hosts, its pods, its servers, its agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use denizen_state::RunDir;
use serde_json::{Value, json};

use super::table::{Backend, FlowCase, FlowRow, FlowSource, FlowVerdict, Nobody};
use crate::agent::{Agent, Objects, START_TIMEOUT, Settings};
use crate::eventually::eventually;
use crate::kernel::ctnetlink;
use crate::node::manifest::{self, Manifests, Port};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::node::world::{Addresses, World, host_length};
use crate::packets::probe::Protocol;
use crate::packets::server::{Listen, Server};

/// The prefix of the namespaces' names.
const LABEL: &str = "flow";

/// How many packets are traced at once. Each trace also receives the messages about all the others'
/// chains, and the kernel cannot buffer too many (45 at once: over 8 MB for each).
const TRACES: usize = 15;

/// A node on which cases are run, one after the other. Each case finds exactly its own pods,
/// hosts, objects and agent there: what it shares with the case before stays, the rest is removed.
pub(super) struct FlowContext {
    agent: Option<Agent>,
    servers: Vec<Server>,
    pods: Vec<Pod>,
    /// Addresses that the node sends from although they are not its own.
    borrowed: BTreeSet<IpAddr>,
    pub(super) world: World,
    backend: Backend,
    wiring: Wiring,
    /// How many cases were run so far.
    cases: u8,
    /// How many pods were made so far.
    names: usize,
    /// How many flows are run at once.
    pub(super) at_once: usize,
    /// Whether the kernel is asked what the rules do to each packet.
    pub(super) is_traced: bool,
}

/// Who listens where: pods by their first address, another node's pods or hosts, and this node.
#[derive(Default)]
struct Listeners {
    of_pod: BTreeMap<IpAddr, BTreeSet<Listen>>,
    remote: BTreeSet<Listen>,
    node: BTreeSet<Listen>,
}

impl FlowContext {
    /// A node with these addresses, without a case yet.
    pub(super) fn new(node: &[IpAddr], backend: Backend, wiring: Wiring) -> Result<Self> {
        let addresses = Addresses { node: node.to_vec(), client: Vec::new(), remote: Vec::new() };
        let (at_once, is_traced) = match backend {
            Backend::Nftables | Backend::IptablesNft => (TRACES, true),
            Backend::IptablesLegacy => (usize::MAX, false),
            // IPVS's counters can only be attributed to a flow if no other flow is run
            // meanwhile.
            Backend::Ipvs => (1, false),
        };
        Ok(Self {
            agent: None,
            servers: Vec::new(),
            pods: Vec::new(),
            borrowed: BTreeSet::new(),
            world: World::new(LABEL, addresses)?,
            backend,
            wiring,
            cases: 0,
            names: 0,
            at_once,
            is_traced,
        })
    }

    /// Replaces the case before by this one, and programs it.
    pub(super) fn enter(&mut self, case: &FlowCase) -> Result<()> {
        let listeners = Listeners::of(case)?;
        self.servers.clear();
        let (client, remote) = external_addresses(case, &listeners);
        self.world.replace_others(client, remote)?;
        self.replace_pods(local_pods(case, &listeners))?;
        self.borrow_addresses(case)?;
        self.servers = listeners.serve(&self.world, &self.pods)?;
        // What earlier cases left in conntrack must not influence this case.
        self.world.node.run(ctnetlink::forget)??;
        self.cases += 1;
        self.put(case)?;
        self.program(case)
    }

    /// Replaces the node's pods by pods with these addresses.
    fn replace_pods(&mut self, wanted: Vec<Vec<IpAddr>>) -> Result<()> {
        let Self { world, wiring, names, .. } = self;
        let (kept, gone): (Vec<_>, Vec<_>) =
            self.pods.drain(..).partition(|pod| wanted.contains(&pod.addresses));
        self.pods = kept;
        gone.into_iter().try_for_each(|pod| pod.detach(&world.node))?;
        for addresses in wanted {
            if self.pods.iter().any(|pod| pod.addresses == addresses) {
                continue;
            }
            *names += 1;
            let name = format!("p{names}");
            let netns = Netns::new(&format!("{LABEL}-{name}"))?;
            let mut pod = Pod::wire(&world.node, netns, &name, *wiring, &addresses)?;
            pod.record(&world.node, &world.subfolder("run")?, &Value::Null)?;
            self.pods.push(pod);
        }
        Ok(())
    }

    /// Some cases have the node send from an address that is not its own: a service address that
    /// something bound to the loopback interface, as some load balancers do.
    fn borrow_addresses(&mut self, case: &FlowCase) -> Result<()> {
        let from_node = case.flows.iter().filter(|flow| flow.from_kind == FlowSource::Node);
        let is_borrowed = |ip: &IpAddr| !ip.is_loopback() && !case.node.ips.contains(ip);
        let wanted: BTreeSet<_> = from_node.map(|flow| flow.from).filter(is_borrowed).collect();
        let before = std::mem::replace(&mut self.borrowed, wanted);
        self.world.node.change(|links| {
            for ip in &before - &self.borrowed {
                links.remove_address("lo", ip, host_length(ip))?;
            }
            let new = &self.borrowed - &before;
            new.into_iter().try_for_each(|ip| links.address("lo", ip, host_length(ip)))
        })
    }

    /// Writes the case's objects where the agent finds them, all in one step. One more service, the
    /// marker, shows when the agent has them.
    fn put(&self, case: &FlowCase) -> Result<()> {
        let ips = &case.node.ips;
        let primary = |v4: bool| ips.iter().copied().find(|address| address.is_ipv4() == v4);
        let primaries: Vec<_> = [primary(true), primary(false)].into_iter().flatten().collect();
        let mut objects = vec![
            manifest::node(&case.node.name, &primaries, &case.node.zone),
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": { "name": "kubernetes" }, "spec": { "cidrs": case.config.service_cidrs },
            }),
            manifest::service("the-case", &[self.marker(case).ip()], &[Port::tcp("none", 1, 1)]),
        ];
        objects.extend(case.services.iter().chain(&case.endpointslices).cloned());
        self.manifests()?.put("case", &objects)
    }

    /// The frontend of a service without endpoints, which is another one in each case.
    fn marker(&self, case: &FlowCase) -> SocketAddr {
        let ip = match case.node.ips[0] {
            IpAddr::V4(_) => [198, 19, 255, self.cases].into(),
            IpAddr::V6(_) => [0x2001, 0xdb8, 0xca5e, 0, 0, 0, 0, self.cases.into()].into(),
        };
        SocketAddr::new(ip, 1)
    }

    fn manifests(&self) -> Result<Manifests> {
        Manifests::in_folder(&self.world.folder().join("manifests"))
    }

    /// Starts an agent with the case's settings, or keeps the running one if it has the same
    /// settings; waits until the case is programmed.
    fn program(&mut self, case: &FlowCase) -> Result<()> {
        let settings = Settings {
            program: None,
            objects: Objects::Manifests(self.manifests()?.folder().to_owned()),
            run_dir: self.world.subfolder("run")?,
            node_name: case.node.name.clone(),
            flags: [self.backend.flags(), case.agent_options()].concat(),
        };
        let is_right = |agent: &mut Agent| *agent.settings() == settings;
        let mut agent = match self.agent.take_if(is_right) {
            Some(agent) => agent,
            None => {
                self.agent.take().map(Agent::terminate).transpose()?;
                Agent::start(&self.world.node, settings)?
            }
        };
        agent.quiet();
        let marker = self.marker(case);
        eventually("programmed", START_TIMEOUT, || {
            // The agent writes into the state file too.
            let recorded = self.recorded()?;
            let asked = agent.explain(case.node.ips[0], None, marker, Protocol::Tcp)?;
            let status = agent.ask_directly(&json!({ "status": {} }))?;
            let is_known = asked.verdict == "reject" && status["generation"] == json!(recorded);
            Ok(is_known && status["flushing"] == false)
        })?;
        self.agent = Some(agent);
        Ok(())
    }

    /// The state file's generation; `None` if no pod was ever recorded.
    fn recorded(&self) -> Result<Option<u64>> {
        let state = RunDir::open(&self.world.subfolder("run")?)?.read()?;
        Ok(state.map(|state| state.generation.0))
    }

    /// The running agent.
    pub(super) fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("a case was entered")
    }

    /// The node's rules, in the backend's own format.
    pub(super) fn rules(&self) -> Result<String> {
        let node = &self.world.node;
        match self.backend {
            Backend::Nftables => node.output("nft", &["list", "ruleset"]),
            Backend::Ipvs => Ok(node.output("nft", &["list", "ruleset"])?
                + &node.output("ipvsadm", &["--save", "--numeric"])?),
            Backend::IptablesLegacy => node.output("iptables-legacy-save", &[]),
            Backend::IptablesNft => node.output("iptables-nft-save", &[]),
        }
    }

    /// The namespace that a packet starts in, and the interface through which the node sees it come
    /// in.
    pub(super) fn origin(&self, flow: &FlowRow) -> Result<(&Netns, Option<&str>)> {
        Ok(match flow.from_kind {
            FlowSource::Node => (&self.world.node, None),
            FlowSource::External => (&self.world.client, Some("eth0")),
            FlowSource::RemotePod => (&self.world.remote, Some("eth0")),
            FlowSource::LocalPod => {
                let pod = self.pods.iter().find(|pod| pod.addresses.contains(&flow.from));
                let pod = pod.with_context(|| format!("no pod has {}", flow.from))?;
                (&pod.netns, Some(pod.input_interface.as_str()))
            }
        })
    }
}

impl Listeners {
    fn of(case: &FlowCase) -> Result<Self> {
        let mut listeners = Self::default();
        for endpoint in case.endpoints()? {
            // The same address may be listed for two nodes; it can only be on one.
            let local = endpoint.node.as_ref() == Some(&case.node.name);
            for address in endpoint.addresses {
                let at = |(protocol, port): &(_, u16)| Listen {
                    protocol: *protocol,
                    address: (address, *port).into(),
                };
                let here = endpoint.ports.iter().map(at);
                if local || listeners.of_pod.contains_key(&address) {
                    listeners.of_pod.entry(address).or_default().extend(here);
                } else {
                    listeners.remote.extend(here);
                }
            }
        }
        let of_pod = &listeners.of_pod;
        listeners.remote.retain(|listen| !of_pod.contains_key(&listen.address.ip()));
        // A packet that the proxy leaves alone is answered by the host that really has its
        // destination.
        for flow in case.flows.iter().filter(|flow| {
            matches!(flow.expect.endpoints, FlowVerdict::Nobody(Nobody::None | Nobody::Accept))
        }) {
            let listen = Listen {
                protocol: flow.protocol,
                address: SocketAddr::new(flow.dest_ip, flow.dest_port),
            };
            let own = flow.dest_ip.is_loopback() || case.node.ips.contains(&flow.dest_ip);
            if own { &mut listeners.node } else { &mut listeners.remote }.insert(listen);
        }
        Ok(listeners)
    }

    fn serve(&self, world: &World, pods: &[Pod]) -> Result<Vec<Server>> {
        let start = |netns: &Netns, listeners: &BTreeSet<Listen>| {
            Server::start(netns, &listeners.iter().copied().collect::<Vec<_>>())
        };
        let mut servers =
            vec![start(&world.remote, &self.remote)?, start(&world.node, &self.node)?];
        for (address, listeners) in &self.of_pod {
            let pod = pods
                .iter()
                .find(|pod| pod.addresses.contains(address))
                .context("every address has a pod")?;
            servers.push(start(&pod.netns, listeners)?);
        }
        Ok(servers)
    }
}

/// The addresses of hosts outside, and of the other node's pods.
fn external_addresses(case: &FlowCase, listeners: &Listeners) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let sources = |kind: FlowSource| {
        case.flows.iter().filter(move |flow| flow.from_kind == kind).map(|flow| flow.from)
    };
    let client: BTreeSet<_> = sources(FlowSource::External).collect();
    let mut remote: BTreeSet<_> =
        listeners.remote.iter().map(|listen| listen.address.ip()).collect();
    remote.extend(sources(FlowSource::RemotePod));
    (client.into_iter().collect(), remote.into_iter().collect())
}

/// The pods of the node, each as a list of addresses: those that the case records, and every other
/// endpoint on this node.
fn local_pods(case: &FlowCase, listeners: &Listeners) -> Vec<Vec<IpAddr>> {
    let mut pods: Vec<_> =
        case.config.detect_local.pods.iter().map(|pod| pod.ips.clone()).collect();
    for address in listeners.of_pod.keys() {
        if !pods.iter().any(|pod| pod.contains(address)) {
            pods.push(vec![*address]);
        }
    }
    pods
}
