//! The answers of the health-check node ports.

use super::Engine;
use denizen_plan::HealthPorts;

impl<B> Engine<B> {
    /// The health-check node ports, if they may have changed since the last call.
    pub fn take_health_ports(&mut self) -> Option<HealthPorts> {
        std::mem::take(&mut self.health_ports_due).then(|| self.planner.plan().health_ports())?
    }

    /// Whether load balancers may send to this node, by its Node object.
    pub fn is_node_eligible(&self) -> bool {
        self.planner.model().is_node_eligible()
    }

    /// Health-check node ports that a service requests and another one has.
    pub(super) fn lost_health_ports(&self) -> impl Iterator<Item = String> {
        let services = self.planner.plan().services();
        let lost = services.map(|services| services.health_checks().settled().1);
        lost.into_iter().flatten().map(|(check, winner)| {
            let (port, service) = (check.port, check.service);
            format!(
                "health-check node port {port} of {service} is {winner}'s: it is not served for {service}"
            )
        })
    }
}
