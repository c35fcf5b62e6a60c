//! The agent in this process, given a world through its real sources: files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;
use denizen_agent::config::PolicyArgs;
use denizen_backend::BackendName;
use denizen_backend::nftables::render;
use denizen_model::{Event, Listing, NodeAddress};
use denizen_plan::Planner;
use denizen_plan::explain::{Explanation, FirstPacket, explain};
use denizen_source::{Features, manifests, state_file};
use serde_json::{Value, json};

use super::place::{HERE, PROTOCOLS};
use super::world::{Pod, World, another_node};
use denizen_tests::oracle::reader::Arrival;

/// An agent that has decided about a world.
pub struct Agent {
    planner: Planner,
    pods: Vec<Pod>,
    /// What `render` prints.
    pub rules: String,
}

/// The command line of `render`, as far as it decides.
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    policy: PolicyArgs,
}

impl Agent {
    /// Has it decide about `world`, whose files are written into `folder`.
    pub fn new(world: &World, folder: &Path) -> Result<Self> {
        let words = ["agent", "--node-name", HERE]
            .into_iter()
            .chain(world.flags.iter().map(String::as_str));
        let policy = Flags::try_parse_from(words)?.policy.check(BackendName::Nftables)?;
        let mut events = read(world, folder)?;
        let on = |(address, interface): &(_, &str)| NodeAddress {
            address: *address,
            interface: (*interface).into(),
            dummy: false,
        };
        let mut addresses: Vec<NodeAddress> = world.addresses.iter().map(on).collect();
        addresses.sort_unstable();
        events.push(Event::Addresses(addresses));
        events.push(Event::Listed(Listing::Addresses));
        let mut planner = Planner::new(policy, BackendName::Nftables.capabilities());
        planner.apply(events);
        planner.update();
        let rules = render(planner.plan()).to_string();
        let pods = world.pods.clone();
        Ok(Self { planner, pods, rules })
    }

    /// What becomes of a packet. Whether a recorded pod's own port is named or its bridge makes no
    /// difference.
    pub fn explain(&self, arrival: &Arrival) -> Result<Explanation> {
        let Arrival { interface, port, .. } = arrival;
        let explanation = self.explain_at(arrival, port.as_ref().or(interface.as_ref()))?;
        let pods = &self.pods;
        let own = |pod: &&Pod| pod.ips.contains(&arrival.source) && pod.port() == port.as_deref();
        if port.is_some() && pods.iter().any(|pod| own(&pod)) {
            let by_bridge = self.explain_at(arrival, interface.as_ref())?;
            ensure!(
                by_bridge == explanation,
                "by the bridge: {by_bridge:?}; by the port: {explanation:?}"
            );
        }
        Ok(explanation)
    }

    fn explain_at(&self, arrival: &Arrival, link: Option<&String>) -> Result<Explanation> {
        let link = link.map(|link| format!("@{link}")).unwrap_or_default();
        let protocol = PROTOCOLS
            .iter()
            .find(|(_, number)| *number == arrival.protocol)
            .map_or("", |(name, _)| name);
        let packet = FirstPacket::parse(
            &format!("{}{link}", arrival.source),
            &format!("{}/{protocol}", arrival.destination),
        )?;
        Ok(explain(&self.planner, &packet, |_| Vec::new(), &|_| None)?)
    }
}

fn read(world: &World, folder: &Path) -> Result<Vec<Event>> {
    let (objects, run_dir) = (folder.join("manifests"), folder.join("run"));
    fs::create_dir_all(&objects)?;
    fs::create_dir_all(&run_dir)?;
    fs::set_permissions(&run_dir, Permissions::from_mode(0o700))?;
    let other = another_node();
    let all = [&world.services, &world.slices, &world.ranges].into_iter().flatten();
    let all: Vec<&Value> = all.chain(&world.node).chain([&other]).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": all });
    fs::write(objects.join("all.json"), list.to_string())?;
    let state: PathBuf = run_dir.join("pods.json");
    fs::write(&state, state_file_of(&world.pods).to_string())?;
    fs::set_permissions(&state, Permissions::from_mode(0o600))?;
    let (mut events, _left_out) = manifests::read(&manifests::ManifestsConfig {
        folder: objects,
        node_name: HERE.to_owned(),
        features: Features::default(),
    })?;
    let pods = state_file::read(&state_file::StateFileConfig { run_dir })?;
    ensure!(pods.is_some(), "the state file is there");
    events.extend(pods.map(Event::Pods));
    Ok(events)
}

/// The state file (design.md, section 3).
fn state_file_of(pods: &[Pod]) -> Value {
    let attachment = |(index, pod): (usize, &Pod)| {
        let (id, bridge) = (format!("c{index}"), pod.bridged.then_some("cni0"));
        let mut attachment = json!({
            "containerId": id, "ifName": "eth0", "network": "pods",
            "pod": { "namespace": "default", "name": format!("pod-{index}"), "uid": "1" },
            "netns": "/run/netns/x", "bridge": bridge, "ips": pod.ips, "addedAt": "2026-11-20T12:00:00Z",
            "hostInterface": { "name": pod.veth, "index": 10 + index, "mac": "02:00:00:00:00:01" },
        });
        if let Some(behind) = pod.behind {
            attachment["l3Interface"] = behind.into();
        }
        (format!("{id}/eth0"), attachment)
    };
    let attachments: serde_json::Map<String, Value> =
        pods.iter().enumerate().map(attachment).collect();
    json!({ "version": 1, "epoch": "model", "generation": 1, "attachments": attachments })
}
