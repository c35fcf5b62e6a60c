//! The planner: holds the facts and the plan, and updates the plan when facts change. Pure.

use super::policy::{Capabilities, Policy};
use super::{FirewallPlan, KnownPods, Plan, PlanChanges, PodNeeds};
use denizen_model::{Event, Listing, Model, ModelChange};

/// The model, its changes that are not planned yet, and the plan.
#[derive(Debug)]
pub struct Planner {
    model: Model,
    change: ModelChange,
    plan: Plan,
}

impl Planner {
    pub fn new(policy: Policy, capabilities: Capabilities) -> Self {
        let (mut model, mut change) = (Model::default(), ModelChange::default());
        if !policy.services {
            // Without services these are never listed: treat them as complete and empty.
            let unread = [Listing::Services, Listing::Slices, Listing::ServiceCidrs];
            for listing in unread {
                model.apply(Event::Listed(listing), &mut change);
            }
        }
        Self { model, change, plan: Plan::new(policy, capabilities) }
    }

    /// Applies events to the model. [`Self::update`] plans them.
    pub fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            self.model.apply(event, &mut self.change);
        }
    }

    /// Decides about new facts. Returns what changed in the plan.
    pub fn update(&mut self) -> PlanChanges {
        self.plan.update(&self.model, &mut self.change)
    }

    /// Whether all known facts are decided about.
    pub fn is_idle(&self) -> bool {
        let first = self.plan.services().is_none() && self.model.snapshot().is_some();
        let firewall = self.plan.firewall().is_some_and(|firewall| !firewall.is_known());
        let is_new = first || (firewall && self.model.cluster().is_some()) || self.owes_needs();
        self.change.is_empty() && !is_new
    }

    /// Whether [`FirewallPlan::pod_needs`] can be decided now, and has not been yet.
    fn owes_needs(&self) -> bool {
        let owes = |firewall: &FirewallPlan| {
            firewall.settings().pods == KnownPods::Some
                && *firewall.pod_needs() == PodNeeds::Unknown
        };
        self.plan.firewall().is_some_and(owes) && self.model.cluster_but_pods().is_some()
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn model(&self) -> &Model {
        &self.model
    }
}
