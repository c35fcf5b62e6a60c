//! What the running agent knows and has programmed, for people and programs.

pub mod health;
pub mod metrics;
pub mod view;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::Affinity;
use crate::printable::Printable;

/// The answer to `denizen-agent status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Which backend programs the kernel.
    pub backend: String,
    /// Why that one.
    #[serde(default)]
    pub backend_why: String,
    /// How local traffic is told apart, as on the command line.
    pub detect_local: String,
    /// All of the first full set of rules is in the kernel.
    pub synced: bool,
    /// What is still waited for before services are programmed.
    pub waiting_for: Vec<String>,
    /// Attachments of local pods that are programmed.
    pub pods: usize,
    /// Interfaces that have looked like a pod's for a while and have no record; a warning names
    /// them.
    #[serde(default)]
    pub unrecorded_interfaces: usize,
    /// Services that are known.
    pub services: usize,
    /// Endpoints that connections are forwarded to, counted once for each service port.
    pub endpoints: usize,
    /// The state file's generation that is programmed; `None` while there is no file.
    pub generation: Option<u64>,
    /// The last time that something was programmed, and what it made stale flushed.
    pub last_sync: Option<LastSync>,
    /// How often somebody else's change to the agent's tables was repaired.
    pub drift_repaired: u64,
    /// How long the last such repair took, from the kernel's word of it to the repaired table.
    pub last_repair_milliseconds: Option<f64>,
    /// Packets that found no endpoint in any slot, dropped to be sent again. Always 0, or a bug.
    pub missed_lookups: u64,
    /// Clients that are remembered for session affinity.
    #[serde(default)]
    pub affinity: Affinity,
    /// Stale entries that were taken out of the connection tracking.
    pub flushed: u64,
    /// Whether what the last change made stale is still being looked for.
    pub flushing: bool,
    /// What is wrong right now.
    pub errors: Vec<String>,
    /// What may be wrong, and cannot be known from here.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One programming of the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastSync {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// How long it took, from the last event to the kernel's acknowledgement.
    pub milliseconds: f64,
}

impl LastSync {
    /// At this time (RFC 3339 in UTC), having taken so long.
    pub fn new(at: String, took: Duration) -> Self {
        Self { at, milliseconds: took.as_secs_f64() * 1e3 }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let synced = match (self.synced, self.waiting_for.is_empty()) {
            (true, _) => "all programmed".to_owned(),
            (false, true) => "not programmed yet".to_owned(),
            (false, false) => format!("waiting for {}", self.waiting_for.join(", ")),
        };
        let generation = self.generation.map(|g| format!(" (state file generation {g})"));
        let last = self
            .last_sync
            .as_ref()
            .map(|last| format!("{} in {:.1} ms", last.at, last.milliseconds));
        let repair = self.last_repair_milliseconds.map(|ms| format!(", the last in {ms:.1} ms"));
        let times = if self.drift_repaired == 1 { "time" } else { "times" };
        let lines = [
            ("state", synced),
            ("backend", format!("{}: {}", self.backend, self.backend_why)),
            ("detect-local", self.detect_local.clone()),
            ("local pods", format!("{}{}", self.pods, generation.unwrap_or_default())),
            ("services", self.services.to_string()),
            ("endpoints", self.endpoints.to_string()),
            ("last sync", last.unwrap_or("never".to_owned())),
            (
                "drift repaired",
                format!("{} {times}{}", self.drift_repaired, repair.unwrap_or_default()),
            ),
            ("missed lookups", self.missed_lookups.to_string()),
            ("kept clients", self.affinity.to_string()),
            (
                "flushed flows",
                format!(
                    "{}{}",
                    self.flushed,
                    if self.flushing { ", and looking for more" } else { "" }
                ),
            ),
        ];
        let errors = self.errors.iter().map(|error| ("error", error.clone()));
        let warnings = self.warnings.iter().map(|warning| ("warning", warning.clone()));
        let none = self.errors.is_empty().then(|| ("errors", "none".to_owned()));
        lines
            .into_iter()
            .chain(errors)
            .chain(none)
            .chain(warnings)
            .try_for_each(|(what, value)| writeln!(f, "{what:<16}{}", Printable(&value)))
    }
}
