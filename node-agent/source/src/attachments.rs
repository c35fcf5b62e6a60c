//! The agent's changes to the state file, in addition to the CNI plugin's. It adds pods that were
//! attached without denizen, at start ([`adopt`]) and later ([`find()`]); follows interfaces that
//! are renamed or moved ([`follow()`]); removes records that no DEL will remove ([`prune`]);
//! rebuilds a lost file; and notes that the plugin was called. It also finds the pods that the
//! plugin's `redirect` selects.
//!
//! This module runs beside the sources and sends the model nothing: its changes come in through
//! [`crate::state_file`], like every other change of the state file. Blocking work (waiting for the
//! lock, syncing a file) runs on a thread of its own, since the loop must go on programming the
//! kernel.

#![expect(clippy::disallowed_methods, reason = "the keeping of records is paced by its own clock")]

pub mod adopt;
mod cache;
mod called;
mod find;
mod follow;
mod links;
mod missing;
mod pod_ends;
pub mod prune;
mod selection;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use denizen_state::StateError;
use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

pub use self::cache::is_cached;
pub use self::find::{FindingSenders, find};
pub use self::follow::follow;
pub use self::missing::{NotPods, Unrecorded};
pub use self::selection::{Selected, warning};
use crate::Outlet;
use crate::node::Link;
use crate::state_file::LastState;
use denizen_text::describe;

/// A lost file is rebuilt after this time, unless it is back by then.
const REBUILD_AFTER: Duration = Duration::from_secs(1);

/// The wait between a change of links and a check of the records: when the runtime stops a pod, its
/// DEL removes the record.
const SETTLE: Duration = Duration::from_secs(2);

/// How often the records are checked if no link changes: a check may have failed, and a record may
/// have been written after its link was gone.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// How long to wait for another writer's lock on the state file.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Where records and cached results are.
#[derive(Debug, Clone)]
pub struct AttachmentsConfig {
    pub run_dir: PathBuf,
    /// The folder in which the container runtime caches the results of its ADDs; `None` if no pod
    /// is to be adopted.
    pub cni_cache: Option<PathBuf>,
    /// Whether the agent serves host ports.
    pub host_ports: bool,
    /// Interfaces that look like a pod's but are not.
    pub not_pods: NotPods,
}

/// What the sources publish.
#[derive(Debug, Clone)]
pub struct PublishedAttachments {
    /// The links from [`crate::node`], empty until they were listed once.
    pub links: latest::Receiver<Arc<[Link]>>,
    /// The state file as [`crate::state_file`] last read it.
    pub state_file: latest::Receiver<LastState>,
}

/// Adopts the pods that were attached without denizen. Failures are logged: the agent starts
/// anyway.
pub async fn adopt_at_start(config: &AttachmentsConfig) {
    let config = config.clone();
    match spawn_blocking(move || adopt::adopt_pods(&config)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error = describe(&error), "no pod could be adopted"),
        Err(error) => warn!(error = describe(&error), "no pod could be adopted"),
    }
}

/// Rebuilds a lost file and prunes records, until `outlet` is closed.
pub async fn keep(config: AttachmentsConfig, mut shown: PublishedAttachments, outlet: Outlet) {
    loop {
        let wait = tokio::select! {
            () = outlet.closed() => return,
            // This also returns if the source of links has ended; the extra check does no harm.
            _ = timeout(CHECK_EVERY, shown.links.changed()) => SETTLE,
            _ = shown.state_file.wait_for(|seen| seen.is_lost) => REBUILD_AFTER,
        };
        tokio::select! {
            () = outlet.closed() => return,
            () = sleep(wait) => {}
        }
        let links = shown.links.borrow_and_update().clone();
        let seen = shown.state_file.borrow().clone();
        let noted = called::remember(&config.run_dir, &seen).await;
        let rebuilt = if seen.is_lost { rebuild(&config, seen).await } else { Ok(()) };
        let pruned = prune::prune(&config.run_dir, &links).await;
        let changed = [noted, pruned].map(|result| result.err().map(|error| describe(&error)));
        let problems: Vec<String> = [rebuilt.err()].into_iter().chain(changed).flatten().collect();
        if outlet.report(problems.clone())
            && let Some(error) = problems.first()
        {
            warn!(error, "cannot correct the records of pods");
        }
    }
}

async fn rebuild(config: &AttachmentsConfig, seen: LastState) -> Result<(), String> {
    let config = config.clone();
    let rebuilt: Result<Result<(), StateError>, _> =
        spawn_blocking(move || adopt::rebuild(&config, seen.last.as_deref())).await;
    let rebuilt = rebuilt.map_err(|error| describe(&error))?;
    rebuilt.map_err(|error| format!("cannot rebuild the state file: {}", describe(&error)))
}
