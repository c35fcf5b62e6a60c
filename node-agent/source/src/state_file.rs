//! The pods of this node, from the state file that the CNI plugin writes.
//!
//! A CNI ADD may be waiting for this source, so it reads a change at once, without a pause to
//! collect others. If the file cannot be read or is lost, the last known pods stay: pods do not
//! stop running when their record does.

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use denizen_state::run_dir::STATE_FILE;
use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError, StateReader};
use thiserror::Error;
use tokio::sync::watch as latest;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::watch::{FolderHints, FolderWatch};
use super::{Closed, Outlet, RETRY};
use denizen_model::{Event, LocalPod, PodName, PodSet};
use denizen_text::describe;

/// The last known state of the file, for the code that rebuilds it.
#[derive(Debug, Clone, Default)]
pub struct LastState {
    /// Its content when it was last readable.
    pub last: Option<Arc<State>>,
    /// The file is gone or is not valid. A file of a newer version, or one that is not ours, does
    /// not count.
    pub is_lost: bool,
}

#[derive(Debug, Clone)]
pub struct StateFileConfig {
    /// The run directory. It is created with mode 0700 if it is missing.
    pub run_dir: PathBuf,
}

/// Why the pods of this node cannot be updated.
#[derive(Debug, Error)]
enum StateFileError {
    #[error("cannot use the state file")]
    State(#[from] StateError),
    #[error("the state file is gone; the last known pods are kept")]
    Lost,
    #[error("cannot watch the run directory")]
    Watch(#[source] io::Error),
}

/// The pods in the state file, `None` if there is no file: for commands that work offline. Creates
/// nothing.
pub fn read(config: &StateFileConfig) -> Result<Option<PodSet>, StateError> {
    Ok(RunDir::open(&config.run_dir)?.read()?.map(|state| pod_set(&state)))
}

/// Whether the state file notes that the runtime calls the plugin.
pub fn plugin_was_called(config: &StateFileConfig) -> bool {
    let state = RunDir::open(&config.run_dir).and_then(|dir| dir.read());
    state.is_ok_and(|state| state.is_some_and(|state| state.plugin_was_called))
}

/// Sends the pods, now and after each change, until the receiver is closed. The first [`PodSet`]
/// comes with the first read that succeeds; until then the pods are unknown, which is not the same
/// as no pods. `seen` gets the state of the file.
pub async fn run(config: StateFileConfig, seen: latest::Sender<LastState>, outlet: Outlet) {
    let mut source = StateFileSource { outlet, seen, reader: StateReader::default(), sent: None };
    loop {
        if source.watch_run_dir(&config).await.is_err() {
            return;
        }
        tokio::select! {
            () = source.outlet.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

struct StateFileSource {
    outlet: Outlet,
    seen: latest::Sender<LastState>,
    reader: StateReader,
    sent: Option<PodSet>,
}

impl StateFileSource {
    /// Follows the run directory while it exists. If it cannot be watched, reads once.
    async fn watch_run_dir(&mut self, config: &StateFileConfig) -> Result<(), Closed> {
        let dir = match RunDir::create(&config.run_dir) {
            Ok(dir) => dir,
            Err(error) => {
                self.trouble(Some(error.into()));
                return Ok(());
            }
        };
        match FolderWatch::open(&config.run_dir) {
            Ok(watch) => self.follow(&dir, &watch).await,
            Err(error) => {
                let problem = self.read_and_send(&dir).await?;
                self.trouble(problem.or(Some(StateFileError::Watch(error))));
                Ok(())
            }
        }
    }

    /// Reads once, and again at every hint, until another directory is at the path.
    async fn follow(&mut self, dir: &RunDir, watch: &FolderWatch) -> Result<(), Closed> {
        let mut hints = FolderHints { overflow: true, ..FolderHints::default() };
        let mut check = interval(RETRY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if hints.overflow || hints.names.iter().any(|name| name == STATE_FILE) {
                let problem = self.read_and_send(dir).await?;
                self.trouble(problem);
            }
            if hints.gone || !watch.is_current() {
                return Ok(());
            }
            hints = FolderHints::default();
            tokio::select! {
                () = self.outlet.closed() => return Err(Closed),
                _ = check.tick() => {}
                changed = watch.changed(&mut hints) => if let Err(error) = changed {
                    self.trouble(Some(StateFileError::Watch(error)));
                    return Ok(());
                }
            }
        }
    }

    /// Reads the file and sends the pods if they changed. Returns why it cannot be used.
    async fn read_and_send(&mut self, dir: &RunDir) -> Result<Option<StateFileError>, Closed> {
        let known = self.sent.as_ref().is_some_and(|sent| sent.version.is_some());
        let pods = match self.reader.read(dir) {
            Ok(Some(state)) => {
                let state = Arc::new(state);
                self.seen.send_if_modified(|seen| {
                    let differs = seen.is_lost || seen.last.as_ref() != Some(&state);
                    (seen.last, seen.is_lost) = (Some(state.clone()), false);
                    differs
                });
                pod_set(&state)
            }
            Ok(None) if known => return Ok(Some(self.lost(StateFileError::Lost))),
            Ok(None) => PodSet::default(),
            Err(error @ StateError::Unreadable { .. }) => return Ok(Some(self.lost(error.into()))),
            Err(error) => return Ok(Some(error.into())),
        };
        if self.sent.as_ref() != Some(&pods) {
            self.sent = Some(pods.clone());
            self.outlet.send(vec![Event::Pods(pods)]).await?;
        }
        Ok(None)
    }

    fn lost(&self, error: StateFileError) -> StateFileError {
        self.seen.send_if_modified(|seen| !std::mem::replace(&mut seen.is_lost, true));
        error
    }

    /// Reports the current problem, and logs it once.
    fn trouble(&self, error: Option<StateFileError>) {
        let problems: Vec<String> = error.iter().map(|error| describe(error)).collect();
        if self.outlet.report(problems.clone()) {
            match problems.first() {
                Some(error) => {
                    warn!(error, "cannot read this node's pods; keeping the last known ones")
                }
                None => info!("the state file can be read again"),
            }
        }
    }
}

/// The attachments whose packets enter this node's network stack, sorted by id.
fn pod_set(state: &State) -> PodSet {
    let mut pods: Vec<LocalPod> = Vec::new();
    for (id, attachment) in &state.attachments {
        pods.extend(local_pod(id, attachment));
        for further in &attachment.further_interfaces {
            let id = further.id();
            // The further interface may also have had an ADD of its own.
            if !state.attachments.contains_key(&id) {
                pods.extend(local_pod(&id, further));
            }
        }
    }
    pods.sort_by(|one, other| one.id.cmp(&other.id));
    PodSet { pods, version: Some((state.epoch.clone(), state.generation)) }
}

fn local_pod(id: &AttachmentId, attachment: &Attachment) -> Option<LocalPod> {
    let interface: Arc<str> = attachment.input_interface()?.into();
    let mut ips = Vec::with_capacity(attachment.ips.len());
    // Packets never have IPv4-mapped addresses, but an older plugin may have recorded one.
    for ip in attachment.ips.iter().map(IpAddr::to_canonical) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    let pod = attachment.pod.as_ref();
    let link = attachment.host_interface.as_ref().filter(|_| attachment.bridge.is_some());
    let name = |is_in_vlan: bool| {
        link.filter(|_| attachment.l3_interface.is_some() == is_in_vlan)
            .map(|link| link.name.as_str().into())
    };
    Some(LocalPod {
        id: id.clone(),
        bridge: attachment.bridge.as_deref().or(attachment.l3_interface.as_deref()).map(Into::into),
        pod: pod.map(|pod| PodName {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
        }),
        uid: pod.and_then(|pod| pod.uid.as_deref()).map(Into::into),
        interface,
        port: name(false),
        vlan_port: name(true),
        ips,
        mac: attachment.mac.as_deref().and_then(|mac| mac.parse().ok()),
        host_ports: attachment.host_ports.iter().map(Into::into).collect(),
        added_at: attachment.added_at.as_str().into(),
        adopted: attachment.adopted,
        redirect: attachment.redirect.clone().map(Arc::new),
    })
}
