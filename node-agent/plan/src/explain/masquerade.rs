//! The source address that an endpoint sees.

use super::egress::{leaves_for_endpoint, leaves_to};
use super::{ExplainContext, ExplainSteps, Sender, words};
use crate::{Endpoint, Endpoints, Frontend, FrontendKind, Masquerade};

/// Which endpoints see the node's address as the source.
pub(super) struct EndpointMasquerade {
    /// Whether the source becomes the node's address.
    pub(super) applies: bool,
    /// The endpoints that see the node's address, if some but not all do.
    pub(super) endpoints: Vec<String>,
}

/// Explains the source that these endpoints see. `by_outside`: [`Frontend::outside`] decides.
pub(super) fn masquerade(
    context: ExplainContext<'_>,
    frontend: &Frontend,
    by_outside: bool,
    endpoints: &Endpoints,
    sender: Sender,
    steps: &mut ExplainSteps,
) -> EndpointMasquerade {
    let (masquerade, why) = match frontend.masquerade {
        _ if by_outside => (false, words::KEPT_LOCAL_POLICY),
        Masquerade::Always if frontend.kind == FrontendKind::ClusterIp => {
            (true, words::MASQUERADE_ALL)
        }
        Masquerade::Always => (true, words::MASQUERADE_EXTERNAL),
        Masquerade::UnlessLocalPod if sender == Sender::Pod => (false, words::KEPT_LOCAL_POD),
        Masquerade::UnlessLocalPod if sender == Sender::Node && node_is_in_a_pod_range(context) => {
            (false, words::KEPT_NODE_RANGE)
        }
        Masquerade::UnlessLocalPod => (true, words::MASQUERADE_FOREIGN),
    };
    // Packets to the node itself are not forwarded, and masquerade happens after forwarding.
    let stays = |e: &&Endpoint| sender != Sender::Node && context.is_own(e.address.ip());
    let itself = |e: &&Endpoint| e.address.ip() == context.packet.source && is_hairpin(context);
    let sees_node = |e: &&Endpoint| {
        let translated = if masquerade { !stays(e) } else { itself(e) };
        translated || leaves_to(context, sender, e.address.ip())
    };
    let mut masqueraded: Vec<String> =
        endpoints.iter().filter(sees_node).map(|e| e.address.to_string()).collect();
    let exceptions = match masquerade {
        true => endpoints.iter().filter(stays).count(),
        false => endpoints.iter().filter(itself).count(),
    };
    let only_exceptions = exceptions == endpoints.count();
    if masqueraded.len() == endpoints.count() {
        masqueraded.clear();
    }
    if !only_exceptions {
        let what = if masquerade { words::SOURCE_REPLACED } else { words::SOURCE_KEPT };
        steps.add(what, why);
    }
    if exceptions > 0 {
        let (what, why) = if masquerade { words::STAYS } else { words::HAIRPIN };
        steps.add(what, why);
    }
    let applies =
        masquerade != only_exceptions || leaves_for_endpoint(context, sender, endpoints, steps);
    EndpointMasquerade { applies, endpoints: masqueraded }
}

/// Whether the sender may reach itself through a service.
fn is_hairpin(context: ExplainContext<'_>) -> bool {
    context.services.hairpins().contains(&context.packet.source)
}

/// If local traffic is detected by source alone, the node's own address in a podCIDR (a bridge's
/// address) counts as a pod's.
fn node_is_in_a_pod_range(context: ExplainContext<'_>) -> bool {
    let detection = &context.plan.node().detection;
    detection.local(context.plan.recorded(), context.packet.source, None).is_some()
}
