//! What this node announces, by the facts and the plan.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::Engine;
use crate::backend::Backend;
use crate::model::LocalPod;
use crate::plan::{
    AnnounceSettings, Announcements, Announcing, Drain, Surveyed, announcements, is_draining,
    single_pods,
};

impl<B: Backend> Engine<B> {
    /// Decides what this node announces; `None` while a first list is missing: half a picture would
    /// withdraw what is still wanted.
    pub fn announcements(
        &self,
        settings: &AnnounceSettings,
        drain: Drain,
        surveyed: &Surveyed,
    ) -> Option<Announcements> {
        let (plan, model) = (self.planner.plan(), self.planner.model());
        let (world, nodes) = (model.snapshot()?, model.nodes()?);
        let (_services, _pods) = (plan.services()?, plan.pods()?);
        Some(announcements(&Announcing {
            settings,
            plan,
            world,
            nodes: &nodes,
            is_gone: world.node().is_none() && !model.is_node_eligible(),
            drain,
            surveyed,
            is_rejected: &|frontend| !self.backend.rejected(frontend).is_empty(),
        }))
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
