//! Keeps the plugin's program and its entry in the CNI configuration installed.

use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::folder::{self, ConfigReport, FolderError};
use super::folder_lock::FolderLock;
use super::{InstallArgs, log, portmap_stays, put_bridge, put_plugin};
use denizen_source::watch::{FolderHints, FolderWatch};
use denizen_text::describe;

/// How often the folders are checked without an event: inotify does not report changes of a link's
/// target.
const AGAIN: Duration = Duration::from_secs(10);

/// The pause after an event, for a writer that writes several files, or one in pieces.
const QUIET: Duration = Duration::from_millis(100);

/// Keeps `plugin` and `entry` installed until a signal stops this program. They stay.
pub(super) async fn keep(args: &InstallArgs, plugin: &Path, entry: &Value) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut installer = Installer { args, plugin, entry, lock: None };
    let mut reported = None;
    loop {
        let (problems, watches) = installer.round().await;
        if reported.as_ref() != Some(&problems) {
            problems.iter().for_each(|problem| warn!(problem, "CNI configuration"));
            reported = Some(problems);
        }
        tokio::select! {
            biased;
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = watches.change() => {}
        }
    }
}

struct Installer<'a> {
    args: &'a InstallArgs,
    plugin: &'a Path,
    entry: &'a Value,
    /// Held as long as this program runs, so that no other removes the entry meanwhile.
    lock: Option<FolderLock>,
}

impl Installer<'_> {
    /// Installs what is missing. Returns the problems, and watches for the next change.
    async fn round(&mut self) -> (Vec<String>, Watches) {
        let mut problems = Vec::new();
        let prepared = self.prepare();
        // The watches begin before the check of the configuration, so that a later write ends the
        // wait, and after the attempt to write the program: a failed one does not cause the next.
        let mut watches = Watches {
            configurations: FolderWatch::open(&self.args.cni_conf_dir).ok(),
            programs: FolderWatch::open(&self.args.cni_bin_dir).ok(),
        };
        match prepared {
            Ok(()) => {
                if self.args.with_bridge
                    && let Err(error) = put_bridge(self.args, self.entry).await
                {
                    problems.push(describe(&error));
                    // The agent sends no notification when it knows the podCIDRs: look again.
                    watches.configurations = None;
                }
                problems.extend(check(&self.args.cni_conf_dir, self.entry));
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
        problems.extend(portmap_stays(self.args));
        (problems, watches)
    }

    /// Makes sure that the entry may be added, and that the program which it names is there.
    fn prepare(&mut self) -> anyhow::Result<()> {
        // Again in each round: the folder may have been replaced.
        self.lock = FolderLock::to_insert(&self.args.cni_conf_dir)?;
        put_plugin(self.plugin, &self.args.cni_bin_dir)?;
        Ok(())
    }
}

/// Adds denizen where it is missing. Returns the problems.
fn check(folder: &Path, entry: &Value) -> Vec<String> {
    match folder::insert(folder, entry) {
        Ok(report) => {
            log(
                &ConfigReport { unusable: Vec::new(), ..report.clone() },
                "added denizen to this CNI configuration",
            );
            report
                .unusable
                .iter()
                .map(|(path, why)| format!("{} is not changed: {why}", path.display()))
                .collect()
        }
        Err(error @ FolderError::Nothing(_)) => vec![format!("{error} yet: waiting for one")],
        Err(error) => vec![describe(&error)],
    }
}

/// Watches of the two folders; `None` where that is impossible now.
struct Watches {
    configurations: Option<FolderWatch>,
    programs: Option<FolderWatch>,
}

impl Watches {
    /// Waits until something may have changed, and until its writer may be done.
    async fn change(self) {
        let Some(configurations) = self.configurations else {
            return sleep(AGAIN / 10).await;
        };
        let change = async {
            tokio::select! {
                changed = noted(Some(&configurations)) => changed,
                changed = noted(self.programs.as_ref()) => changed,
            }
        };
        // A failed watch is opened again after a pause.
        if let Ok(Err(_)) = timeout(AGAIN, change).await {
            sleep(AGAIN).await;
        }
        sleep(QUIET).await;
    }
}

async fn noted(watch: Option<&FolderWatch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed(&mut FolderHints::default()).await,
        None => pending().await,
    }
}
