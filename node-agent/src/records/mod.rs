//! The agent's own hand on the state file, which the CNI plugin alone writes otherwise: records that nobody will remove
//! any more ([`prune`]) are taken out.
//!
//! It runs beside the sources and tells the model nothing: what it changes comes in through
//! [`crate::source::state_file`], as every other change of the file does. Blocking work (a lock that another holds, a
//! file that is synced) is done on a thread of its own, since the loop programs the kernel meanwhile.

pub mod prune;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch as latest;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::describe::describe;
use crate::source::Outlet;
use crate::source::node::Link;

/// After a change of links, so long is waited for the runtime, which removes the record of a pod that it ends by itself.
const SETTLE: Duration = Duration::from_secs(2);

/// How often the records are looked at when no link changes: a look may have failed, and a record may have been
/// written after its link was gone.
const AGAIN: Duration = Duration::from_secs(60);

/// How long a writer of the state file is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Where the records are.
#[derive(Debug, Clone)]
pub struct Config {
    /// The run directory.
    pub run_dir: PathBuf,
}

/// Keeps the records true until nobody listens to `outlet` any more. `links` are those of [`crate::source::node`], empty
/// until they were listed for the first time.
pub async fn keep(config: Config, mut links: latest::Receiver<Arc<[Link]>>, outlet: Outlet) {
    loop {
        tokio::select! {
            () = outlet.closed() => return,
            // An end of the list's source is no change; the look a minute later does no harm.
            _ = timeout(AGAIN, links.changed()) => {}
        }
        tokio::select! {
            () = outlet.closed() => return,
            () = sleep(SETTLE) => {}
        }
        let listed = links.borrow_and_update().clone();
        let problem = prune::prune(&config.run_dir, &listed).await.err();
        let problems: Vec<String> = problem.iter().map(|error| describe(error)).collect();
        if outlet.report(problems.clone())
            && let Some(error) = problems.first()
        {
            warn!(error, "records of pods that are gone are kept");
        }
    }
}
