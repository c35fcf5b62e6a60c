//! The source address of pods' connections to destinations that are not services.

use std::net::IpAddr;

use super::{ExplainContext, ExplainSteps, Sender, words};
use crate::{Endpoints, SeenAs};

/// The source address that this destination sees, after services are translated; `None` if
/// egress masquerade is off.
fn seen_as(context: ExplainContext<'_>, sender: Sender, destination: IpAddr) -> Option<SeenAs> {
    // Packets to the node itself are never forwarded.
    let is_out = sender == Sender::Pod && !context.is_own(destination);
    context.plan.node().egress.seen_as(destination).filter(|_| is_out)
}

/// Whether this destination sees the node's address, because it is outside the ranges towards which
/// pods keep their own address.
pub(super) fn leaves_to(context: ExplainContext<'_>, sender: Sender, destination: IpAddr) -> bool {
    seen_as(context, sender, destination) == Some(SeenAs::Node)
}

/// Explains the source for a destination without a service. Returns whether it becomes the
/// node's address.
pub(super) fn leaves_untouched(
    context: ExplainContext<'_>,
    sender: Sender,
    steps: &mut ExplainSteps,
) -> bool {
    let destination = context.packet.destination;
    match seen_as(context, sender, destination) {
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
    context: ExplainContext<'_>,
    sender: Sender,
    endpoints: &Endpoints,
    steps: &mut ExplainSteps,
) -> bool {
    let out = endpoints
        .iter()
        .filter(|endpoint| leaves_to(context, sender, endpoint.address.ip()))
        .count();
    if out == 0 {
        return false;
    }
    let all = out == endpoints.count();
    let which = if all { "the endpoint" } else { "an endpoint outside the ranges" };
    steps.add(format!("towards {which} {}", words::SOURCE_REPLACED), words::GOES_OUT);
    all
}
