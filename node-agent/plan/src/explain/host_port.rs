//! Packets to host ports.

use std::net::IpAddr;

use super::egress::leaves_to;
use super::{ExplainContext, Explanation, PacketPath, PacketTarget, PacketVerdict, Sender, words};
use crate::{HostPortKey, HostPortPlace, ServedHostPort};

/// The host port that a packet is addressed to. For packets that no service takes.
pub(super) fn find(context: ExplainContext<'_>) -> Option<(HostPortKey, &ServedHostPort)> {
    match context.packet.transport {
        PacketTarget::Port(protocol, port) => {
            context.plan.host_ports()?.at(context.packet.destination, protocol, port)
        }
        PacketTarget::Echo => None,
    }
}

pub(super) fn explain(
    mut path: PacketPath<'_>,
    (key, served): (HostPortKey, &ServedHostPort),
    sender: Sender,
) -> Explanation {
    let (to, endpoint) = (path.context.packet.destination_text(), served.endpoint);
    let whose = format!("{to} is a host port of {}", served.pod);
    let port = endpoint.port();
    let requested = match key.at {
        HostPortPlace::Ip(ip) => {
            format!("the pod asks for it: containerPort {port}, hostIP {ip}")
        }
        HostPortPlace::Any(_) => {
            format!("the pod asks for it: containerPort {port}, at every address of this node")
        }
    };
    path.step(whose, requested);
    path.step(format!("to the pod itself: {endpoint}"), words::ONE_ENDPOINT);
    let source = path.context.packet.source;
    let is_loopback = matches!(source, IpAddr::V4(ip) if ip.is_loopback());
    let (masquerade, what, why) = if is_loopback {
        (true, words::SOURCE_REPLACED, words::FROM_LOOPBACK)
    } else if source == endpoint.ip() {
        (true, words::HAIRPIN.0, words::HAIRPIN.1)
    } else if leaves_to(path.context, sender, endpoint.ip()) {
        (true, words::SOURCE_REPLACED, words::GOES_OUT)
    } else {
        (false, words::SOURCE_KEPT, words::ANSWERED_HERE)
    };
    path.step(what, why);
    let explanation = path.finish(PacketVerdict::Forward, None, None, masquerade, sender);
    Explanation {
        endpoints: vec![endpoint.to_string()],
        host_port: Some(served.pod.to_string()),
        ..explanation
    }
}
