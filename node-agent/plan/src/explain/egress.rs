//! The source address of pods' connections to destinations that are not services.

use std::net::IpAddr;

use super::{Sender, Way, words};
use crate::{Endpoints, SeenAs};

impl Way<'_> {
    /// The source address that this destination sees, after services are translated; `None` if
    /// egress masquerade is off.
    fn seen_as(&self, sender: Sender, destination: IpAddr) -> Option<SeenAs> {
        // Packets to the node itself are never forwarded.
        let is_out = sender == Sender::Pod && !self.is_own(destination);
        self.plan.node().egress.seen_as(destination).filter(|_| is_out)
    }

    /// Whether this destination sees the node's address, because the packet leaves the ranges where
    /// pods keep theirs.
    pub(super) fn leaves_to(&self, sender: Sender, destination: IpAddr) -> bool {
        self.seen_as(sender, destination) == Some(SeenAs::Node)
    }

    /// Explains the source for a destination without a service. Returns whether it becomes the
    /// node's address.
    pub(super) fn leaves_untouched(&mut self, sender: Sender) -> bool {
        let destination = self.packet.destination;
        match self.seen_as(sender, destination) {
            None => false,
            Some(SeenAs::Pod(range)) => {
                self.step(
                    words::SOURCE_KEPT,
                    format!("{destination} lies in {range}, where pods keep their address (nonMasqueradeCIDRs)"),
                );
                false
            }
            Some(SeenAs::Node) => {
                self.step(words::SOURCE_REPLACED, words::GOES_OUT);
                true
            }
        }
    }

    /// Explains egress masquerade towards a service's endpoints. Returns whether it applies to all
    /// of them.
    pub(super) fn leaves_for_endpoint(&mut self, sender: Sender, endpoints: &Endpoints) -> bool {
        let out = endpoints
            .iter()
            .filter(|endpoint| self.leaves_to(sender, endpoint.address.ip()))
            .count();
        if out == 0 {
            return false;
        }
        let all = out == endpoints.count();
        let which = if all { "the endpoint" } else { "an endpoint outside the ranges" };
        self.step(format!("towards {which} {}", words::SOURCE_REPLACED), words::GOES_OUT);
        all
    }
}
