//! What happens inside pods that the plugin has redirected: before a packet leaves the sender, and
//! after it has arrived at the receiver. The agent never looks into a pod: the record has the
//! plugin's rules.

use std::net::{IpAddr, SocketAddr};

use denizen_state::redirect::{
    self as state, ChainDirection, Redirect, RuleAction, UnmarkedConnection,
};
use serde::{Deserialize, Serialize};

use super::{ExplainStep, Explanation, FirstPacket, PacketTarget, PacketVerdict, words};
use crate::Plan;
use denizen_model::{LocalPod, Protocol};

/// What the rules inside one pod do to the connection of an ordinary process: without a mark, and
/// of a user that no rule names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedirectRow {
    /// `outbound`: before the packet leaves the pod. `inbound`: after it has arrived.
    pub direction: String,
    pub pod: String,
    /// To which endpoint, if the packet is forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The port of the pod that gets the connection; missing if it is not redirected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The rule that decides; missing if none matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Adds what happens inside the sender, at the beginning, and inside the receivers.
pub(super) fn inside(
    plan: &Plan,
    packet: &FirstPacket,
    mut explanation: Explanation,
) -> Explanation {
    let pods = plan.recorded();
    if let Some((pod, redirect)) = sender(pods, packet) {
        let to = destination(packet);
        let is_own = to.ip().is_loopback() || pod.ips.contains(&to.ip());
        let interface = if is_own { "lo" } else { pod.id.if_name() };
        let connection = connection(packet, Some(packet.source), to, interface);
        let row = RedirectRow::of(pod, redirect, ChainDirection::Outbound, &connection);
        explanation.steps.insert(0, row.step(redirect, &connection));
        explanation.redirects.push(row);
    }
    let is_forwarded = explanation.verdict == PacketVerdict::Forward;
    let ends: Vec<SocketAddr> = match explanation.verdict {
        PacketVerdict::Forward => {
            explanation.endpoints.iter().filter_map(|endpoint| endpoint.parse().ok()).collect()
        }
        PacketVerdict::Untouched => vec![destination(packet)],
        PacketVerdict::Foreign
        | PacketVerdict::Reject
        | PacketVerdict::Drop
        | PacketVerdict::Unknown => Vec::new(),
    };
    for to in ends {
        let Some((pod, redirect)) = receiver(pods, packet, to.ip()) else { continue };
        let end = to.to_string();
        let is_masqueraded = explanation.masquerade || explanation.masqueraded.contains(&end);
        // The source of a masqueraded packet is unknown here: the routes decide which of the node's
        // addresses it is.
        let source = (!is_masqueraded).then_some(packet.source);
        let connection = connection(packet, source, to, pod.id.if_name());
        let mut row = RedirectRow::of(pod, redirect, ChainDirection::Inbound, &connection);
        row.endpoint = is_forwarded.then_some(end);
        explanation.steps.push(row.step(redirect, &connection));
        explanation.redirects.push(row);
    }
    explanation
}

/// Where the packet is to go. A ping has no port, and no rule of a pod matches port 0.
fn destination(packet: &FirstPacket) -> SocketAddr {
    let port = match packet.transport {
        PacketTarget::Port(_, port) => port.get(),
        PacketTarget::Echo => 0,
    };
    SocketAddr::new(packet.destination, port)
}

/// The redirected pod that sends the packet.
fn sender<'a>(pods: &'a [LocalPod], packet: &FirstPacket) -> Option<(&'a LocalPod, &'a Redirect)> {
    let comes_from = |pod: &LocalPod| {
        let is_its =
            |name: &String| **name == *pod.interface || pod.port.as_deref() == Some(name.as_str());
        pod.ips.contains(&packet.source) && packet.interface.as_ref().is_none_or(is_its)
    };
    redirected(pods.iter().find(|pod| comes_from(pod))?)
}

/// The redirected pod that gets the packet from outside itself.
fn receiver<'a>(
    pods: &'a [LocalPod],
    packet: &FirstPacket,
    to: IpAddr,
) -> Option<(&'a LocalPod, &'a Redirect)> {
    let pod = pods.iter().find(|pod| pod.ips.contains(&to))?;
    // What a pod sends to its own address never leaves the pod.
    let is_own = packet.destination == to && pod.ips.contains(&packet.source);
    redirected(pod).filter(|_| !is_own)
}

fn redirected(pod: &LocalPod) -> Option<(&LocalPod, &Redirect)> {
    pod.redirect.as_deref().map(|redirect| (pod, redirect))
}

fn connection<'a>(
    packet: &FirstPacket,
    source: Option<IpAddr>,
    to: SocketAddr,
    interface: &'a str,
) -> UnmarkedConnection<'a> {
    let protocol = match packet.transport {
        PacketTarget::Port(Protocol::Tcp, _) => Some(state::RedirectProtocol::Tcp),
        PacketTarget::Port(Protocol::Udp, _) => Some(state::RedirectProtocol::Udp),
        PacketTarget::Port(Protocol::Sctp, _) | PacketTarget::Echo => None,
    };
    UnmarkedConnection { interface, source, destination: to.ip(), port: to.port(), protocol }
}

impl RedirectRow {
    fn of(
        pod: &LocalPod,
        redirect: &Redirect,
        direction: ChainDirection,
        connection: &UnmarkedConnection<'_>,
    ) -> Self {
        let rules = redirect.rules(direction);
        let rule = rules.into_iter().find(|rule| rule.matches(connection));
        let port = match rule.as_ref().map(|rule| rule.action) {
            Some(RuleAction::Redirect(port)) => Some(port.get()),
            Some(RuleAction::Skip) | None => None,
        };
        Self {
            direction: direction.to_string(),
            pod: pod.to_string(),
            endpoint: None,
            port,
            rule: rule.map(|rule| rule.comment),
        }
    }

    fn step(&self, redirect: &Redirect, connection: &UnmarkedConnection<'_>) -> ExplainStep {
        let Self { direction, pod, endpoint, port, rule } = self;
        let to = endpoint.as_ref().map(|end| format!(" (to {end})")).unwrap_or_default();
        let rule = rule.as_ref().map(|rule| format!("rule {rule}"));
        let (what, mut why) = match (port, rule) {
            (Some(port), Some(rule)) => (format!("redirected to port {port}"), rule),
            (_, Some(rule)) => ("not redirected".to_owned(), rule),
            (_, None) => ("not redirected".to_owned(), words::no_rule(redirect, connection)),
        };
        if port.is_some() && *direction == ChainDirection::Outbound.to_string() {
            why += words::ONWARD;
        }
        if !redirect.skip_inbound_cidrs.is_empty() && connection.source.is_none() {
            why += words::UNKNOWN_SOURCE;
        }
        ExplainStep { what: format!("{direction} inside {pod}{to}: {what}"), why }
    }
}
