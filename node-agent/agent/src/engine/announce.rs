//! What this node announces, by the facts and the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::Engine;
use denizen_backend::Backend;
use denizen_model::LocalPod;
use denizen_plan::{
    AnnouncePlan, AnnounceSettings, Announcing, Changes, Drain, Noted, Recorded, Surveyed,
    concerned, is_draining, single_pods,
};

impl<B: Backend> Engine<B> {
    /// Decides what this node announces, by what has changed since the last call. Returns what was
    /// not so before; `None`, and nothing is decided, while a first list is missing: half a picture
    /// would withdraw what is still wanted.
    pub fn announce(
        &mut self,
        decided: &mut AnnouncePlan,
        settings: &AnnounceSettings,
        drain: Drain,
        surveyed: &Surveyed,
        recorded: &BTreeMap<IpAddr, Recorded>,
    ) -> Option<Noted> {
        let (plan, model) = (self.planner.plan(), self.planner.model());
        let (world, nodes) = (model.snapshot()?, model.nodes()?);
        let (_services, _pods) = (plan.services()?, plan.pods()?);
        let concerned = self.concerned.replace(BTreeSet::new());
        let by = Announcing {
            settings,
            plan,
            world,
            nodes: &nodes,
            is_gone: world.node().is_none() && !model.is_node_eligible(),
            drain,
            surveyed,
            recorded,
            rejects: self.has_rejected(),
            is_rejected: &|frontend| !self.backend.rejected(frontend).is_empty(),
        };
        Some(decided.update(&by, concerned.as_ref()))
    }

    /// Notes the services that a change concerns, if anybody asks for announcements.
    pub(super) fn note_concerned(&mut self, changes: &Changes) {
        if let Some(noted) = &mut self.concerned {
            noted.extend(concerned(self.planner.plan(), changes).cloned());
        }
    }

    /// The pods that are announced by themselves, each with its address; `None` while they are not
    /// known.
    pub fn single_pods(&self, settings: &AnnounceSettings) -> Option<Vec<(&LocalPod, IpAddr)>> {
        let (plan, nodes) = (self.planner.plan(), self.planner.model().nodes()?);
        plan.pods()?;
        Some(single_pods(settings, &nodes, plan.recorded()))
    }

    /// The ranges of cluster IPs; `None` while they are not known.
    pub fn service_ranges(&self) -> Option<Vec<IpNetwork>> {
        Some(self.planner.model().snapshot()?.service_ranges().collect())
    }

    /// Whether this node should lose its traffic; `None` while that is not known.
    pub fn is_draining(&self, settings: &AnnounceSettings) -> Option<bool> {
        let world = self.planner.model().snapshot()?;
        Some(is_draining(world.node(), settings))
    }
}
