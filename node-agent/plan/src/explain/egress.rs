//! The source address of pods' connections to destinations that are not services.

use std::net::IpAddr;

use super::{ExplainSteps, Question, Sender, words};
use crate::{Endpoints, SeenAs};

/// The source address that this destination sees, after services are translated; `None` if
/// egress masquerade is off.
fn seen_as(asked: Question<'_>, sender: Sender, destination: IpAddr) -> Option<SeenAs> {
    // Packets to the node itself are never forwarded.
    let is_out = sender == Sender::Pod && !asked.is_own(destination);
    asked.plan.node().egress.seen_as(destination).filter(|_| is_out)
}

/// Whether this destination sees the node's address, because the packet leaves the ranges where
/// pods keep theirs.
pub(super) fn leaves_to(asked: Question<'_>, sender: Sender, destination: IpAddr) -> bool {
    seen_as(asked, sender, destination) == Some(SeenAs::Node)
}

/// Explains the source for a destination without a service. Returns whether it becomes the
/// node's address.
pub(super) fn leaves_untouched(
    asked: Question<'_>,
    sender: Sender,
    steps: &mut ExplainSteps,
) -> bool {
    let destination = asked.packet.destination;
    match seen_as(asked, sender, destination) {
        None => false,
        Some(SeenAs::Pod(range)) => {
            steps.add(
                words::SOURCE_KEPT,
                format!("{destination} lies in {range}, where pods keep their address (nonMasqueradeCIDRs)"),
            );
            false
        }
        Some(SeenAs::Node) => {
            steps.add(words::SOURCE_REPLACED, words::GOES_OUT);
            true
        }
    }
}

/// Explains egress masquerade towards a service's endpoints. Returns whether it applies to all
/// of them.
pub(super) fn leaves_for_endpoint(
    asked: Question<'_>,
    sender: Sender,
    endpoints: &Endpoints,
    steps: &mut ExplainSteps,
) -> bool {
    let out =
        endpoints.iter().filter(|endpoint| leaves_to(asked, sender, endpoint.address.ip())).count();
    if out == 0 {
        return false;
    }
    let all = out == endpoints.count();
    let which = if all { "the endpoint" } else { "an endpoint outside the ranges" };
    steps.add(format!("towards {which} {}", words::SOURCE_REPLACED), words::GOES_OUT);
    all
}
