//! A folder of manifests: Services, EndpointSlices, Nodes and ServiceCIDRs as YAML or JSON files,
//! exactly the objects that the API would serve.
//!
//! Files are those named `*.yaml`, `*.yml` and `*.json`, links followed, without what begins with a
//! dot; a folder in the folder is not looked into. A YAML file has any number of documents, and any
//! object may be in a `List`. What is broken is named, left out, and the rest is used: a document,
//! an object or a single field. Kinds that say nothing about services are ignored. An object that
//! is in two files is the one of the file whose name comes first.
//!
//! The folder is watched, and what is told after any changes is what a first look at the folder
//! would tell.

mod decode;
mod file;
mod folder;
mod index;
mod problem;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use self::folder::{Folder, Look};
use super::watch::{FolderWatch, Hints};
use super::{Closed, Outlet, RETRY};
use crate::describe::describe;
use crate::model::{Event, Listing};

/// After a hint, further ones are waited for until none came for so long …
const QUIET: Duration = Duration::from_millis(5);

/// … but no longer than this: a folder that is never quiet is looked at all the same.
const PATIENCE: Duration = Duration::from_millis(50);

/// After so many checks without a hint the folder is looked at anyway: a link's target may be
/// outside, and some file systems send no hints.
const CHECKS_PER_LOOK: u32 = 10;

/// Where to look, and for whom.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder.
    pub folder: PathBuf,
    /// The node's name: other nodes' Node objects are ignored.
    pub node_name: String,
}

/// Why a folder cannot be used at all.
#[derive(Debug, Error)]
pub enum ManifestsError {
    /// It cannot be listed.
    #[error("cannot read the folder of manifests {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It cannot be watched.
    #[error("cannot watch the folder of manifests {}", path.display())]
    Watch {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Everything that the folder says now, and what in it is not used: for commands that work offline.
pub fn read(config: &Config) -> Result<(Vec<Event>, Vec<String>), ManifestsError> {
    let mut folder = Folder::new(config.folder.clone(), config.node_name.clone());
    let mut events = folder.scan(&Look::Everywhere)?;
    events.extend(LISTED);
    Ok((events, folder.problems()))
}

/// What one look at the folder completes.
const LISTED: [Event; 4] = [
    Event::Listed(Listing::Services),
    Event::Listed(Listing::Slices),
    Event::Listed(Listing::Node),
    Event::Listed(Listing::ServiceCidrs),
];

/// Tells what the folder says, now and whenever it changes, until nobody listens any more. While
/// the folder cannot be read, what it said last stays told; before it could be read once, nothing
/// is, and it is waited for.
pub async fn run(config: Config, outlet: Outlet) {
    let mut source = Source {
        path: config.folder.clone(),
        folder: Some(Folder::new(config.folder, config.node_name)),
        outlet,
        listed: false,
        problems: Vec::new(),
        trouble: None,
    };
    loop {
        match source.attend().await {
            Stop::Closed => return,
            Stop::Replaced => continue,
            Stop::Failed(error) => source.trouble(Some(&error)),
        }
        tokio::select! {
            () = source.outlet.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Why a folder is not followed any further.
enum Stop {
    Closed,
    /// Another folder, or none, is at the path now.
    Replaced,
    Failed(ManifestsError),
}

impl From<Closed> for Stop {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

struct Source {
    path: PathBuf,
    /// `None` only while a look is under way.
    folder: Option<Folder>,
    outlet: Outlet,
    listed: bool,
    problems: Vec<String>,
    trouble: Option<String>,
}

impl Source {
    /// Follows the folder while it is there. Where it cannot be watched, looks once.
    async fn attend(&mut self) -> Stop {
        let watch = FolderWatch::open(&self.path);
        let look = if watch.is_ok() { Look::Everywhere } else { Look::Touched(BTreeSet::new()) };
        if let Err(stop) = self.look(look).await {
            return stop;
        }
        match watch {
            Ok(watch) => {
                self.trouble(None);
                self.follow(&watch).await
            }
            Err(source) => Stop::Failed(ManifestsError::Watch { path: self.path.clone(), source }),
        }
    }

    /// Looks again at every hint, for as long as this is the folder.
    async fn follow(&mut self, watch: &FolderWatch) -> Stop {
        let mut check = interval(RETRY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checks = 0;
        loop {
            let mut hints = Hints::default();
            let hinted = tokio::select! {
                () = self.outlet.closed() => return Stop::Closed,
                _ = check.tick() => Ok(()),
                hinted = collect(watch, &mut hints) => hinted,
            };
            if let Err(source) = hinted {
                return Stop::Failed(ManifestsError::Watch { path: self.path.clone(), source });
            }
            if hints.gone || !watch.is_current() {
                return Stop::Replaced;
            }
            checks = if hints.is_empty() { checks + 1 } else { 0 };
            if hints.is_empty() && checks % CHECKS_PER_LOOK != 0 {
                continue;
            }
            let look = if hints.overflow { Look::Everywhere } else { Look::Touched(hints.names) };
            if let Err(stop) = self.look(look).await {
                return stop;
            }
        }
    }

    /// Looks at the folder, and tells what is different. Parsing a large file takes a while, in
    /// which a CNI ADD must not wait: it is done beside the runtime.
    async fn look(&mut self, look: Look) -> Result<(), Stop> {
        let mut folder = self.folder.take().expect("one look at a time, which puts it back");
        let looked = spawn_blocking(move || {
            let events = folder.scan(&look);
            (folder, events)
        });
        let (folder, events) = match looked.await {
            Ok(looked) => looked,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return Err(Stop::Closed),
            },
        };
        self.problems = folder.problems();
        self.folder = Some(folder);
        let mut events = events.map_err(Stop::Failed)?;
        if !self.listed {
            self.listed = true;
            events.extend(LISTED);
        }
        self.outlet.tell(events).await?;
        self.report();
        Ok(())
    }

    /// Reports that the folder cannot be followed, or can again, and traces it once.
    fn trouble(&mut self, error: Option<&ManifestsError>) {
        let trouble = error.map(|error| describe(error));
        if trouble != self.trouble {
            match &trouble {
                Some(error) => warn!(error, "manifests cannot be read; what was known stays"),
                None => info!("the folder of manifests can be followed again"),
            }
        }
        self.trouble = trouble;
        self.report();
    }

    fn report(&self) {
        self.outlet.report(self.trouble.iter().chain(&self.problems).cloned().collect());
    }
}

/// Waits for a hint, and then for those that come right after it.
async fn collect(watch: &FolderWatch, hints: &mut Hints) -> io::Result<()> {
    watch.changed(hints).await?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match timeout(QUIET, watch.changed(hints)).await {
            Ok(more) => more?,
            Err(_quiet) => break,
        }
    }
    Ok(())
}
