//! Routes, announcements and BIRD, as one feature of the agent's loop. The loop keeps the order: an
//! address is withdrawn before its rules go, and announced after they are there.

use std::future::pending;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;
use denizen_model::LocalPod;
use denizen_nft::Kernel;
use denizen_plan::PlanChanges;
use denizen_plan::explain::Announced;

use crate::announcer::{Announcer, ProgrammedPlan};
use crate::bird::{BirdController, with_peers};
use crate::direct::DirectRouter;
use crate::{RoutingReport, RoutingSettings, SendNotice};

/// Routes to other nodes' pods, announcements, and BIRD: each `None` if it is off.
pub struct Routing {
    direct_router: Option<DirectRouter>,
    announcer: Option<Announcer>,
    bird: Option<BirdController>,
}

impl Routing {
    /// Starts what is on, and removes the routes and tables that an earlier run left of what is
    /// off. `kernel` is for the tables of announced addresses.
    ///
    /// # Errors
    /// When netlink cannot be opened, or there can be no directory for BIRD.
    pub fn start(
        settings: &RoutingSettings,
        run_dir: &Path,
        send_notice: SendNotice,
        kernel: Kernel,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            bird: BirdController::start(settings.announced(), run_dir)
                .context("cannot make BIRD's directory")?,
            direct_router: DirectRouter::start(settings, send_notice.clone()),
            announcer: Announcer::open(settings, send_notice, kernel)?,
        })
    }

    /// The portid by which notifications name changes of the tables of announced addresses.
    pub fn portid(&self) -> Option<u32> {
        self.announcer.as_ref().map(Announcer::portid)
    }

    /// Takes over new facts, and what they change in the plan. Nothing is announced or withdrawn.
    pub fn update(&mut self, programmed: &impl ProgrammedPlan, changes: &PlanChanges) {
        let (model, plan) = (programmed.planner().model(), programmed.planner().plan());
        self.direct_router.iter().for_each(|router| router.update(model.nodes()));
        self.bird.iter().for_each(|bird| bird.update(model));
        self.announcer.iter_mut().for_each(|announcer| announcer.update(plan, changes));
    }

    /// Withdraws what is no longer to be announced: this comes before its rules go. With
    /// `full_resync`, all tables are compared with the kernel.
    pub fn withdraw(&mut self, programmed: &impl ProgrammedPlan, full_resync: bool) {
        let announcer = self.announcer.iter_mut();
        announcer.for_each(|announcer| announcer.withdraw(programmed, full_resync));
    }

    /// Announces what is decided: this comes after its rules are in the kernel. Returns whether
    /// there are new announcements.
    pub fn announce(&mut self, programmed: &impl ProgrammedPlan) -> bool {
        self.announcer.as_mut().is_some_and(|announcer| announcer.announce(programmed))
    }

    /// Decides again if the other nodes have changed: their addresses and podCIDRs are not
    /// announced. No rule depends on other nodes.
    pub fn follow_nodes(&mut self, programmed: &impl ProgrammedPlan) {
        let nodes = programmed.planner().model().nodes();
        if let Some(announcer) = &mut self.announcer
            && nodes.is_some_and(|nodes| announcer.differs(&nodes))
        {
            announcer.follow(programmed);
        }
    }

    /// Returns when [`Self::step`] is due.
    pub async fn due(&self) {
        match &self.announcer {
            Some(announcer) => announcer.due().await,
            None => pending().await,
        }
    }

    /// Decides on the announcements again: the kernel's routes may have changed, or a time is over.
    pub fn step(&mut self, programmed: &impl ProgrammedPlan) {
        if let Some(announcer) = &mut self.announcer {
            announcer.note_foreign_change();
            announcer.follow(programmed);
        }
    }

    /// Why an address is announced or not, and to whom; `None` if announcements are off. Only the
    /// returned future asks BIRD.
    pub fn explain(&self, address: IpAddr) -> Option<impl Future<Output = Announced> + use<>> {
        let announced = self.announcer.as_ref()?.explain(address);
        let socket = self.bird.as_ref().map(|bird| bird.socket.clone());
        Some(async move {
            match socket {
                Some(socket) => with_peers(announced, &socket).await,
                None => announced,
            }
        })
    }

    /// The state of routing, on a node with these recorded pods.
    pub fn report(&self, pods: &[LocalPod]) -> RoutingReport {
        let mut report = RoutingReport::default();
        self.direct_router.iter().for_each(|router| router.report(&mut report));
        self.announcer.iter().for_each(|announcer| announcer.report(pods, &mut report));
        self.bird.iter().for_each(|bird| bird.report(&mut report));
        report
    }
}
