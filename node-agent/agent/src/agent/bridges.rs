//! Settings of bridges and their ports that pods need in addition to rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Config;
use denizen_backend::sysctl::{BridgeFilter, CheckScope, HairpinPorts};
use denizen_model::LocalPod;
use denizen_plan::Plan;

/// The settings of bridges with recorded pods.
pub(super) struct Bridges {
    /// Has IP rules see the frames between ports of bridges with restricted pods.
    filter: BridgeFilter,
    /// Lets bridged pods reach themselves through services.
    hairpin_ports: HairpinPorts,
}

impl Bridges {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            filter: BridgeFilter::new(&config.sysctl_dir, &config.run_dir),
            hairpin_ports: HairpinPorts::new(config.hairpin_mode),
        }
    }

    /// Has bridges with restricted pods pass their frames to IP rules, and turns on hairpin mode of
    /// pods' ports, so that a pod reaches itself through a service. Returns the bridges whose
    /// frames cannot be passed to IP rules: their restricted pods must be cut off from their
    /// neighbours.
    pub(super) fn keep(&mut self, plan: &Plan, check: CheckScope) -> BTreeSet<Arc<str>> {
        self.filter.keep(plan.restricted_bridges(), check);
        self.filter.keep_from_learning(plan.guarded_bridges(), check);
        let pods = if plan.policy().services { plan.recorded() } else { &[] };
        let ports = pods.iter().filter_map(|pod| pod.port.clone()).collect();
        self.hairpin_ports.keep(ports, check);
        self.filter.unfiltered_bridges().keys().cloned().collect()
    }

    /// The bridges whose frames IP rules do not see, and why.
    pub(super) fn unfiltered_bridges(&self) -> &BTreeMap<Arc<str>, String> {
        self.filter.unfiltered_bridges()
    }

    /// A warning for ports of these pods without hairpin mode: the pods do not reach themselves
    /// through services.
    pub(super) fn hairpin_warnings(&self, pods: &[LocalPod]) -> Vec<String> {
        self.hairpin_ports.warnings(pods)
    }

    /// The ports whose hairpin mode is off, and why.
    pub(super) fn hairpin_off(&self) -> &BTreeMap<Arc<str>, String> {
        self.hairpin_ports.off()
    }
}
