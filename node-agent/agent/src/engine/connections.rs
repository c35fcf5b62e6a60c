//! What changes mean for connections that conntrack holds.

use std::collections::HashSet;
use std::net::IpAddr;

use super::Engine;
use denizen_backend::Backend;
use denizen_packet::{TrackedFlow, Treatment};
use denizen_plan::conntrack::{StaleCandidates, StaleFilter};

impl<B: Backend> Engine<B> {
    /// The conntrack entries that may be stale, now that the plan is in the kernel. Each is
    /// returned once.
    pub fn take_stale_candidates(&mut self) -> StaleCandidates {
        self.candidate_tracker.take(self.planner.plan())
    }

    /// The conntrack entries that may be stale since the last [`Self::take_stale_candidates`].
    pub fn stale_candidates(&self) -> &StaleCandidates {
        self.candidate_tracker.candidates()
    }

    /// What becomes of these conntrack entries; of most, nothing. `awaited`: the addresses of pods
    /// whose ADDs wait.
    pub fn treatments(
        &self,
        candidates: &StaleCandidates,
        entries: Vec<TrackedFlow>,
        awaited: &HashSet<IpAddr>,
    ) -> Vec<(TrackedFlow, Treatment)> {
        let mut filter = StaleFilter::new(candidates, &self.planner, awaited);
        let treated = entries.into_iter();
        treated.filter_map(|entry| Some((entry, filter.treatment(&entry)?))).collect()
    }

    /// Notes that a search for these candidates is over.
    pub fn searched(&self, candidates: &StaleCandidates) {
        if let Some(firewall) = &self.firewall {
            firewall.departed_are_gone(self.plan(), candidates.departed());
        }
    }
}
