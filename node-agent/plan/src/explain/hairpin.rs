//! A pod that a service hands to itself, behind a bridge port without hairpin mode.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{ExplainStep, Explanation, FirstPacket, PacketVerdict};
use crate::Plan;

/// Corrects the explanation of a packet that a service hands back to its sender, if the bridge
/// cannot send it back. `off`: the bridge ports where hairpin mode is off, and why.
pub fn without_hairpin(
    plan: &Plan,
    packet: &FirstPacket,
    off: &BTreeMap<Arc<str>, String>,
    mut explanation: Explanation,
) -> Explanation {
    // A packet that IPVS balances does not stay on the bridge: the node itself sends it on.
    let is_bridged = explanation.local && explanation.virtual_server.is_none();
    if explanation.verdict != PacketVerdict::Forward || !is_bridged {
        return explanation;
    }
    let mut pods = plan.recorded().iter();
    let sender = pods.find(|pod| pod.ips.contains(&packet.source));
    let port = sender.and_then(|pod| off.get_key_value(pod.port.as_ref()?));
    let Some((port, why)) = port else { return explanation };
    let is_itself = |endpoint: &&String| {
        endpoint.parse().is_ok_and(|endpoint: SocketAddr| endpoint.ip() == packet.source)
    };
    let what = match explanation.endpoints.iter().filter(is_itself).count() {
        0 => return explanation,
        all if all == explanation.endpoints.len() => {
            explanation.verdict = PacketVerdict::Drop;
            "the bridge drops it"
        }
        _ => "if the chosen endpoint is the sender itself, the bridge drops it",
    };
    let why = format!(
        "hairpin mode of the bridge port {port} is off ({why}), so the bridge sends nothing back \
         to the port that it came from"
    );
    explanation.steps.push(ExplainStep { what: what.to_owned(), why });
    explanation
}
