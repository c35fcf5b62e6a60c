//! A folder of manifests: Services, EndpointSlices, Nodes, ServiceCIDRs, Namespaces, Pods and
//! NetworkPolicies as YAML or JSON files, exactly the objects that the API would serve.
//!
//! The source reads `*.yaml`, `*.yml` and `*.json`, follows links, skips names that begin with a
//! dot, and does not descend into subfolders. A YAML file has any number of documents, and any
//! object may be in a `List`. A broken document, object or field is named and skipped; the rest is
//! used. Other kinds are ignored, and those of a feature that is off. If two files have the same
//! object, the file whose name sorts first wins.
//!
//! The folder is watched. After any changes, the result equals that of a fresh read of the folder.

mod file;
mod folder;
mod index;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use self::folder::{Folder, Reread};
use super::watch::{FolderHints, FolderWatch};
use super::{Closed, Features, Outlet, RETRY};
use denizen_model::Event;
use denizen_text::describe;

/// After a hint, the source collects further ones until none came for this long …
const QUIET: Duration = Duration::from_millis(5);

/// … but no longer than this: a folder that is never quiet must be read too.
const PATIENCE: Duration = Duration::from_millis(50);

/// The folder is read after this many checks without a hint: the target of a link may be outside,
/// and some file systems send no hints.
const CHECKS_PER_READ: u32 = 10;

/// Which folder, and for which node.
#[derive(Debug, Clone)]
pub struct ManifestsConfig {
    pub folder: PathBuf,
    /// The node's name: other nodes' Node objects are ignored.
    pub node_name: String,
    /// The features whose objects are read.
    pub features: Features,
}

/// Why a folder cannot be used at all.
#[derive(Debug, Error)]
pub enum ManifestsError {
    #[error("cannot read the folder of manifests {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot watch the folder of manifests {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The whole content of the folder, and the problems in it: for commands that work offline.
pub fn read(config: &ManifestsConfig) -> Result<(Vec<Event>, Vec<String>), ManifestsError> {
    let mut folder = Folder::new(config);
    let mut events = folder.scan(&Reread::Everywhere)?;
    events.extend(config.features.listed());
    Ok((events, folder.problems()))
}

/// Sends the content of the folder, now and after each change, until the receiver is closed. While
/// the folder cannot be read, the last content stays in force. Until the first read succeeds, the
/// source sends nothing and waits.
pub async fn run(config: ManifestsConfig, outlet: Outlet) {
    let mut source = ManifestsSource {
        folder: Some(Folder::new(&config)),
        path: config.folder,
        features: config.features,
        outlet,
        listed: false,
        problems: Vec::new(),
        trouble: None,
    };
    loop {
        match source.watch_folder().await {
            FolderLost::Closed => return,
            FolderLost::Replaced => continue,
            FolderLost::Failed(error) => source.trouble(Some(&error)),
        }
        tokio::select! {
            () = source.outlet.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Why the source stops following this folder.
enum FolderLost {
    Closed,
    /// Another folder, or none, is at the path now.
    Replaced,
    Failed(ManifestsError),
}

impl From<Closed> for FolderLost {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

struct ManifestsSource {
    path: PathBuf,
    features: Features,
    /// `None` only while a read is in progress.
    folder: Option<Folder>,
    outlet: Outlet,
    listed: bool,
    problems: Vec<String>,
    trouble: Option<String>,
}

impl ManifestsSource {
    /// Follows the folder while it exists. If it cannot be watched, reads it once.
    async fn watch_folder(&mut self) -> FolderLost {
        let watch = FolderWatch::open(&self.path);
        let look =
            if watch.is_ok() { Reread::Everywhere } else { Reread::Touched(BTreeSet::new()) };
        if let Err(stop) = self.read_and_send(look).await {
            return stop;
        }
        match watch {
            Ok(watch) => {
                self.trouble(None);
                self.follow(&watch).await
            }
            Err(source) => {
                FolderLost::Failed(ManifestsError::Watch { path: self.path.clone(), source })
            }
        }
    }

    /// Reads again at every hint, until another folder is at the path.
    async fn follow(&mut self, watch: &FolderWatch) -> FolderLost {
        let mut check = interval(RETRY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checks = 0;
        loop {
            let mut hints = FolderHints::default();
            let hinted = tokio::select! {
                () = self.outlet.closed() => return FolderLost::Closed,
                _ = check.tick() => Ok(()),
                hinted = collect(watch, &mut hints) => hinted,
            };
            if let Err(source) = hinted {
                return FolderLost::Failed(ManifestsError::Watch {
                    path: self.path.clone(),
                    source,
                });
            }
            if hints.gone || !watch.is_current() {
                return FolderLost::Replaced;
            }
            checks = if hints.is_empty() { checks + 1 } else { 0 };
            if hints.is_empty() && checks % CHECKS_PER_READ != 0 {
                continue;
            }
            let look =
                if hints.overflow { Reread::Everywhere } else { Reread::Touched(hints.names) };
            if let Err(stop) = self.read_and_send(look).await {
                return stop;
            }
        }
    }

    /// Reads the folder and sends what changed. It runs in a blocking thread: parsing a large file
    /// takes a while, and a CNI ADD must not wait for it.
    async fn read_and_send(&mut self, look: Reread) -> Result<(), FolderLost> {
        let mut folder = self.folder.take().expect("reads do not overlap, and each puts it back");
        let looked = spawn_blocking(move || {
            let events = folder.scan(&look);
            (folder, events)
        });
        let (folder, events) = match looked.await {
            Ok(looked) => looked,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return Err(FolderLost::Closed),
            },
        };
        self.problems = folder.problems();
        self.folder = Some(folder);
        let mut events = events.map_err(FolderLost::Failed)?;
        if !self.listed {
            self.listed = true;
            // One read of the folder completes all lists.
            events.extend(self.features.listed());
        }
        self.outlet.send(events).await?;
        self.report();
        Ok(())
    }

    /// Reports that the folder cannot be followed, or can again, and logs it once.
    fn trouble(&mut self, error: Option<&ManifestsError>) {
        let trouble = error.map(|error| describe(error));
        if trouble != self.trouble {
            match &trouble {
                Some(error) => {
                    warn!(error, "manifests cannot be read; keeping the last known state")
                }
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

/// Waits for a hint, and collects those that follow closely.
async fn collect(watch: &FolderWatch, hints: &mut FolderHints) -> io::Result<()> {
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
