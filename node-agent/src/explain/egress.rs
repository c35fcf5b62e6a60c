//! Pods' connections beyond services: whose address they are seen from.

use std::net::IpAddr;

use super::{Sender, Way, words};
use crate::plan::{Endpoints, SeenAs};

impl Way<'_> {
    /// As whom a pod is seen by this destination, which is no service's any more; `None` where the
    /// operator did not ask for anything of the kind.
    fn seen_as(&self, sender: Sender, destination: IpAddr) -> Option<SeenAs> {
        // What stays on this node is never forwarded.
        let is_out = sender == Sender::Pod && !self.is_own(destination);
        self.plan.node().egress.seen_as(destination).filter(|_| is_out)
    }

    /// A destination that no service has; whether the source becomes the node's address.
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

    /// The endpoints of a service that a pod's connection would otherwise keep its address towards.
    pub(super) fn leaves_for_endpoint(&mut self, sender: Sender, endpoints: &Endpoints) -> bool {
        let out = endpoints
            .iter()
            .filter(|it| self.seen_as(sender, it.address.ip()) == Some(SeenAs::Node))
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
