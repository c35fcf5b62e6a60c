//! The agent's own hand on the state file, which the CNI plugin alone writes otherwise: pods that
//! were attached without denizen are put in, at the start ([`adopt`]) and later ([`find()`]),
//! interfaces that are renamed or moved are followed ([`follow()`]), records that nobody will
//! remove any more are taken out ([`prune`]), and a file that was lost is written anew.
//!
//! It runs beside the sources and tells the model nothing: what it changes comes in through
//! [`crate::source::state_file`], as every other change of the file does. Blocking work (a lock
//! that another holds, a file that is synced) is done on a thread of its own, since the loop
//! programs the kernel meanwhile.

pub mod adopt;
mod cache;
mod find;
mod follow;
mod links;
mod missing;
pub mod prune;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use denizen_shared::error::StateError;
use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

pub use self::find::find;
pub use self::follow::follow;
pub use self::missing::{NotPods, Unrecorded};
use crate::describe::describe;
use crate::source::Outlet;
use crate::source::node::Link;
use crate::source::state_file::Seen;

/// A file that is lost is written anew after this, unless it is back by then.
const MEND: Duration = Duration::from_secs(1);

/// After a change of links, so long is waited for the runtime, which removes the record of a pod
/// that it ends by itself.
const SETTLE: Duration = Duration::from_secs(2);

/// How often the records are looked at when no link changes: a look may have failed, and a record
/// may have been written after its link was gone.
const AGAIN: Duration = Duration::from_secs(60);

/// How long a writer of the state file is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Where the records are.
#[derive(Debug, Clone)]
pub struct Config {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Where the container runtime keeps the results of its ADDs; `None` where no pod is to be
    /// adopted.
    pub cni_cache: Option<PathBuf>,
    /// Interfaces that look like a pod's and are none.
    pub not_pods: NotPods,
}

/// What the sources show.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The links of [`crate::source::node`], empty until they were listed for the first time.
    pub links: latest::Receiver<Arc<[Link]>>,
    /// The state file, as [`crate::source::state_file`] saw it.
    pub state_file: latest::Receiver<Seen>,
}

/// Adopts the pods that were attached without denizen. What is wrong is logged: the agent starts
/// all the same.
pub async fn adopt_at_start(config: &Config) {
    let config = config.clone();
    match spawn_blocking(move || adopt::adopt_pods(&config)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error = describe(&error), "no pod could be adopted"),
        Err(error) => warn!(error = describe(&error), "no pod could be adopted"),
    }
}

/// Keeps the records true until nobody listens to `outlet` any more.
pub async fn keep(config: Config, mut shown: Shown, outlet: Outlet) {
    loop {
        let wait = tokio::select! {
            () = outlet.closed() => return,
            // An end of the list's source is no change; the look a minute later does no harm.
            _ = timeout(AGAIN, shown.links.changed()) => SETTLE,
            _ = shown.state_file.wait_for(|seen| seen.is_lost) => MEND,
        };
        tokio::select! {
            () = outlet.closed() => return,
            () = sleep(wait) => {}
        }
        let links = shown.links.borrow_and_update().clone();
        let seen = shown.state_file.borrow().clone();
        let mended = if seen.is_lost { mend(&config, seen).await } else { Ok(()) };
        let pruned = prune::prune(&config.run_dir, &links).await;
        let problems: Vec<String> = [mended.err(), pruned.err().map(|error| describe(&error))]
            .into_iter()
            .flatten()
            .collect();
        if outlet.report(problems.clone())
            && let Some(error) = problems.first()
        {
            warn!(error, "the records of pods are not as they should be");
        }
    }
}

async fn mend(config: &Config, seen: Seen) -> Result<(), String> {
    let config = config.clone();
    let mended: Result<Result<(), StateError>, _> =
        spawn_blocking(move || adopt::rebuild(&config, seen.last.as_deref())).await;
    let mended = mended.map_err(|error| describe(&error))?;
    mended.map_err(|error| format!("the state file cannot be written anew: {}", describe(&error)))
}
