//! Facts in, decisions out. Pure.

use super::policy::{Capabilities, Policy};
use super::{Changes, Plan};
use crate::model::{Change, Event, Model};

/// The facts, what of them is not planned yet, and the plan.
#[derive(Debug)]
pub struct Planner {
    model: Model,
    change: Change,
    plan: Plan,
}

impl Planner {
    /// Without any fact.
    pub fn new(policy: Policy, capabilities: Capabilities) -> Self {
        Self {
            model: Model::default(),
            change: Change::default(),
            plan: Plan::new(policy, capabilities),
        }
    }

    /// Takes facts in. They are decided about by [`Self::update`].
    pub fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            self.model.apply(event, &mut self.change);
        }
    }

    /// Decides about what is new; what that changed in the plan.
    pub fn update(&mut self) -> Changes {
        self.plan.update(&self.model, &mut self.change)
    }

    /// Whether everything that is known is decided.
    pub fn is_idle(&self) -> bool {
        let first = self.plan.services().is_none() && self.model.snapshot().is_some();
        self.change.is_empty() && !first
    }

    /// What is decided.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is known.
    pub fn model(&self) -> &Model {
        &self.model
    }
}
