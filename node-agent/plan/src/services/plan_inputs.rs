//! What the decisions about services depend on.

use super::decide::Settings;
use crate::policy::Capabilities;
use crate::{NodePlan, Scheduler};
use denizen_model::{LocalPod, Snapshot};

#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanInputs<'a> {
    pub settings: &'a Settings,
    pub capabilities: Capabilities,
    pub node: &'a NodePlan,
    pub pods: &'a [LocalPod],
    pub world: Snapshot<'a>,
    /// IPVS's scheduler for services that ask for none.
    pub scheduler: Scheduler,
}
