//! Removes the rules of the CNI plugin portmap for pods that are gone, while Denizen serves host
//! ports. Once portmap is out of the runtime's CNI configuration, no DEL calls it any more.
//!
//! Rules of living pods stay. They lead to the same pods as Denizen's, and if portmap comes back
//! into the configuration, it finds its rules as it left them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::now;
use denizen_backend::portmap::{self, PortmapError};
use denizen_plan::Plan;
use denizen_source::attachments::is_cached;
use denizen_state::AttachmentId;
use denizen_text::describe;

/// How often to look for rules: an ADD that began with an older configuration still calls portmap.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);
/// A container without a record and a cached result for this long is gone. A shorter time would not
/// show that: during an ADD, portmap's rules are made before both.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// How long a departed pod is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

type ContainerId = Arc<str>;

/// The pods that the agent knows of.
#[derive(Debug, Clone, Default)]
struct Recorded {
    is_known: bool,
    now: BTreeSet<ContainerId>,
    /// Containers that had a record, and since when they have none.
    departed: BTreeMap<ContainerId, Instant>,
}

/// What is known of portmap's rules.
pub(super) struct PortmapRules {
    recorded: watch::Sender<Recorded>,
    due: Arc<Notify>,
    /// The containers that have rules.
    containers: watch::Receiver<BTreeSet<ContainerId>>,
}

impl PortmapRules {
    /// Starts the task that removes rules. Also returns the task's current problems.
    pub fn start(cni_cache: Option<PathBuf>) -> (Self, watch::Receiver<Vec<String>>) {
        let (recorded, of_agent) = watch::channel(Recorded::default());
        let (found, containers) = watch::channel(BTreeSet::new());
        let (problem, problems) = watch::channel(Vec::new());
        let due = Arc::new(Notify::new());
        let remover =
            Remover { recorded: of_agent, due: due.clone(), cni_cache, missing: BTreeMap::new() };
        tokio::spawn(remover.run(found, problem));
        (Self { recorded, due, containers }, problems)
    }

    /// Takes over the plan's recorded pods.
    pub fn update(&mut self, plan: &Plan) {
        let ids = plan.recorded().iter().map(|pod| container(&pod.id));
        let present: BTreeSet<ContainerId> = ids.map(ContainerId::from).collect();
        let at = now();
        let is_first = !self.recorded.borrow().is_known;
        self.recorded.send_modify(|recorded| {
            let gone = recorded.now.difference(&present).map(|id| (id.clone(), at));
            recorded.departed.extend(gone);
            recorded.departed.retain(|id, since| {
                !present.contains(id) && at.duration_since(*since) < REMEMBERED
            });
            (recorded.is_known, recorded.now) = (true, present);
        });
        let left = |id| self.containers.borrow().contains(id);
        if is_first || self.recorded.borrow().departed.keys().any(left) {
            self.due.notify_one();
        }
    }

    /// Whether there are still rules for a pod that is gone.
    pub fn has_left(&self, id: &AttachmentId) -> bool {
        let container = container(id);
        let is_recorded = self.recorded.borrow().now.contains(container);
        !is_recorded && self.containers.borrow().contains(container)
    }

    /// Waits until the set of containers with rules changes.
    pub async fn due(&mut self) {
        if self.containers.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// The container of an attachment.
fn container(id: &AttachmentId) -> &str {
    id.0.split_once('/').map_or(&*id.0, |(container, _)| container)
}

/// The task that reads portmap's rules and removes those of pods that are gone.
struct Remover {
    recorded: watch::Receiver<Recorded>,
    due: Arc<Notify>,
    cni_cache: Option<PathBuf>,
    /// Containers that have rules, but neither a record nor a cached result, and since when.
    missing: BTreeMap<ContainerId, Instant>,
}

impl Remover {
    async fn run(
        mut self,
        found: watch::Sender<BTreeSet<ContainerId>>,
        problem: watch::Sender<Vec<String>>,
    ) {
        while !found.is_closed() {
            // Iptables may wait for its lock.
            let Ok((back, result)) = spawn_blocking(move || self.search()).await else { return };
            self = back;
            let error = result.as_ref().err().map(|error| describe(error));
            problem.send_if_modified(|shown| {
                let now: Vec<String> = error.into_iter().collect();
                let is_new = *shown != now;
                now.iter().filter(|_| is_new).for_each(|problem| warn!(problem, "portmap"));
                *shown = now;
                is_new
            });
            if let Ok(containers) = result {
                found.send_if_modified(|known| replace(known, containers.clone()) != containers);
            }
            let pause = if self.missing.is_empty() { SEARCH_INTERVAL } else { GONE_AFTER };
            let _ = timeout(pause, self.due.notified()).await;
            // Pods often end together: collect them.
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Removes the rules of pods that are gone. Returns the containers that still have rules.
    fn search(mut self) -> (Self, Result<BTreeSet<ContainerId>, PortmapError>) {
        let result = self.clean();
        (self, result)
    }

    fn clean(&mut self) -> Result<BTreeSet<ContainerId>, PortmapError> {
        let mut containers = portmap::containers()?;
        let recorded = self.recorded.borrow_and_update().clone();
        let at = now();
        // A container that may still exist keeps its rules.
        let is_missing = |id: &ContainerId| {
            let cached = self.cni_cache.as_deref().and_then(|folder| is_cached(folder, id));
            recorded.is_known && !recorded.now.contains(id) && cached == Some(false)
        };
        let missing: Vec<ContainerId> =
            containers.iter().filter(|id| is_missing(id)).cloned().collect();
        self.missing.retain(|id, _| missing.contains(id));
        for id in missing {
            self.missing.entry(id).or_insert(at);
        }
        let is_gone = |id: &str| {
            recorded.departed.contains_key(id)
                || self.missing.get(id).is_some_and(|since| at - *since >= GONE_AFTER)
        };
        let gone: BTreeSet<ContainerId> =
            containers.iter().filter(|id| is_gone(id)).cloned().collect();
        if !gone.is_empty() {
            portmap::remove(&|id| gone.contains(id))?;
            for id in &gone {
                info!(container = &**id, "removed portmap's rules of a pod that is gone");
            }
            self.missing.retain(|id, _| !gone.contains(id));
            containers.retain(|id| !gone.contains(id));
        }
        Ok(containers)
    }
}
