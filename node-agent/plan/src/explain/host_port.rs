//! Packets to host ports.

use std::net::IpAddr;

use super::egress::leaves_to;
use super::{Explanation, PacketPath, PacketTarget, PacketVerdict, Question, Sender, words};
use crate::{HostPortKey, HostPortPlace, ServedHostPort};

/// The host port that a packet is for that no service takes.
pub(super) fn find(asked: Question<'_>) -> Option<(HostPortKey, &ServedHostPort)> {
    match asked.packet.transport {
        PacketTarget::Port(protocol, port) => {
            asked.plan.host_ports()?.at(asked.packet.destination, protocol, port)
        }
        PacketTarget::Echo => None,
    }
}

pub(super) fn explain(
    mut path: PacketPath<'_>,
    (key, served): (HostPortKey, &ServedHostPort),
    sender: Sender,
) -> Explanation {
    let (to, endpoint) = (path.asked.packet.destination_text(), served.endpoint);
    let whose = format!("{to} is a host port of {}", served.pod);
    let port = endpoint.port();
    let asked = match key.at {
        HostPortPlace::Ip(ip) => {
            format!("the pod asks for it: containerPort {port}, hostIP {ip}")
        }
        HostPortPlace::Any(_) => {
            format!("the pod asks for it: containerPort {port}, at every address of this node")
        }
    };
    path.step(whose, asked);
    path.step(format!("to the pod itself: {endpoint}"), words::ONE_ENDPOINT);
    let source = path.asked.packet.source;
    let is_loopback = matches!(source, IpAddr::V4(ip) if ip.is_loopback());
    let (masquerade, what, why) = if is_loopback {
        (true, words::SOURCE_REPLACED, words::FROM_LOOPBACK)
    } else if source == endpoint.ip() {
        (true, words::HAIRPIN.0, words::HAIRPIN.1)
    } else if leaves_to(path.asked, sender, endpoint.ip()) {
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
