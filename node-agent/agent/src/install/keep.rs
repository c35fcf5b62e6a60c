//! Keeps the plugin's entry in the CNI configuration.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::folder::{self, ConfigReport, FolderError};
use super::folder_lock::FolderLock;
use super::{InstallArgs, log, portmap_stays, put_bridge};
use denizen_source::watch::{FolderHints, FolderWatch};
use denizen_text::describe;

/// How often the folder is checked without an event: inotify does not report changes of a link's
/// target.
const AGAIN: Duration = Duration::from_secs(10);

/// The pause after an event, for a writer that writes several files, or one in pieces.
const QUIET: Duration = Duration::from_millis(100);

/// Keeps `entry` in the configuration until a signal stops this program. It stays.
pub(super) async fn keep(args: &InstallArgs, entry: &Value) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut installer = Installer { args, entry, lock: None };
    let mut reported = None;
    loop {
        let (problems, watch) = installer.round().await;
        if reported.as_ref() != Some(&problems) {
            problems.iter().for_each(|problem| warn!(problem, "CNI configuration"));
            reported = Some(problems);
        }
        tokio::select! {
            biased;
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = change(watch) => {}
        }
    }
}

struct Installer<'a> {
    args: &'a InstallArgs,
    entry: &'a Value,
    /// Held as long as this program runs, so that no other removes the entry meanwhile.
    lock: Option<FolderLock>,
}

impl Installer<'_> {
    /// Adds the entry where it is missing. Returns the problems, and a watch for the next change.
    async fn round(&mut self) -> (Vec<String>, Option<FolderWatch>) {
        let folder = &self.args.cni_conf_dir;
        let mut problems = Vec::new();
        // The watch begins before the check, so that a later write ends the wait.
        let mut watch = FolderWatch::open(folder).ok();
        match FolderLock::to_insert(folder) {
            Ok(lock) => {
                // Again in each round: the folder may have been replaced.
                self.lock = lock;
                if self.args.with_bridge
                    && let Err(error) = put_bridge(self.args, self.entry).await
                {
                    problems.push(describe(&error));
                    // The agent sends no notification when it knows the podCIDRs: look again.
                    watch = None;
                }
                problems.extend(check(folder, self.entry));
            }
            Err(error) => problems.push(describe(&error)),
        }
        problems.extend(portmap_stays(self.args));
        (problems, watch)
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

/// Waits until the folder may have changed, and until its writer may be done.
async fn change(watch: Option<FolderWatch>) {
    let Some(watch) = watch else {
        return sleep(AGAIN / 10).await;
    };
    // A failed watch is opened again after a pause.
    if let Ok(Err(_)) = timeout(AGAIN, watch.changed(&mut FolderHints::default())).await {
        sleep(AGAIN).await;
    }
    sleep(QUIET).await;
}
