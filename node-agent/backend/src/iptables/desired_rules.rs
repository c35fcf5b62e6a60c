//! A plan, rendered as rules and sets. Pure.

use std::num::NonZeroU16;

use super::name::IpsetName;
use super::pods::Pods;
use super::ruleset::Ruleset;
use super::ruleset_config::RulesetConfig;
use super::text::IptablesRendering;
use crate::SetSize;
use crate::nftables::{Nftables, NoKernel};
use denizen_model::Family;
use denizen_plan::{Plan, PlanChanges};

/// The desired rules and sets of both families, and which facts they rest on.
#[derive(Debug)]
pub struct DesiredRules<K = NoKernel> {
    pub rules: [Ruleset; 2],
    /// The bridge's table. Used only if a pod's port of the bridge must match.
    pub bridge: Nftables<K>,
    /// The local pods.
    pub pods: Pods,
    /// The pods may differ from what was last written.
    pub pods_changed: bool,
    /// The local pods are known. Until then, what an earlier run programmed for pods is left alone:
    /// a restart must lose nothing while the state file cannot be read.
    pub pods_known: bool,
    /// As [`Self::pods_known`], for services and the API.
    pub services_known: bool,
}

impl DesiredRules {
    /// As [`Self::new`], for rendering only.
    pub fn offline() -> Self {
        Self::new(true, Nftables::offline_bridge())
    }

    /// The rendered rules.
    pub fn rendering(&self) -> IptablesRendering {
        let bridge = self.bridge.is_wanted().then(|| self.bridge.rendering());
        IptablesRendering::of(&self.rules, &self.pods, bridge)
    }
}

impl<K> DesiredRules<K> {
    /// Without rules and pods. `drop_invalid`: drop packets that connection tracking cannot assign
    /// to a connection. `bridge` has only the bridge's table.
    pub fn new(drop_invalid: bool, bridge: Nftables<K>) -> Self {
        Self {
            rules: Family::BOTH
                .map(|family| Ruleset::new(RulesetConfig::new(family, drop_invalid))),
            bridge,
            pods: Pods::default(),
            pods_changed: false,
            pods_known: false,
            services_known: false,
        }
    }

    /// Takes a new plan.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        // If any port of a bridge will do, iptables itself can test it: `-m physdev`.
        if plan.node().detection.proves_ports() {
            self.bridge.update(plan, changes);
        }
        if changes.node {
            self.reconfigure(|config| config.configure(plan.node()));
        }
        if let Some(pods) = plan.pods().filter(|_| changes.pods) {
            let pods = Pods::new(pods, self.bridge.is_wanted());
            self.pods_changed |= !self.pods_known || self.pods != pods;
            self.pods_known = true;
            self.pods = pods;
        }
        let Some(services) = plan.services() else {
            return;
        };
        self.services_known = true;
        for rules in &mut self.rules {
            let keys = changes.frontends.iter();
            rules.change_frontends(keys.map(|key| (*key, services.frontend(key))));
        }
        if changes.health_checks {
            let ports = services.health_checks().by_port().0.into_keys();
            let ports: Vec<u16> = ports.map(NonZeroU16::get).collect();
            self.reconfigure(|config| config.health_ports.clone_from(&ports));
        }
    }

    /// The number of desired elements of each set.
    pub fn sizes(&self) -> Vec<SetSize> {
        let size = |set: IpsetName| SetSize {
            family: set.family(),
            set: set.as_str().to_owned(),
            elements: self.pods.of(set).len(),
        };
        let of_bridge = self.bridge.is_wanted().then(|| self.bridge.sizes());
        IpsetName::ALL.map(size).into_iter().chain(of_bridge.into_iter().flatten()).collect()
    }

    fn reconfigure(&mut self, change: impl Fn(&mut RulesetConfig)) {
        self.rules.iter_mut().for_each(|rules| rules.reconfigure(&change));
    }
}
