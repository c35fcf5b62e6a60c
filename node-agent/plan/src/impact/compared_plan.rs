//! One of the two plans: what passes between classes and identities, and who decides.

use std::collections::HashMap;
use std::num::NonZeroU16;

use crate::firewall::{ClassKey, PortSet};
use crate::{Decider, Direction, FirewallPlan, IdentityId};
use denizen_model::Protocol;
use denizen_state::AttachmentId;

/// Numbers values: equal values have equal numbers.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    all: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { all: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Numbered<T> {
    pub fn number(&mut self, value: T) -> usize {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        self.all.push(value.clone());
        self.numbers.insert(value, self.all.len() - 1);
        self.all.len() - 1
    }

    pub fn get(&self, number: usize) -> &T {
        &self.all[number]
    }

    pub fn into_all(self) -> Vec<T> {
        self.all
    }
}

/// The port sets and the deciders of both plans.
#[derive(Debug, Default)]
pub(super) struct SharedNumbers {
    pub ports: Numbered<PortSet>,
    pub deciders: Numbered<Decider>,
}

/// A class, as its number in a [`ComparedPlan`]; `None` if everything passes.
pub(super) type ClassNumber = Option<usize>;

#[derive(Debug)]
pub(super) struct ComparedPlan<'a> {
    pub plan: &'a FirewallPlan,
    classes: Numbered<&'a ClassKey>,
    /// As numbers in [`SharedNumbers::ports`].
    passing: HashMap<(usize, Option<IdentityId>), usize>,
}

impl<'a> ComparedPlan<'a> {
    pub fn new(plan: &'a FirewallPlan) -> Self {
        Self { plan, classes: Numbered::default(), passing: HashMap::new() }
    }

    pub fn class(&mut self, record: &AttachmentId, direction: Direction) -> ClassNumber {
        self.plan.class(record, direction).map(|class| self.classes.number(class))
    }

    pub fn key(&self, class: ClassNumber) -> Option<&'a ClassKey> {
        class.map(|class| *self.classes.get(class))
    }

    /// What passes, as a number in [`SharedNumbers::ports`].
    pub fn passing(
        &mut self,
        class: ClassNumber,
        peer: Option<IdentityId>,
        shared: &mut SharedNumbers,
    ) -> usize {
        let Some(class) = class else { return shared.ports.number(PortSet::all()) };
        let (plan, classes) = (self.plan, &self.classes);
        let known = self.passing.entry((class, peer));
        *known.or_insert_with(|| shared.ports.number(plan.passing(classes.get(class), peer)))
    }

    pub fn decider(
        &self,
        class: ClassNumber,
        peer: Option<IdentityId>,
        protocol: Option<Protocol>,
        port: Option<NonZeroU16>,
    ) -> Decider {
        match self.key(class) {
            None => Decider::Nobody,
            Some(class) => Decider::of(self.plan, class, peer, protocol, port),
        }
    }
}
