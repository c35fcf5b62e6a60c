//! What bridges and their ports need beside rules.

use super::Agent;

impl Agent {
    /// Bridges with restricted pods show their frames to IP rules; where they cannot, those pods
    /// are cut off from their neighbours. Pods' ports get back what a service hands to the sender.
    /// Returns whether that changes the rules.
    pub(super) fn set_up_bridges(&mut self, check: bool) -> bool {
        self.bridge_filter.keep(self.engine.restricted_bridges(), check);
        self.bridge_filter.keep_from_learning(self.engine.guarded_bridges(), check);
        let plan = self.engine.plan();
        let pods = if plan.policy().services { plan.recorded() } else { &[] };
        let ports = pods.iter().filter_map(|pod| pod.port.clone()).collect();
        self.hairpin_ports.keep(ports, check);
        let without = self.bridge_filter.problems().keys().cloned().collect();
        self.engine.set_without_netfilter(without)
    }
}
