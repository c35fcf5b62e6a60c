//! Configures BIRD (`--routing-mode bird`), and asks for the state of its sessions.
//!
//! BIRD reads a new configuration completely before it takes any of it, so a configuration with an
//! error changes nothing. Only a configuration that it has taken replaces the file that it starts
//! with.

#![expect(clippy::disallowed_methods, reason = "BIRD is asked from time to time")]

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use denizen_route::RouteError;
use denizen_state::regular;
use ipnetwork::IpNetwork;
use nix::net::if_::if_nametoindex;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};

use super::{
    BgpPeer, BgpStatus, BirdConfig, BirdError, CONFIGURATION, Control, FOLDER, NEXT, RenderInputs,
    RenderedConfig, SOCKET, Session, password, render, sessions,
};
use crate::routes::PodRoutes;
use crate::{AnnounceConfig, RoutingReport};
use denizen_model::{Labels, Model, Nodes};
use denizen_plan::explain::Announced;
use denizen_plan::{DirectRoutes, NodeNetworks, WhyRejected, direct};
use denizen_text::describe;

/// How often the sessions are asked for, and the node's networks read.
const EVERY: Duration = Duration::from_secs(5);
/// The pause after a change: changes come in groups.
const QUIET: Duration = Duration::from_millis(50);
/// Size limit of a configuration, and of a password's file, in bytes.
const LONGEST: u64 = 16 << 20;
const LONGEST_PASSWORD: u64 = 4096;

/// The task that configures BIRD.
pub struct BirdController {
    known: watch::Sender<Option<BirdClusterFacts>>,
    state: watch::Receiver<BirdState>,
    pub(crate) socket: PathBuf,
}

/// The facts from the cluster that the configuration depends on.
#[derive(Debug, Clone, PartialEq)]
struct BirdClusterFacts {
    nodes: Nodes,
    /// The ranges of cluster IPs.
    services: Vec<IpNetwork>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct BirdState {
    status: BgpStatus,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl BirdController {
    /// Starts the task, if BIRD is to be configured.
    pub fn start(config: Option<&AnnounceConfig>, run_dir: &Path) -> io::Result<Option<Self>> {
        let Some((config, bird)) = config.and_then(|config| Some((config, config.bird.clone()?)))
        else {
            return Ok(None);
        };
        let folder = std::path::absolute(run_dir.join(FOLDER))?;
        DirBuilder::new().recursive(true).mode(0o750).create(&folder)?;
        let (known, known_receiver) = watch::channel(None);
        let (state_sender, state) = watch::channel(BirdState::default());
        let socket = folder.join(SOCKET);
        let task = ControllerTask {
            bird,
            table: config.table,
            ranges: config.settings.ranges.clone(),
            folder,
            known: known_receiver,
            state: state_sender,
            refused: None,
        };
        tokio::spawn(task.run());
        Ok(Some(Self { known, state, socket }))
    }

    /// Passes the cluster's facts to the task.
    pub fn update(&self, model: &Model) {
        let services = model.snapshot().map(|facts| facts.service_ranges().collect());
        // Until both are known, the last known facts stay.
        let Some((nodes, services)) = model.nodes().zip(services) else { return };
        let now = Some(BirdClusterFacts { nodes, services });
        self.known.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
    }

    pub fn report(&self, report: &mut RoutingReport) {
        let BirdState { status, errors, warnings } = self.state.borrow().clone();
        report.errors.extend(errors);
        report.warnings.extend(warnings);
        report.bgp = Some(status);
    }
}

struct ControllerTask {
    bird: BirdConfig,
    table: u32,
    /// Addresses of services that this node may announce.
    ranges: Vec<IpNetwork>,
    folder: PathBuf,
    known: watch::Receiver<Option<BirdClusterFacts>>,
    state: watch::Sender<BirdState>,
    /// The configuration that BIRD rejects, and why.
    refused: Option<(String, String)>,
}

impl ControllerTask {
    /// Runs until the agent's loop ends. BIRD stays as it is, so that an upgrade of the agent ends
    /// no session.
    async fn run(mut self) {
        loop {
            let state = self.refresh().await;
            let known = self.state.borrow().errors.clone();
            let new = state.errors.iter().filter(|error| !known.contains(error));
            new.for_each(|error| error!(error, "BIRD"));
            self.state.send_replace(state);
            tokio::select! {
                changed = self.known.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(EVERY) => {}
            }
            sleep(QUIET).await;
        }
    }

    async fn refresh(&mut self) -> BirdState {
        let mut state = BirdState::default();
        let mut control = Control::connect(&self.folder.join(SOCKET)).await;
        let known = self.known.borrow_and_update().clone();
        if let Some(known) = known
            && let Err(error) = self.keep(&known, control.as_mut().ok(), &mut state).await
        {
            state.errors.push(error);
        }
        let shown = match &mut control {
            Ok(control) => control.ask("show protocols all").await,
            Err(_) => control.map(|_| Vec::new()),
        };
        match shown {
            Ok(lines) => {
                state.status.is_answering = true;
                state.status.sessions = sessions(&lines);
                let problems = state.status.sessions.iter().filter_map(Session::problem);
                state.warnings.extend(problems);
            }
            Err(error) => state.errors.push(describe(&error)),
        }
        state
    }

    /// Renders the configuration and, if it is new, makes BIRD take it.
    async fn keep(
        &mut self,
        known: &BirdClusterFacts,
        control: Option<&mut Control>,
        state: &mut BirdState,
    ) -> Result<(), String> {
        let (inputs, labels) =
            self.render_inputs(known, state).map_err(|error| describe(&error))?;
        let own = known.nodes.own.as_ref().map(|node| node.addresses.clone()).unwrap_or_default();
        let mut peers = Vec::new();
        let mut is_whole = true;
        for peer in self.bird.peers_of(&labels, &own) {
            state.errors.extend(missing(peer));
            match password_of(peer) {
                Ok(password) => peers.push((peer, password)),
                Err(error) => {
                    is_whole = false;
                    state.errors.push(error);
                }
            }
        }
        let RenderedConfig { text, problems } = render(&self.bird, &peers, &inputs);
        state.warnings.extend(problems);
        let running = regular::read_to_string(&self.folder.join(CONFIGURATION), LONGEST).ok();
        // An unreadable password must not end a session.
        if !is_whole && running.is_some() {
            return Ok(());
        }
        state.status.is_current = running.as_ref() == Some(&text);
        if state.status.is_current {
            // BIRD is asked about the next configuration even if it has rejected that one before.
            self.refused = None;
        } else {
            self.configure(text, running.is_none(), control).await?;
            state.status.is_current = true;
        }
        Ok(())
    }

    async fn configure(
        &mut self,
        text: String,
        is_first: bool,
        control: Option<&mut Control>,
    ) -> Result<(), String> {
        if let Some((_, why)) = self.refused.as_ref().filter(|(refused, _)| *refused == text) {
            return Err(why.clone());
        }
        let next = self.folder.join(NEXT);
        let failed = |error: io::Error| format!("cannot write {}: {error}", next.display());
        write(&next, &text).map_err(failed)?;
        match control {
            Some(control) => {
                let answer = control.ask(&format!("configure \"{}\"", next.display())).await;
                if let Err(error) = answer {
                    let why = format!("BIRD keeps its configuration: {}", describe(&error));
                    let is_final = matches!(error, BirdError::Refused(_));
                    self.refused = is_final.then(|| (text, why.clone()));
                    return Err(why);
                }
            }
            // BIRD does not run yet. It will start with this configuration.
            None if is_first => {}
            None => return Err("a new configuration waits for BIRD".to_owned()),
        }
        self.refused = None;
        info!(bytes = text.len(), "BIRD has a new configuration");
        fs::rename(&next, self.folder.join(CONFIGURATION)).map_err(failed)
    }

    /// What the configuration depends on, and this node's labels.
    fn render_inputs(
        &self,
        known: &BirdClusterFacts,
        state: &mut BirdState,
    ) -> Result<(RenderInputs, Labels), RouteError> {
        let mut nodes = known.nodes.clone();
        if !self.bird.mesh {
            nodes.others = Arc::default();
        }
        let networks = PodRoutes::open()?.node_networks(&nodes)?;
        let DirectRoutes { routes, rejected } = direct(&nodes, &networks);
        let is_near = |why: &WhyRejected| {
            !matches!(why, WhyRejected::NotANeighbour { .. } | WhyRejected::NoInternalIp)
        };
        let rejected = rejected.iter().filter(|range| is_near(&range.why)).map(ToString::to_string);
        state.warnings.extend(rejected);
        let own = nodes.own.iter();
        let mut inputs = RenderInputs {
            table: self.table,
            node: own.clone().map(|node| node.name.clone()).next().unwrap_or_default(),
            addresses: own
                .clone()
                .flat_map(|node| node.addresses.iter().copied())
                .filter(|address| networks.addresses.contains(address))
                .collect(),
            protected: self.protected(known, &networks),
            ..RenderInputs::default()
        };
        for (range, next_hop) in routes {
            inputs.neighbours.entry(next_hop.address).or_default().insert(range);
        }
        let labels = own.map(|node| node.labels.clone()).next().unwrap_or_default();
        Ok((inputs, labels))
    }

    /// The prefixes that are accepted from no peer. A prefix within another one is left out, so
    /// that bridges of pods, which come and go, do not change the configuration.
    fn protected(&self, known: &BirdClusterFacts, networks: &NodeNetworks) -> BTreeSet<IpNetwork> {
        let own = known.nodes.own.iter();
        let addresses = own.clone().flat_map(|node| &node.addresses);
        let peers = self.bird.peers.iter().map(|peer| peer.address.ip());
        let hosts = addresses.copied().chain(peers).map(IpNetwork::from);
        let ranges = own.flat_map(|node| &node.pod_cidrs).chain(&networks.subnets);
        let ranges = ranges.chain(&known.services).chain(&self.ranges).copied();
        let all: BTreeSet<IpNetwork> = ranges.chain(hosts).collect();
        let covers = |range: &IpNetwork, other: &IpNetwork| {
            other != range && other.prefix() <= range.prefix() && other.contains(range.network())
        };
        let is_outermost = |range: &&IpNetwork| !all.iter().any(|other| covers(range, other));
        all.iter().filter(is_outermost).copied().collect()
    }
}

/// The error if this node does not have a peer's interface. BIRD waits for the interface.
fn missing(peer: &BgpPeer) -> Option<String> {
    let interface = peer.address.interface()?;
    let BgpPeer { name, address, .. } = peer;
    let why = if_nametoindex(interface).err()?.desc();
    Some(format!("no BGP session with {name} ({address}): interface {interface}: {why}"))
}

fn password_of(peer: &BgpPeer) -> Result<Option<String>, String> {
    let Some(path) = &peer.password_file else { return Ok(None) };
    let failed = |why: String| {
        format!("the password of BGP peer {}, in {}: {why}", peer.name, path.display())
    };
    let text = regular::read_to_string(path, LONGEST_PASSWORD)
        .map_err(|error| failed(error.to_string()))?;
    password(&text).map(|password| Some(password.to_owned())).map_err(failed)
}

/// Only its owner and group may read the file: it has passwords.
fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)?;
    file.write_all(text.as_bytes())
}

/// Adds the peers to which an address that is in the table was exported, as BIRD says.
pub(crate) async fn with_peers(announced: Announced, socket: &Path) -> Announced {
    let Some(prefix) = announced.prefix.filter(|_| announced.announced) else { return announced };
    match peers_with(prefix, socket).await {
        Err(error) => announced.not_exported("speaker-down", describe(&error)),
        Ok((0, _)) => announced.not_exported("peer-down", "no BGP session is up".to_owned()),
        Ok((_, peers)) => announced.exported_to(peers),
    }
}

/// How many sessions are up, and the peers to which a prefix was exported.
async fn peers_with(prefix: IpNetwork, socket: &Path) -> Result<(usize, Vec<String>), BirdError> {
    let mut control = Control::connect(socket).await?;
    let all = sessions(&control.ask("show protocols all").await?);
    let up: Vec<Session> = all.into_iter().filter(Session::is_up).collect();
    let mut exported_to = Vec::new();
    for Session { peer, .. } in &up {
        match control.ask(&format!("show route {prefix} export '{peer}'")).await {
            Ok(_) => exported_to.push(peer.clone()),
            // The prefix was not exported to this peer.
            Err(BirdError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((up.len(), exported_to))
}
