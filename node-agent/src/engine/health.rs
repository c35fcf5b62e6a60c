//! What the health-check node ports answer, as far as the engine knows.

use super::Engine;
use crate::plan::{HealthPorts, node_port_addresses};

impl<B> Engine<B> {
    /// The health-check node ports, where they may differ from what this returned last.
    pub fn take_health_ports(&mut self) -> Option<HealthPorts> {
        if !std::mem::take(&mut self.health_ports_due) {
            return None;
        }
        let world = self.model.snapshot()?;
        let (node, links, pods) = (world.node(), world.addresses(), world.pods());
        Some(HealthPorts {
            addresses: node_port_addresses(&self.policy.node_ports, node, links, pods),
            checks: self.plan.health_checks().settled().0,
        })
    }

    /// Whether load balancers may send to this node, by its Node object.
    pub fn is_node_eligible(&self) -> bool {
        self.model.is_node_eligible()
    }

    /// Health-check node ports that a service asks for and another one has.
    pub(super) fn lost_health_ports(&self) -> impl Iterator<Item = String> {
        let (_, lost) = self.plan.health_checks().settled();
        lost.into_iter().map(|(check, winner)| {
            let (port, service) = (check.port, check.service);
            format!(
                "health-check node port {port} of {service} is {winner}'s: it is not served for {service}"
            )
        })
    }
}
