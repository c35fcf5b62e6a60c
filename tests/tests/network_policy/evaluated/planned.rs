//! The agents of both nodes in this process, given a cluster through their real sources: files.

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use denizen_agent::config::PolicyArgs;
use denizen_backend::BackendName;
use denizen_backend::firewall;
use denizen_model::{Event, Listing, NodeAddress, Protocol as ModelProtocol};
use denizen_plan::explain::{FirstPacket, explain};
use denizen_plan::{FirewallPlan, PlanChanges, Planner, PolicyFlow, PolicyResult};
use denizen_source::{Features, manifests, state_file};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{PodObject, PolicyPacket, PolicyWorld, Transport};
use serde_json::{Value, json};

/// One node's agent, which has decided.
#[derive(Debug)]
pub struct Planned {
    planner: Planner,
}

/// All facts come before anything is decided.
pub fn at_once(events: Vec<Event>) -> Vec<Vec<Event>> {
    vec![events]
}

/// The command line of `render`, as far as it decides.
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    policy: PolicyArgs,
}

impl Planned {
    /// Has the agent of `node` decide about `world`, whose files are written into `folder`, and
    /// whose facts come in this order.
    pub fn new(
        world: &PolicyWorld,
        node: &str,
        folder: &Path,
        order: impl Fn(Vec<Event>) -> Vec<Vec<Event>>,
    ) -> Result<Self> {
        Self::with_services(world, node, folder, order, &[])
    }

    /// The same, with these objects of services.
    pub fn with_services(
        world: &PolicyWorld,
        node: &str,
        folder: &Path,
        order: impl Fn(Vec<Event>) -> Vec<Vec<Event>>,
        services: &[Value],
    ) -> Result<Self> {
        let words = ["agent", "--node-name", node, "--network-policy=on"];
        let policy = Flags::try_parse_from(words)?.policy.check(BackendName::Nftables)?;
        let mut events = read(world, node, &folder.join(node), services)?;
        let own = world.nodes.iter().find(|other| other.name == node).context("no such node")?;
        let eth0 = |address: &IpAddr| NodeAddress {
            address: *address,
            interface: "eth0".into(),
            dummy: false,
        };
        events.push(Event::Addresses(own.addresses.iter().map(eth0).collect()));
        events.push(Event::Listed(Listing::Addresses));
        let mut planner = Planner::new(policy, BackendName::Nftables.capabilities());
        for events in order(events) {
            planner.apply(events);
            planner.update();
        }
        Ok(Self { planner })
    }

    /// Takes more facts in. Returns what they change.
    pub fn change(&mut self, events: Vec<Event>) -> PlanChanges {
        self.planner.apply(events);
        self.planner.update()
    }

    /// Whether this node lets a packet pass.
    pub fn passes(&self, packet: PolicyPacket) -> Result<Option<bool>> {
        let Transport::Port(protocol, port) = packet.transport else {
            let PolicyPacket { from: source, to: destination, .. } = packet;
            let flow = PolicyFlow { source, destination, protocol: None, port: None };
            return Ok(Some(self.plan()?.rejection(&flow).is_none()));
        };
        let flow = PolicyFlow {
            source: packet.from,
            destination: packet.to,
            protocol: Some(match protocol {
                Protocol::Tcp => ModelProtocol::Tcp,
                Protocol::Udp => ModelProtocol::Udp,
                Protocol::Sctp => ModelProtocol::Sctp,
            }),
            port: NonZeroU16::new(port),
        };
        let plan = self.plan()?;
        let passes = plan.rejection(&flow).is_none();
        let explained = plan.explain(&flow).iter().all(|step| {
            !matches!(
                step.result,
                PolicyResult::Refused | PolicyResult::Denied | PolicyResult::Pending
            )
        });
        ensure!(passes == explained, "{packet:?}: it passes: {passes}; explained: {explained}");
        Ok(Some(passes))
    }

    /// What `explain` says of a new connection's first packet.
    pub fn explained(&self, from: &str, to: &str) -> Result<Value> {
        let packet = FirstPacket::resolve(self.planner.plan(), from, to)?;
        Ok(serde_json::to_value(explain(&self.planner, &packet, |_| Vec::new(), &|_| None)?)?)
    }

    /// The tables that this node renders.
    pub fn rules(&self) -> String {
        firewall::render(self.planner.plan()).to_string()
    }

    fn plan(&self) -> Result<&FirewallPlan> {
        self.planner.plan().firewall().context("the firewall is off")
    }
}

fn read(world: &PolicyWorld, node: &str, folder: &Path, services: &[Value]) -> Result<Vec<Event>> {
    let (objects, run_dir) = (folder.join("manifests"), folder.join("run"));
    fs::create_dir_all(&objects)?;
    fs::create_dir_all(&run_dir)?;
    fs::set_permissions(&run_dir, Permissions::from_mode(0o700))?;
    let items = [&world.manifests()[..], services].concat();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    fs::write(objects.join("all.json"), list.to_string())?;
    let state = run_dir.join("pods.json");
    fs::write(&state, state_file_of(world, node).to_string())?;
    fs::set_permissions(&state, Permissions::from_mode(0o600))?;
    let has_services = !services.is_empty();
    let features = Features { services: has_services, network_policy: true, other_nodes: false };
    let (mut events, _wrong) = manifests::read(&manifests::ManifestsConfig {
        folder: objects,
        node_name: node.to_owned(),
        features,
    })?;
    let pods = state_file::read(&state_file::StateFileConfig { run_dir })?;
    ensure!(pods.is_some(), "the state file is there");
    events.extend(pods.map(Event::Pods));
    Ok(events)
}

/// A pod's link.
#[derive(Debug, Clone)]
pub struct Link {
    pub ips: Vec<IpAddr>,
    /// The node's end.
    pub veth: String,
    /// The bridge that has it as a port.
    pub bridge: Option<&'static str>,
    /// The Ethernet address of the pod's end.
    pub mac: [u8; 6],
}

/// The links of a node's pods: those that have not ended, and whose addresses are still theirs.
pub fn links(world: &PolicyWorld, node: &str) -> Vec<(usize, Link)> {
    let has_addresses = |number: usize, pod: &PodObject| {
        let younger = || world.pods[number + 1..].iter().filter(|other| has_network(other));
        has_network(pod) && !younger().any(|other| other.status.pod_ips == pod.status.pod_ips)
    };
    let here = world
        .pods
        .iter()
        .enumerate()
        .filter(|(number, pod)| pod.spec.node_name == node && has_addresses(*number, pod));
    let link = |(number, pod): (usize, &PodObject)| {
        let ips = pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip).collect();
        let bridge = number.is_multiple_of(2).then_some("cni0");
        let mac = [2, 0, 0, 0, 1, number as u8];
        (number, Link { ips, veth: format!("veth{number}"), bridge, mac })
    };
    here.map(link).collect()
}

/// The state file (design.md, section 3).
fn state_file_of(world: &PolicyWorld, node: &str) -> Value {
    let attachment = |(number, Link { ips, veth, bridge, mac }): (usize, Link)| {
        let (id, pod) = (format!("c{number}"), &world.pods[number]);
        let attachment = json!({
            "containerId": id, "ifName": "eth0", "network": "pods", "netns": "/run/netns/x",
            "pod": {
                "namespace": pod.metadata.namespace, "name": pod.metadata.name,
                "uid": pod.metadata.uid,
            },
            "bridge": bridge, "ips": ips, "mac": mac.map(|byte| format!("{byte:02x}")).join(":"),
            "addedAt": format!("2026-11-20T12:{number:02}:00Z"),
            "hostInterface": { "name": veth, "index": 10 + number, "mac": "02:00:00:00:00:01" },
        });
        (format!("{id}/eth0"), attachment)
    };
    let attachments: serde_json::Map<String, Value> =
        links(world, node).into_iter().map(attachment).collect();
    json!({ "version": 1, "epoch": "model", "generation": 1, "attachments": attachments })
}

/// Whether a pod has addresses of its own now.
pub fn has_network(pod: &PodObject) -> bool {
    !pod.spec.host_network && pod.status.phase == "Running" && !pod.status.pod_ips.is_empty()
}
