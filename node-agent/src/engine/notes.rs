//! What is remembered for whoever asks how things are.

use std::time::Duration;

use super::Engine;
use crate::backend::{Affinity, Backend, Told};
use crate::describe::describe;
use crate::plan::Remark;
use crate::status::{LastSync, Status};

/// The most remarks of one kind that are shown: a person reads them.
const MOST_REMARKS: usize = 32;

impl<B: Told> Engine<B> {
    /// Remembers when the kernel was programmed last.
    pub fn note_sync(&mut self, sync: LastSync) {
        self.last_sync = Some(sync);
    }

    /// Remembers that so many stale entries were taken out of the connection tracking.
    pub fn note_flushed(&mut self, entries: usize) {
        self.flushed += entries as u64;
    }

    /// Remembers whether stale entries are being looked for.
    pub fn note_flushing(&mut self, flushing: bool) {
        self.flushing = flushing;
    }

    /// Remembers a repair, and how long it took from the kernel's word of the change.
    pub fn note_repair(&mut self, took: Duration) {
        self.drift_repaired += 1;
        self.last_repair = Some(took);
    }
}

impl<B: Backend> Engine<B> {
    /// Whether anything is refused and left out.
    pub fn refuses(&self) -> bool {
        !self.backend.refused().is_empty()
    }

    /// Whether most services are served all the same.
    pub fn serves(&self) -> bool {
        self.backend.serves()
    }

    /// What the agent knows and has programmed; `problems` are the sources' own.
    pub fn status(&mut self, problems: Vec<String>) -> Status {
        let mut errors = problems;
        errors.extend(self.last_error.clone());
        errors.extend(self.backend.contended().map(str::to_owned));
        errors.extend(self.backend.refused());
        errors.extend(self.lost_health_ports());
        let (wrong, surprising) = self.remarks();
        errors.extend(wrong);
        let missed_lookups = self.backend.missed_lookups().unwrap_or_else(|error| {
            errors.push(describe(&error));
            0
        });
        let affinity = self.backend.affinity().unwrap_or_else(|error| {
            errors.push(describe(&error));
            Affinity::default()
        });
        Status {
            warnings: affinity.warnings().chain(surprising).collect(),
            backend: self.policy.backend.to_string(),
            backend_why: String::new(),
            detect_local: self.policy.detector.to_string(),
            synced: self.synced,
            waiting_for: self.owed(),
            pods: self.model.pods().map_or(0, |pods| pods.pods.len()),
            unrecorded_interfaces: 0,
            services: self.model.service_count(),
            endpoints: self.plan.endpoint_count(),
            generation: self.programmed_pods.as_ref().map(|(_, generation)| generation.0),
            last_sync: self.last_sync.clone(),
            drift_repaired: self.drift_repaired,
            last_repair_milliseconds: self.last_repair.map(|took| took.as_secs_f64() * 1e3),
            missed_lookups,
            affinity,
            flushed: self.flushed,
            flushing: self.flushing,
            errors,
        }
    }

    /// What owners should know: what needs repair, and what may be as they mean it.
    fn remarks(&self) -> (Vec<String>, Vec<String>) {
        let (wrong, surprising): (Vec<&Remark>, Vec<&Remark>) =
            self.plan.remarks().partition(|remark| remark.is_error());
        let shown = |remarks: Vec<&Remark>| {
            let more = remarks.len().saturating_sub(MOST_REMARKS);
            let lines = remarks.iter().take(MOST_REMARKS).map(ToString::to_string);
            let more = (more > 0).then(|| format!("and {more} more like these"));
            lines.chain(more).collect()
        };
        (shown(wrong), shown(surprising))
    }
}
