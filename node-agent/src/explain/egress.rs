//! Pods' connections beyond services: whose address they are seen from.

use std::net::IpAddr;

use super::{Sender, Way, words};
use crate::model::family_of;
use crate::plan::Endpoints;

impl Way<'_> {
    /// Whether a pod's connection to this destination, which is no service's any more, gets the
    /// node's address; `None` where the operator did not ask for anything of the kind.
    fn goes_out(&self, sender: Sender, destination: IpAddr) -> Option<bool> {
        let world = self.context.world;
        let asked = world.egress().filter(|egress| egress.covers(family_of(destination)))?;
        // What stays on this node is never forwarded.
        (sender == Sender::Pod && !self.is_own(destination))
            .then(|| asked.range_of(destination).is_none())
    }

    /// A destination that no service has.
    pub(super) fn leaves_untouched(&mut self, sender: Sender) -> bool {
        let destination = self.packet.destination;
        let Some(masquerade) = self.goes_out(sender, destination) else {
            return false;
        };
        let range = self.context.world.egress().and_then(|egress| egress.range_of(destination));
        match range {
            Some(range) => self.step(
                words::SOURCE_KEPT,
                format!("{destination} lies in {range}, where pods keep their address (nonMasqueradeCIDRs)"),
            ),
            None => self.step(words::SOURCE_REPLACED, words::GOES_OUT),
        }
        masquerade
    }

    /// The endpoints of a service that a pod's connection would otherwise keep its address towards.
    pub(super) fn leaves_for_endpoint(&mut self, sender: Sender, endpoints: &Endpoints) -> bool {
        let out = endpoints
            .iter()
            .filter(|endpoint| self.goes_out(sender, endpoint.address.ip()) == Some(true))
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
